/* attn bench: what the parts of the measurement share.
 *
 * A case is one problem and the pass that is timed. Its runners take turns (subject, peer, limits, subject, ...), round
 * after round, so that what the machine does besides falls on all of them alike; medians over the rounds are compared:
 *   subject  attn_run of the case's plan, or of its two plans
 *   peer     other software (OpenBLAS, PyTorch), another build of the library, or itself on a baseline problem
 *   limits   peak FLOP/s of the plans' instruction set, and read bandwidth, each on as many threads as the subject
 * The limit of a case is the greater of FLOPs / peak and, for decode, KV bytes / read bandwidth.
 *
 * Times are seconds, sizes bytes, FLOPs 2 pairs (dim_qk + dim_v) over exactly the visible pairs, for the backward 2.5
 * times as many. */
#ifndef ATTN_BENCH_BENCH_H
#define ATTN_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attn.h"
#include "device/device.h"

enum {
    ATTN_BENCH_LIST_MOST = 16,
    ATTN_BENCH_ROUNDS_LEAST = 5,
    ATTN_BENCH_ROUNDS_MOST = 101,
    ATTN_BENCH_RUNNERS_MOST = 8,
    ATTN_BENCH_LEVELS = 3,
    ATTN_BENCH_ALTERNATIVES = 16, /* of a plan's strategies */
    ATTN_BENCH_SEQUENCES = 128,
    ATTN_BENCH_ARRAYS = 16
};

typedef struct attn_bench_list {
    int count;
    int64_t values[ATTN_BENCH_LIST_MOST];
} attn_bench_list;

/* On a GPU: PyTorch's, and none. */
typedef enum attn_bench_peer {
    ATTN_PEER_OPENBLAS,
    ATTN_PEER_TORCH,
    ATTN_PEER_NONE,
    ATTN_PEER_CUDNN,
    ATTN_PEER_FLASH,
    ATTN_PEER_MATH,
    ATTN_PEER_FLEX,
    ATTN_PEER_FA3,
    ATTN_PEER_FA4,
    ATTN_PEER_FLASHINFER,
    ATTN_PEER_EFFICIENT
} attn_bench_peer;

/* "openblas", "torch", "none", "cudnn", "fa2", "math", "flex", "fa3", "fa4", "flashinfer", "efficient"; NULL for any
 * other number. */
const char *attn_bench_peer_name(attn_bench_peer peer);

typedef struct attn_bench_options {
    int suites;                                  /* a bit each, as attn_bench_suite_find says */
    attn_bench_list threads, dtypes, dims, lens; /* an empty list: each suite's own */
    int64_t heads[2];                            /* query and KV heads; 0: each suite's own */
    attn_dtype kv_dtype;                         /* of decode's keys; 0: the dtype */
    attn_isa isa;
    attn_device on;
    int64_t ranks;         /* of the suite ring */
    attn_bench_list peers; /* attn_bench_peer each, one at least */
    attn_bench_peer peer;  /* of these the one whose turn it is */
    int64_t repeat;        /* rounds */
    float min_time;        /* of a runner's turn */
    float pause;           /* before it */
    bool full, json, smoke, once;
    bool block_scales;                                       /* prefill of e4m3 on a GPU */
    const char *kernel;                                      /* of a forward; NULL: the planner's choice */
    const char *only;                                        /* what is in a case's text; NULL: all cases */
    const char *csv, *machine, *python, *fa3, *peer_library; /* or NULL */
    char device[128];                                        /* the machine's name: given, or that of the CSV file */
} attn_bench_options;

/* What is timed. The backward takes o and lse of a forward before. */
typedef enum attn_bench_pass {
    ATTN_BENCH_FORWARD,
    ATTN_BENCH_DECODE, /* a forward whose limit is also what it reads */
    ATTN_BENCH_BACKWARD,
    ATTN_BENCH_BOTH, /* forward, then backward */
    ATTN_BENCH_KV    /* no attention: its cache, its inputs */
} attn_bench_pass;

/* "fwd", "decode", "bwd", "fwdbwd", "kv". */
const char *attn_bench_pass_name(attn_bench_pass pass);

