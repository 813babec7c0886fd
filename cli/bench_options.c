/* attn bench: its options, read and settled. */
#include <stdio.h>
#include <string.h>

#include "attn_parallel.h"
#include "base/error.h"
#include "bench_options.h"
#include "device/device.h"
#include "command.h"
#include "options.h"

/* Each word between commas to `parse`, which fills `word_value`; `take` keeps it. */
static attn_status parse_list(const char *text, attn_option_parse *parse, void *word_value,
                              attn_status (*take)(void *list, const void *word_value), void *list)
{
    for (const char *at = text;;) {
        char word[64];
        size_t length = strcspn(at, ",");
        if (length >= sizeof word) return attn_fail(ATTN_INVALID, "has a word of %zu characters", length);
        memcpy(word, at, length);
        word[length] = 0;
        attn_status status = parse(word, word_value);
        if (!status) status = take(list, word_value);
        if (status || !at[length]) return status;
        at += length + 1;
    }
}

static attn_status take_number(attn_bench_list *list, int64_t value)
{
    if (list->count == ATTN_BENCH_LIST_MOST)
        return attn_fail(ATTN_INVALID, "takes at most %d values", ATTN_BENCH_LIST_MOST);
    list->values[list->count++] = value;
    return ATTN_OK;
}

static attn_status take_count(void *list, const void *value)
{
    return take_number(list, *(const int64_t *)value);
}

static attn_status take_threads(void *list, const void *value)
{
    return take_number(list, *(const int32_t *)value);
}

static attn_status take_dtype(void *list, const void *value)
{
    const attn_dtype *dtype = value;
    return take_number(list, *dtype);
}

static attn_status take_suite(void *suites, const void *value)
{
    *(int *)suites |= *(const int *)value;
    return ATTN_OK;
}

static attn_status parse_suite(const char *text, void *value)
{
    *(int *)value = attn_bench_suite_find(text);
    return *(int *)value ? ATTN_OK : attn_fail(ATTN_INVALID, "'%s' is not one of " ATTN_BENCH_SUITES(" "), text);
}

static attn_status parse_suites(const char *text, void *value)
{
    int suite = 0;
    *(int *)value = 0;
    return parse_list(text, parse_suite, &suite, take_suite, value);
}

static attn_status parse_counts(const char *text, void *value)
{
    int64_t count;
    return parse_list(text, attn_parse_count, &count, take_count, value);
}

static attn_status parse_threads(const char *text, void *value)
{
    int32_t threads;
    return parse_list(text, attn_parse_threads, &threads, take_threads, value);
}

static attn_status parse_dtypes(const char *text, void *value)
{
    attn_dtype dtype;
    return parse_list(text, attn_parse_any_dtype, &dtype, take_dtype, value);
}

const char *attn_bench_peer_name(attn_bench_peer peer)
{
    static const char *const names[] = { "openblas", "torch", "none", "cudnn",      "fa2",      "math",
                                         "flex",     "fa3",   "fa4",  "flashinfer", "efficient" };
    return (unsigned)peer < sizeof names / sizeof *names ? names[peer] : NULL;
}

static attn_status parse_peer(const char *text, void *value)
{
    for (int i = 0; attn_bench_peer_name((attn_bench_peer)i); i++)
        if (strcmp(text, attn_bench_peer_name((attn_bench_peer)i)) == 0)
            return *(attn_bench_peer *)value = (attn_bench_peer)i, ATTN_OK;
    return attn_fail(ATTN_INVALID,
                     "takes openblas, torch or none; on a GPU cudnn, fa2, efficient, math, flex, fa3, fa4, "
                     "flashinfer or none");
}

static attn_status take_peer(void *list, const void *value)
{
    const attn_bench_peer peer = *(const attn_bench_peer *)value;
    const attn_bench_list *peers = list;
    for (int i = 0; i < peers->count; i++)
        if (peers->values[i] == peer) return attn_fail(ATTN_INVALID, "names %s twice", attn_bench_peer_name(peer));
    return take_number(list, peer);
}

static attn_status parse_peers(const char *text, void *value)
{
    attn_bench_peer peer = ATTN_PEER_NONE;
    return parse_list(text, parse_peer, &peer, take_peer, value);
}

