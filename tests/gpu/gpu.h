/* What the parts of attn_test_gpu share. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "check/compare.h"
#include "cuda/sm90/host/backward.h"

enum { WATCHDOG_SECONDS = 120 }; /* of alarm(), around what runs on the GPU */

extern int failures, checks;
extern char watched[400]; /* what the watchdog says that hangs */
extern const attn_cuda_driver *driver;
extern check_by reference_by; /* what computes the reference: of problems that are not small the GPU, where it can */

/* Counts a check. The first that fail are shown. */
__attribute__((format(printf, 2, 3))) void result(bool right, const char *format, ...);

/* ---- a problem for one kernel (problem.c) -------------------------------------------------- */

/* Of a problem's number. */
check_options options_of(int number);

/* A problem whose shape and flags are given, of the kernel's type; where they are 0 also its dims, type of keys and
 * pages. */
attn_desc fit_kernel(const attn_cuda_kernel *k, attn_desc desc, const check_options *options);

/* Runs and judges such a problem. At addresses that TMA takes. `parts`: some keys must be split. */
void check_kernel(const attn_cuda_kernel *k, attn_desc desc, check_options options, bool parts);

/* A problem over pages of so many slots, in place of contiguous keys. */
void set_pages(attn_desc *d, int64_t size);

/* ---- what is tested of each kernel --------------------------------------------------------- */

/* Of what goes round in the ring (keys; in the backward rows): one less, none and one more than 0, 1, 2, stages - 1,
 * stages and stages + 1 tiles; of the others around one tile and two; in turn without a mask, causal, with used lengths
 * and packed, and in a fixed order or not. Spikes after a tile of few keys are what an unchecked max overflows by. */
void lengths(const attn_cuda_kernel *k);

/* Bits and block lists of several sizes, some kernels' own path and some not, over more KV tiles than a walk looks at
 * at once: kernels that take them. */
void bits_and_lists(const attn_cuda_kernel *k);

/* Packed sequences whose starts are out of range (starts.c): kernels that take packed ones. */
void starts_out_of_range(const attn_cuda_kernel *k);

/* Masks that leave rows keys side by side, and intervals that do not: kernels of spans (spans.c). */
void masks_of_spans(const attn_cuda_kernel *k);

/* Tensors that are copied first: 2 to 14 bytes beside multiples of 16, some in rows of no whole 16 bytes. */
void odd_addresses(const attn_cuda_kernel *k);

/* Keys, and queries, of a byte whose scales are as usual, and beyond what the kernel's type holds: kernels of the
 * forward that take them widened. */
void scales_of_bytes(const attn_cuda_kernel *k);

/* Keys of a byte of which rows see a few in the midst: neither first nor last KV tile begins or ends there. */
void windows_of_bytes(const attn_cuda_kernel *k);

/* What the forward's Q tiles do besides (forward.c), and the backward's work items (backward.c). */
void forward_tiles(const attn_cuda_kernel *k);
void backward_schedules(const attn_cuda_kernel *k);

/* The same of decode kernels: lengths, numbers of sequences, and the bits of split-keys in other batches (decode.c). */
void decode_lengths(const attn_cuda_kernel *k);
void decode_sequences(const attn_cuda_kernel *k);
void decode_batches(const attn_cuda_kernel *k);

/* Kernels of E4M3: random cases, and 2048 and 131072 keys, whose errors are shown (bytes.c). */
void bytes(const attn_cuda_kernel *k, int cases, bool large);

/* ---- what is tested of a direction (alike.c) ----------------------------------------------- */

/* In each mask and head dim the same bits, however often and wherever it is run. */
void alike(attn_direction direction, int repeat);

/* ---- what is tested of caches of keys, of merging and of quantisation ------------------------- */

void operations_on_pages(void); /* pages.c */
void paged_keys(void);          /* paged.c */
void merges(void);              /* merge.c */
void quantisation(void);        /* quant.c */
void cascades(int count);       /* cascade.c: so many random batches */
void pages_alike(void);         /* alike.c: graphs that are replayed while lengths and tables change */

/* Shown, not judged: a plan once its kernels are loaded, and a run, in microseconds. */
void host_times(attn_direction direction);

#endif