typedef enum attn_bench_kind {
    ATTN_BENCH_TIMED,
    ATTN_BENCH_PLANNED, /* nothing is run: the workspace */
    ATTN_BENCH_MEMORY,  /* run once for the memory that it takes */
    ATTN_BENCH_TILES,   /* with every tile that may be asked for */
    ATTN_BENCH_BYTES,   /* once more, for the bytes at each level */
    ATTN_BENCH_THEOREM, /* nothing is run: bytes over a memory of any size */
    ATTN_BENCH_POOL,    /* what the pool of pages does */
    ATTN_BENCH_APPEND,  /* tokens into pages */
    ATTN_BENCH_QUANT,   /* floats to bytes and scales */
    ATTN_BENCH_CASCADE, /* sequences with keys in common, in levels */
    ATTN_BENCH_RING     /* over ranks */
} attn_bench_kind;

typedef struct attn_bench_case {
    const char *suite;
    attn_bench_pass pass;
    char mask[40];             /* "full", "causal", "window:256" */
    attn_desc desc;            /* of the forward */
    const char *baseline_name; /* NULL: the peer is other software */
    attn_desc baseline;        /* of the same tensors */
    char baseline_strategy[64];
    bool pages_mixed; /* pages lie in no order */
    attn_bench_kind kind;
    int sequences; /* lengths: over pages, each sequence's keys; else those of packed sequences, of documents back to
                      back, or of the rows and keys that sequences use; 0: as desc says */
    int32_t lens[ATTN_BENCH_SEQUENCES];

    /* features, fp8: what it is beside, .dtype = 0 in other suites; and what arrays hold */
    attn_desc plain;
    int64_t prefix, first, position; /* of each sequence; position: of its row 0 */
    double share;                    /* of bits that are set, of blocks that are listed */
    bool gradients;                  /* of the bias, too */
    int shift;                       /* bytes by which arrays on a GPU miss a boundary of 16 */

    int32_t ranks; /* ring */
    int schedule;  /* an attn_schedule */
} attn_bench_case;

/* What --suite takes, in a sentence. */
#define ATTN_BENCH_SUITES(line)                                                                 \
    "prefill, threads, decode, bwd, fwdbwd, memory, window, paged, cascade, pool, append," line \
    "quant, ring, shapes, order, all (these), features, fp8, strategies, tiles, bytes, theorem"

/* The suite's bit, all of them but "features", "fp8", "strategies", "tiles", "bytes" and "theorem" for "all", 0 for any
 * other name. */
int attn_bench_suite_find(const char *name);

/* The cases of the chosen suites, to be freed. NULL and a message without memory. */
attn_bench_case *attn_bench_cases(const attn_bench_options *options, int *count);

/* Makes the case's keys paged and its baseline what it was. which: of ATTN_BENCH_PAGED, pages of 16 or 64 slots, in
 * order or in none, or of 12 in none. */
enum { ATTN_BENCH_PAGED = 5 };
void attn_bench_paged(attn_bench_case *item, int which);

/* A row each of some sequences, with keys in common, whole pages, and of their own: attn_bench_cascade. which: of
 * ATTN_BENCH_CASCADES, 4, 16 or 64 sequences. */
enum { ATTN_BENCH_CASCADES = 3, ATTN_BENCH_CASCADE_PAGE = 64 };
void attn_bench_cascades(attn_bench_case *item, int which);

/* New tokens into pages: attn_bench_append. which: of ATTN_BENCH_APPENDS, pages of 16 with K turned by halves or by
 * neighbours, or as it is, pages of 64 by halves, and of 16 by halves and q besides. */
enum { ATTN_BENCH_APPENDS = 5 };
void attn_bench_appends(attn_bench_case *item, int which);

/* len_kv rows of heads_kv heads become e4m3: attn_bench_quant. which: of ATTN_BENCH_QUANTS, what shares a scale, and
 * what is done before. */
enum { ATTN_BENCH_QUANTS = 9 };
void attn_bench_quants(attn_bench_case *item, int which);

/* Decode in the shapes of serving, on the device, in the dtype and by the threads of *like. Returns how many cases
 * there are. cases: NULL, or what is filled. */
int attn_bench_decode(const attn_desc *like, bool smoke, attn_bench_case *cases);

/* Of a decode: bytes of the keys and values that some row sees; FLOPs, which a plan does not know where lengths are a
 * run's. */
double attn_bench_kv_bytes(const attn_bench_case *item);
double attn_bench_decode_flops(const attn_bench_case *item, double planned);