static attn_status parse_repeat(const char *text, void *value)
{
    attn_status status = attn_parse_count(text, value);
    if (status || *(int64_t *)value <= ATTN_BENCH_ROUNDS_MOST) return status;
    return attn_fail(ATTN_INVALID, "takes 1 to %d", ATTN_BENCH_ROUNDS_MOST);
}

static attn_status parse_pause(const char *text, void *value)
{
    attn_status status = attn_parse_positive(text, value);
    if (status || *(float *)value <= 60.0f) return status;
    return attn_fail(ATTN_INVALID, "takes a number above 0, to 60");
}

#define AT(field) offsetof(attn_bench_options, field)

static const attn_option options[] = {
    { "suite", 0, "LIST", parse_suites, AT(suites), ATTN_BENCH_SUITES("\n") " (prefill)" },
    { "threads", 't', "LIST", parse_threads, AT(threads), "threads to measure with (1 and all processors)" },
    { "dtype", 0, "LIST", parse_dtypes, AT(dtypes), "f32, f16, bf16, e4m3 (f32; decode: all of them)" },
    { "kv-dtype", 0, "TYPE", attn_parse_bytes, AT(kv_dtype), "decode: keys and values of e4m3 or i8 under --dtype" },
    { "dim", 0, "LIST", parse_counts, AT(dims), "head dims (64,128; as the suite says)" },
    { "len", 0, "LIST", parse_counts, AT(lens), "rows and keys; decode: keys (as the suite says)" },
    { "heads", 0, "Q[/KV]", attn_parse_heads, AT(heads), "query and KV heads (12 for dim 64, 8 for 128; decode 32/8)" },
    { "kernel", 0, "NAME", attn_parse_text, AT(kernel),
      "the kernel (attn kernels) in place of the planner's\nchoice; for suites of forwards" },
    { "block-scales", 0, NULL, attn_parse_switch, AT(block_scales),
      "prefill of e4m3 on a GPU: a scale per 64 rows of q\nand k, and per channel of v" },
    { "only", 0, "TEXT", attn_parse_text, AT(only),
      "of the suites, cases in whose pass, mask and changes\nthe text is: 'fwd full bias'" },
    { "isa", 0, "NAME", attn_parse_isa, AT(isa), "auto, portable, avx2, avx512, avx512bf16, amx or neon (auto)" },
    { "ranks", 0, "N", attn_parse_count, AT(ranks), "ring: so many, which are threads (2)" },
    { "device", 0, "NAME", attn_parse_device, AT(on), "cpu, or cuda: the first GPU (cpu)" },
    { "peer", 0, "LIST", parse_peers, AT(peers),
      "openblas (f32 only), torch, none (openblas); on a GPU\ncudnn, fa2, efficient, math, flex, fa3, fa4,\n"
      "flashinfer, all through PyTorch, none (cudnn); of several\neach takes its turn beside each case" },
    { "peer-library", 0, "FILE", attn_parse_text, AT(peer_library),
      "another build of libattn as the peer, both in this process: the shared library" },
    { "fa3", 0, "PATH", attn_parse_text, AT(fa3),
      "for --peer fa3: the folder of a built\nflash_attn_interface (Python's package fa3-fwd)" },
    { "python", 0, "FILE", attn_parse_text, AT(python), "the Python that has PyTorch, for --peer torch (python3)" },
    { "repeat", 0, "N", parse_repeat, AT(repeat), "rounds, of which the median counts (7)" },
    { "min-time", 0, "SECONDS", attn_parse_positive, AT(min_time), "least length of a turn (0.1)" },
    { "pause", 0, "SECONDS", parse_pause, AT(pause),
      "pause before a turn (0.02): other software's threads\nspin so long after their work; a GPU's clock falls after\n"
      "some seconds at full power, and recovers in a pause" },
    { "full", 0, NULL, attn_parse_switch, AT(full), "prefill, bwd, fwdbwd: 8192 rows too" },
    { "csv", 0, "FILE", attn_parse_text, AT(csv),
      "write the results to a CSV file; they replace older\nones of the same problems" },
    { "machine", 0, "NAME", attn_parse_text, AT(machine), "the machine's name there (the file's name without .csv)" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print JSON" },
    { "once", 0, NULL, attn_parse_switch, AT(once),
      "run each case of the suite bytes once, for a profiler; print nothing" },
    { "smoke", 0, NULL, attn_parse_switch, AT(smoke),
      "every suite on tiny problems, some seconds: does it measure at all?" },
};

static const attn_command command = {
    "bench",
    "measure against limits and peers",
    "[options]",
    options,
    sizeof options / sizeof *options,
    "Subject, peer and limits take turns, round after round; medians are shown. GFLOP/s count 2 pairs (dim_qk + "
    "dim_v)\n"
    "over exactly the visible pairs (backward: 2.5 times as many), GB/s the keys and values once per KV head. "
    "\"limit\" "
    "is\n"
    "the share of what the machine can do, measured in the same rounds on as many threads: the peak of multiply-adds "
    "in\n"
    "the kernel's instruction set, and for decode read bandwidth, if that is less. \"ratio\" is the peer's time over "
    "ours.\n"
    "\n"
    "  attn bench                                          prefill against OpenBLAS\n"
    "  attn bench --suite all --csv bench/results/zen3.csv everything, kept\n"
    "  attn bench --suite bwd,fwdbwd --dtype bf16 --heads 16 --len 512,2048,8192 --peer torch\n"
    "  attn bench --suite decode --threads 2 --dtype bf16\n"
    "  attn bench --device cuda --csv bench/results/h200.csv  forward on a GPU against cuDNN\n"
    "  attn bench --device cuda --suite bwd,fwdbwd,shapes,window --peer cudnn,flex\n"
    "  attn bench --device cuda --suite features --peer cudnn,fa2,efficient,flex\n"
    "  attn bench --device cuda --suite decode --peer flashinfer --pause 0.25\n",
};

/* ---- settled ------------------------------------------------------------------------------------- */

static bool only_commas_lack(const char *text)
{
    return !strpbrk(text, ",\"\\\n");
}

static void name_machine(attn_bench_options *o)
{
    const char *slash = o->csv ? strrchr(o->csv, '/') : NULL;
    snprintf(o->device, sizeof o->device, "%s",
             o->machine ? o->machine
             : slash    ? slash + 1
             : o->csv   ? o->csv
                        : "unnamed");
    size_t length = strlen(o->device);
    if (!o->machine && length > 4 && strcmp(o->device + length - 4, ".csv") == 0) o->device[length - 4] = 0;
}

/* The first of the named suites that is asked for, or NULL. names: end with NULL. */
static const char *asked_of(const attn_bench_options *o, const char *const names[])
{
    while (*names && !(o->suites & attn_bench_suite_find(*names)))
        names++;
    return *names;
}

/* Suites whose cases another library takes a turn in. */
static bool library_takes(const attn_bench_options *o)
{
    static const char *const others[] = { "memory",     "cascade", "pool",  "append",  "quant", "ring",
                                          "strategies", "tiles",   "bytes", "theorem", NULL };
    const char *other = asked_of(o, others);
    if (other)
        return attn_bench_fail("--peer-library: the suite %s has no peer that could be a library; leave it out", other);
    if (!only_commas_lack(o->peer_library))
        return attn_bench_fail("--peer-library %s: takes a name without commas and quotes", o->peer_library);
    return !o->peers.count || attn_bench_fail("--peer-library and --peer: one peer at a time");
}

/* Suites that have sizes of their own on a GPU. */
static bool sizes_are_taken(const attn_bench_options *o)
{
    static const char *const fixed[] = { "shapes", "window", "paged", "append", "memory", "bytes", NULL };
    const char *suite = asked_of(o, fixed);
    if (o->on != ATTN_CUDA || !suite || (!o->lens.count && !o->dims.count)) return true;
    return attn_bench_fail("--%s: the suite %s has sizes of its own on a GPU; name others by --suite",
                           o->lens.count ? "len" : "dim", suite);
}

/* Ranks that are processes share the suite of ranks alone. */
static bool ranks_are_taken(const attn_bench_options *o)
{
    enum { MOST = 1024 };
    const attn_engine *engine = attn_bench_ring_engine();
    int ring = attn_bench_suite_find("ring");
    if (o->ranks && !(o->suites & ring)) return attn_bench_fail("--ranks %d: goes with --suite ring", (int)o->ranks);
    if (o->ranks > MOST) return attn_bench_fail("--ranks %lld: takes 1 to %d", (long long)o->ranks, MOST);
    if (engine && o->suites != ring) return attn_bench_fail("over processes: takes --suite ring alone");
    if (engine && o->ranks && o->ranks != engine->ranks)
        return attn_bench_fail("--ranks %d: here are %d processes", (int)o->ranks, (int)engine->ranks);
    return true;
}

static bool check(const attn_bench_options *o)
{
    bool fa3 = false;
    if (!ranks_are_taken(o)) return false;
    if (!sizes_are_taken(o)) return false;
    if (o->peer_library && !library_takes(o)) return false;
    if (!only_commas_lack(o->device))
        return attn_bench_fail("machine = %s: takes a name without commas and quotes", o->device);
    if (o->csv && o->smoke) return attn_bench_fail("--smoke keeps no results: leave out --csv");
    if (o->csv && o->repeat < ATTN_BENCH_ROUNDS_LEAST)
        return attn_bench_fail("--repeat %d: results for --csv take at least %d rounds", (int)o->repeat,
                               ATTN_BENCH_ROUNDS_LEAST);
    for (int i = 0; i < o->peers.count; i++) {
        attn_bench_peer peer = (attn_bench_peer)o->peers.values[i];
        if (o->on == ATTN_CPU && peer > ATTN_PEER_NONE)
            return attn_bench_fail("--peer %s needs --device cuda", attn_bench_peer_name(peer));
        if (o->on == ATTN_CUDA && peer < ATTN_PEER_NONE)
            return attn_bench_fail("--peer %s: it does not compute on a GPU", attn_bench_peer_name(peer));
        if (peer == ATTN_PEER_NONE && o->peers.count > 1)
            return attn_bench_fail("--peer none: takes no other beside it");
        fa3 = fa3 || peer == ATTN_PEER_FA3;
    }
    if (o->fa3 && !fa3) return attn_bench_fail("--fa3 %s: goes with --peer fa3", o->fa3);
    if (o->fa3 && strpbrk(o->fa3, " \t\n")) return attn_bench_fail("--fa3 %s: takes a path without blanks", o->fa3);
    if (o->dtypes.count && o->suites & attn_bench_suite_find("fp8"))
        return attn_bench_fail("--dtype: the suite fp8 has types of its own");
    if (o->kv_dtype && o->suites != attn_bench_suite_find("decode"))
        return attn_bench_fail("--kv-dtype %s: goes with --suite decode", attn_dtype_name(o->kv_dtype));
    bool of_bytes = o->on == ATTN_CUDA && o->dtypes.count == 1 && o->dtypes.values[0] == ATTN_E4M3;
    if (o->block_scales && !(of_bytes && o->suites == attn_bench_suite_find("prefill")))
        return attn_bench_fail("--block-scales: goes with --device cuda, --dtype e4m3 and the suite prefill");
    if (o->on == ATTN_CUDA && (o->isa != ATTN_ISA_AUTO || o->threads.count))
        return attn_bench_fail("--device cuda takes no --isa and no --threads");
    if (o->isa != ATTN_ISA_AUTO && !attn_isa_available(o->isa))
        return attn_bench_fail("--isa %s: this machine or build does not run it", attn_isa_name(o->isa));
    return true;
}

int attn_bench_options_start(int argc, char **argv, attn_bench_options *o)
{
    *o = (attn_bench_options){ .repeat = 7, .min_time = 0.1f, .pause = 0.02f };
    int code = attn_options_start(&command, argc, argv, o);
    if (code != ATTN_OPTIONS_READY) return code;
    if (!o->suites) o->suites = attn_bench_suite_find(o->smoke ? "all" : "prefill");
    if (o->smoke) {
        o->repeat = 3;
        o->min_time = 1e-4f;
        if (!o->threads.count && o->on == ATTN_CPU) take_number(&o->threads, 1);
    }
    name_machine(o);
    if (!check(o)) return ATTN_EXIT_USAGE;
    if (o->on == ATTN_CUDA && device_open() != ATTN_OK) return attn_bench_fail("%s", attn_error()), ATTN_EXIT_FAILURE;
    if (!o->peers.count)
        take_number(&o->peers, o->peer_library      ? ATTN_PEER_NONE
                               : o->on == ATTN_CUDA ? ATTN_PEER_CUDNN
                                                    : ATTN_PEER_OPENBLAS);
    return code;
}