/* The i-th of numbers whose logarithms are spread evenly, in an order that is none. */
double attn_bench_log_uniform(double least, double most, int i);

/* Seconds a call over a runner's rounds. */
typedef struct attn_bench_times {
    double median, min, max;
} attn_bench_times;

/* Bytes; 0: not so known. */
typedef struct attn_bench_footprint {
    double counted, peak; /* peak: measured */
} attn_bench_footprint;

typedef struct attn_bench_result {
    char kernel[48], isa[16];
    int splits;
    double flops, kv_bytes, baseline_flops;
    double predicted_seconds, predicted_bytes;
    uint64_t workspace, packed;
    attn_bench_times subject, peer, plain; /* a median of 0: not measured */
    double plain_flops;
    char refused[256];           /* why the library has no plan for it, or "" */
    const char *peer_name;       /* NULL: none */
    char peer_form[24];          /* which of its forms was fastest, or "" */
    double peak, read, read_far; /* FLOP/s, bytes/s over the KV footprint, bytes/s beyond the caches */
    int64_t far_bytes;           /* the footprint of read_far */
    double limit;                /* seconds */
    double launch;               /* seconds of a graph that only sets 4 bytes; 0: not measured */
    double megahertz, watts;     /* of a GPU, just after; 0: not known */
    int32_t ranks;               /* ring; 0: in other suites */
    double sent_bytes;           /* that a rank sends, on average; counted */
    double error_ratio;          /* over one device's error */
    attn_bench_footprint memory, peer_memory;
    struct {
        const char *name; /* NULL: not counted */
        double predicted, counted;
    } level[ATTN_BENCH_LEVELS]; /* bytes, from memory inward */
} attn_bench_result;

/* A case for each feature, beside *like; of some only on a GPU. Returns how many. cases: NULL, or what is filled. */
int attn_bench_features(const attn_desc *like, attn_bench_pass pass, attn_bench_case *cases);

/* Whether the case is of those, or of the suite "fp8": it has a plain one beside it. */
bool attn_bench_is_feature(const attn_bench_case *item);

/* Whether it is, of one thread of a CPU: then everything beside it is timed by the processor's clock. */
bool attn_bench_of_processor(const attn_bench_case *item);

/* Whether it is and has no plan; result->refused then says why. */
bool attn_bench_refused(const attn_bench_case *item, attn_bench_result *result);

/* Plain's time for each of its FLOPs over the case's: of as many visible pairs. 0: not measured. */
double attn_bench_plain_share(const attn_bench_result *result);

/* Runs `calls` calls and returns seconds a call; negative after a failure, which it has reported. */
typedef struct attn_bench_runner {
    double (*run)(void *self, int calls);
    void *self;
} attn_bench_runner;

/* Prints "attn bench: ..." to stderr and returns false. */
bool attn_bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- tensors (tensors.c) ------------------------------------------------------------- */

/* q, k, v and grad_o are random normal; all are packed, aligned and touched. Those that the pass lacks are NULL. */
typedef struct attn_bench_tensors {
    void *q, *k, *v, *o, *grad_o, *grad_q, *grad_k, *grad_v;
    float *lse, *sink;
    int32_t *page_table, *lens_kv; /* ATTN_PAGED: pages in order, sequences as long as they may be */
    int64_t q_bytes, k_bytes, v_bytes, o_bytes;
    attn_args more; /* what else a case takes, in memory of its own */
    void *own[ATTN_BENCH_ARRAYS];
    int own_count;
    double pairs; /* visible, where only arrays say which; 0: as planned */
} attn_bench_tensors;

/* Pages follow one another as the keys do, so that k and v are those of the problem without pages, too, where their
 * slots divide the keys. */
bool attn_bench_tensors_init(attn_bench_tensors *tensors, const attn_desc *desc, attn_bench_pass pass);

/* All of a case's: pages as it has them, lengths, masks and changes of scores (contents.c). */
bool attn_bench_tensors_of(attn_bench_tensors *tensors, const attn_bench_case *item);

/* Over exactly the visible pairs. */
double attn_bench_tensors_flops(const attn_bench_tensors *tensors, const attn_bench_case *item, double planned);

/* Random normal, or NULL and a message. Large tensors repeat what would take long to draw. */
void *attn_bench_normal(attn_dtype dtype, int64_t bytes, uint64_t seed);

/* Of a case with lengths of its own: as many keys, in as many pages as these take, in order. */
void attn_bench_tensors_ragged(attn_bench_tensors *tensors, const attn_bench_case *item);

/* The pages in no order. */
void attn_bench_tensors_mix(attn_bench_tensors *tensors, const attn_desc *desc);

/* Bytes of them all. */
int64_t attn_bench_tensors_bytes(const attn_desc *desc, attn_bench_pass pass);

/* As arguments of a run. */
attn_args attn_bench_tensors_args(const attn_bench_tensors *t);

void attn_bench_tensors_free(attn_bench_tensors *tensors);

/* Touched memory, 2 MiB-aligned where it is large; NULL and a message without it. */
void *attn_bench_alloc(int64_t bytes);

/* Whether as much leaves the machine some of its memory. */
bool attn_bench_fits(int64_t bytes);

/* ---- the library as a runner (subject.c) --------------------------------------------- */

typedef struct attn_bench_subject {
    attn_plan *forward, *backward; /* NULL: the pass is without it */
    attn_plan_info
        info;     /* kernel and the like of the last plan; FLOPs, traffic and time summed, workspace the larger */
    attn_isa isa; /* the greater of both plans */
    attn_args args;
    void *workspace;
} attn_bench_subject;

/* desc: of the forward. */
bool attn_bench_subject_plan(attn_bench_subject *subject, const attn_desc *desc, attn_bench_pass pass);

/* Plans, and sees to what a run takes: o and lse for the backward are computed here. */
bool attn_bench_subject_init(attn_bench_subject *subject, const attn_desc *desc, attn_bench_pass pass,
                             const attn_bench_tensors *tensors);
void attn_bench_subject_free(attn_bench_subject *subject);
double attn_bench_subject_run(void *subject, int calls);

/* ATTN_ISA_PORTABLE, or the one of this name (attn_isa_name). */
attn_isa attn_bench_isa_named(const char *name);

/* ---- vector loops (simd.c) ----------------------------------------------------------- */

typedef struct attn_bench_simd {
    float (*peak)(void); /* a fraction of a millisecond of the widest multiply-adds, on independent registers */
    double peak_flops;   /* of a call */
    uint64_t (*read)(const void *base, int64_t bytes, int streams);
    float (*softmax)(float *row, int64_t n, float scale); /* in place: exp(scale (s - max)); returns their sum */
    /* In place of a row's scores and its gradients of P: P and dS. */
    void (*gradient)(float *s, float *dp, int64_t n, float scale, float lse, float delta);
    float (*dot)(const float *a, const float *b, int64_t n);
} attn_bench_simd;

/* isa: available and not ATTN_ISA_AUTO. */
const attn_bench_simd *attn_bench_simd_of(attn_isa isa);

/* ---- limits (limits.c) --------------------------------------------------------------- */

typedef struct attn_bench_limit attn_bench_limit;

/* FLOP/s of the instruction set's widest multiply-adds, or of those below it where these are faster. */
attn_bench_limit *attn_bench_peak(attn_isa isa, int threads);

/* Bytes/s of reading two buffers once, in the best of a few numbers of streams. */
attn_bench_limit *attn_bench_read(const attn_bench_simd *simd, int threads, const void *const base[2],
                                  const int64_t bytes[2]);

void attn_bench_limit_free(attn_bench_limit *limit);
double attn_bench_limit_run(void *limit, int calls);
double attn_bench_limit_work(const attn_bench_limit *limit); /* FLOPs or bytes of a call */

/* ---- peers --------------------------------------------------------------------------------- */

/* Finds OpenBLAS; false and why in *reason without it. With ATTN_ISA_AVX2 it is held to its kernels for that
 * (Haswell's): like against like. On a processor that it does not know it would take SSE3 (Prescott's) and is told
 * better. OPENBLAS_CORETYPE overrides both. */
bool attn_bench_openblas_load(attn_isa isa, const char **reason);
const char *attn_bench_openblas_name(void); /* "openblas", a colon and its kernels' name */

typedef struct attn_bench_openblas attn_bench_openblas;

/* desc: f32, full or causal. tensors: as a run of the subject left them. Copies them to the layout that suits it, takes
 * the fastest of its forms and holds its output, and its gradients, against theirs. NULL after a failure, which it has
 * reported. */
attn_bench_openblas *attn_bench_openblas_create(const attn_desc *desc, attn_bench_pass pass,
                                                const attn_bench_tensors *tensors, const attn_bench_simd *simd);
void attn_bench_openblas_free(attn_bench_openblas *peer);
double attn_bench_openblas_run(void *peer, int calls);
void attn_bench_openblas_form(const attn_bench_openblas *peer, char *text, size_t size);

typedef struct attn_bench_torch attn_bench_torch;

/* Starts the child process, of torch_sdpa.py or, on a GPU, torch_gpu.py. NULL without PyTorch; in *text its version, or
 * why there is none. */
attn_bench_torch *attn_bench_torch_start(const char *python, attn_device on, char *text, size_t size);
void attn_bench_torch_stop(attn_bench_torch *torch);

/* Whether scaled_dot_product_attention on the CPU computes the case. */
bool attn_bench_torch_takes(const attn_bench_case *item);

/* In *form what computes it, where PyTorch tells: "flash" or "math". */
bool attn_bench_torch_setup(attn_bench_torch *torch, const attn_bench_case *item, char *form, size_t size);
double attn_bench_torch_run(void *torch, int calls);

/* backend: "cudnn", ...; fa3: where FlashAttention-3 was built, or NULL. False, and said so, if it does not compute
 * this. */
bool attn_bench_torch_setup_gpu(attn_bench_torch *torch, const char *backend, const char *fa3,
                                const attn_bench_case *item);

/* The most bytes that a forward and a backward allocate; 0 after a failure, which has been reported. */
double attn_bench_torch_memory(attn_bench_torch *torch);

/* ---- another build of the library (library.c) ---------------------------------------- */

typedef struct attn_bench_library attn_bench_library;

/* NULL after a failure, which it has reported. */
attn_bench_library *attn_bench_library_load(const char *path);
void attn_bench_library_free(attn_bench_library *library);

const char *attn_bench_library_name(const attn_bench_library *library); /* its file's */
const char *attn_bench_library_version(const attn_bench_library *library);
const device_library *attn_bench_library_calls(const attn_bench_library *library); /* NULL of NULL */

/* Plans a case of the CPU. Where the backward is timed alone, o and lse are in the tensors. */
bool attn_bench_library_setup(attn_bench_library *library, const attn_desc *desc, attn_bench_pass pass,
                              const attn_bench_tensors *tensors);
double attn_bench_library_run(void *library, int calls);

/* ---- turns (turns.c) ----------------------------------------------------------------- */

/* Warms the runners up, has them take turns, and fills each one's times. A runner without `run` is left out. */
bool attn_bench_take_turns(const attn_bench_options *options, const attn_bench_runner *runners, attn_bench_times *times,
                           int count);

/* The clock of runners on the CPU: that of the wall, or of this thread's processor, which counts nothing while other
 * work has it: for one thread alone. */
void attn_bench_clock(bool processor);
double attn_bench_now(void); /* seconds */

/* What a runner's run does whose call is the same on either device: seconds per call, on a GPU the median of graphs. */
double attn_bench_run_calls(attn_device device, device_call *call, const void *self, int calls);

/* ---- one case (measure.c) ------------------------------------------------------------ */

typedef struct attn_bench_peers {
    bool openblas;
    attn_bench_torch *torch;     /* or NULL */
    attn_bench_library *library; /* or NULL; in place of baselines, too */
} attn_bench_peers;

/* desc: dim_v, heads_kv and threads given. */
bool attn_bench_measure(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                        attn_bench_result *result);

/* ---- on a GPU (gpu_suites.c, gpu.c) -------------------------------------------- */

attn_bench_case *attn_bench_gpu_cases(const attn_bench_options *options, int *count);
bool attn_bench_gpu_measure(const attn_bench_options *options, const attn_bench_case *item,
                            const attn_bench_peers *peers, attn_bench_result *result);

/* The median of some calls (device_measure_calls), or, of at most a few hundred, as a graph (device_measure_graph);
 * negative after a failure, which it has reported. */
double attn_bench_gpu_median(device_call *call, const void *self, bool graph, int calls);

/* Copies bytes of one device, on a GPU as work of the stream. */
attn_status attn_bench_start_copy(attn_device on, void *to, const void *from, size_t bytes, void *stream);

/* Copies arrays, or where `from` has none leaves room for one, into one piece of device memory, to be freed; *at: where
 * they are. False after a failure, which it has reported. */
bool attn_bench_gpu_place(uint64_t *memory, const void *const from[], const size_t bytes[], int count, void *at[]);

/* Bytes per second at which the GPU was once measured to read its memory (its machine file). */
double attn_bench_gpu_read(void);

/* ---- strategies (strategies.c) ------------------------------------------------------- */

/* A case for each strategy that the plan of a point on a GPU takes: its baseline goes without. Returns how many. */
int attn_bench_alternatives(const attn_bench_case *point, attn_bench_case cases[ATTN_BENCH_ALTERNATIVES]);

/* ---- KV caches (pool.c, append.c) ------------------------------------------------------ */

/* The pool: seconds a page, fork or token. */
bool attn_bench_pool(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);

/* len_kv new tokens of batch sequences, beside a copy. */
bool attn_bench_append(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);

/* ---- quantisation (quant.c) ------------------------------------------------------------ */

/* Beside a copy of as many bytes as are read and written at least. */
bool attn_bench_quant(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);

/* ---- cascades (cascade.c) -------------------------------------------------------------- */

/* desc: len_kv keys that all sequences have in common; each has some of its own, which are added. */
bool attn_bench_cascade(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                        attn_bench_result *result);

/* ---- over ranks (ring.c, ranks.c) ------------------------------------------------------ */

bool attn_bench_ring(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);

/* Ranks are this process and others, in place of threads: an attn_engine of theirs, and its name. */
struct attn_engine;
void attn_bench_ring_over(const struct attn_engine *engine, const char *name);

/* NULL: threads. Rank 0 alone shows and keeps results. */
const struct attn_engine *attn_bench_ring_engine(void);

/* The share of one rank's speed that each of them has. */
double attn_bench_rank_share(const attn_bench_result *result);

/* ---- tiles (tiles.c) ----------------------------------------------------------------- */

/* The planner's choice against the best of all. */
bool attn_bench_tiles(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);

/* ---- bytes (bytes.c) ----------------------------------------------------------------- */

/* Has ncu run this command, whose words these are, once more and count the bytes of all cases that are on a GPU. */
bool attn_bench_bytes_prepare(const attn_bench_case *cases, int count, int words, char **word);

/* What ncu sees: each of them run once. */
bool attn_bench_once(const attn_bench_case *cases, int count);

/* A case, of those on a GPU the next one that was counted. */
bool attn_bench_bytes(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result);
bool attn_bench_theorem(const attn_bench_case *item, attn_bench_result *result);

/* ---- memory (memory.c) --------------------------------------------------------------- */

/* Memory of forward and backward, beside standard attention's. workspace: ours. */
bool attn_bench_memory(const attn_bench_case *item, const attn_bench_peers *peers, uint64_t workspace,
                       attn_bench_result *result);

/* P and dS of all heads: what standard attention holds besides its tensors (standard.c). */
int64_t attn_bench_standard_bytes(const attn_desc *desc);

/* Computes it once on OpenBLAS, in f32. */
bool attn_bench_standard_run(const attn_desc *desc);

/* Has OpenBLAS make its own buffers. */
void attn_bench_standard_warm_up(void);

/* ---- output (output.c) --------------------------------------------------------------- */

void attn_bench_table_header(FILE *file);
void attn_bench_table_row(FILE *file, const attn_bench_case *item, const attn_bench_result *result);

/* What a case has besides the mask: "softcap+dropout". */
enum { ATTN_BENCH_VARIANT = 96 };
const char *attn_bench_variant(const attn_bench_case *item, char text[ATTN_BENCH_VARIANT]);

/* (greatest - least) / median. */
double attn_bench_spread(attn_bench_times times);

/* The peer's time over ours; of memory: its peak over ours, or where not both were measured its count over ours. 0
 * without a peer. */
double attn_bench_ratio(const attn_bench_case *item, const attn_bench_result *result);
void attn_bench_json_row(FILE *file, const attn_bench_case *item, const attn_bench_result *result);

/* ---- CSV (csv.c) --------------------------------------------------------------------- */

/* The text of a results file with these rows, to be freed: those of the file as it is, if there is one, but for old
 * rows that measure the same thing. NULL after a failure, which it has reported. */
char *attn_bench_csv_text(const char *path, const char *machine, const attn_bench_case *items,
                          const attn_bench_result *results, int count, size_t *size);

#endif
