/* A multiprocessor on the CPU: runs the Hopper kernels' own source, so that what they compute, and the order in which
 * their warps wait for each other, is tested where there is no GPU. Slow, and says nothing of speed.
 *
 * Every CUDA thread is a fiber. A warp's lanes run one after another up to a collective operation; which warp is next
 * is drawn at random, and now and then one is kept waiting for a long while, or a block begins when another one has
 * ended, so that orders come up that hardware rarely shows. What hardware does asynchronously happens at random between
 * the earliest and the latest moment that it may: copies, in any order, until who waits for them cannot go on without;
 * products at their commit or at the wait for them. Memory is sequentially consistent: of missing fences only those are
 * found after which TMA might overtake an ordinary load.
 *
 * What a kernel must not do ends the process with a message: lanes of a warp, or warps of a warpgroup, at different
 * collective operations, too many arrivals at a barrier, addresses outside shared memory, threads that all wait, copies
 * by TMA to where a thread has loaded by ordinary instructions, without a fence or a product since.
 *
 * EMULATED_GPU_SEED: other orders; each launch has its own. One launch at a time; blocks with dynamic shared memory are
 * all resident. */
#ifndef TESTS_EMULATED_GPU_MACHINE_H
#define TESTS_EMULATED_GPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

typedef struct gpu_dim {
    unsigned x, y, z;
} gpu_dim;

/* ---- launching ----------------------------------------------------------------------------- */

typedef struct gpu_grid {
    gpu_dim blocks, threads;
    unsigned cluster, shared_bytes;
    const char *symbol;
    void (*entry)(const void *params); /* the kernel */
    const void *params;
} gpu_grid;

void gpu_run(const gpu_grid *grid);

/* ---- what threads know --------------------------------------------------------------------- */

typedef struct gpu_place {
    gpu_dim thread, block;
    int lane, warp; /* of the block */
} gpu_place;

extern const gpu_place *gpu_here;     /* of the thread that runs */
extern const gpu_grid *gpu_grid_here; /* of the launch */

/* ---- collective operations ----------------------------------------------------------------- */

typedef enum gpu_vote {
    GPU_SYNC,
    GPU_SHUFFLE,
    GPU_BALLOT,
    GPU_LEAST,
    GPU_GREATEST,
    GPU_MULTIPLY,
    GPU_LOAD,
} gpu_vote;

/* All lanes of the warp meet; what each gets: SHUFFLE: `value` of lane `from`; BALLOT: the mask of lanes where it is
 * not 0; LEAST, GREATEST: of signed ints. */
uint32_t gpu_warp(gpu_vote vote, uint32_t value, int from);

/* Named barrier `id`: `threads` of the block meet; whether `holds` for all. threads 0: all that have not ended. */
bool gpu_meet(int id, int threads, bool holds);
void gpu_arrive(int id, int threads); /* the same without waiting for the others */
void gpu_meet_cluster(void);

/* Lets others run: between looks at what another block changes. */
void gpu_yield(void);

/* ---- shared memory and barriers ------------------------------------------------------------- */

/* Addresses count from the block's window; gpu_peer makes those of other blocks of the cluster. */
unsigned char *gpu_shared_memory(void);
uint32_t gpu_shared_address(const void *pointer);
void *gpu_at(uint32_t address, uint32_t bytes, uint32_t aligned);
const void *gpu_load(uint32_t address, uint32_t bytes); /* gpu_at, of what an ordinary load reads */
void gpu_fence_async(void);
uint32_t gpu_rank(void);
uint32_t gpu_peer(uint32_t address, uint32_t rank);

void gpu_barrier_init(uint32_t barrier, int arrivals);
void gpu_barrier_arrive(uint32_t barrier, uint32_t expected_bytes);
void gpu_barrier_expect(uint32_t barrier, uint32_t bytes); /* no arrival */
void gpu_barrier_wait(uint32_t barrier, uint32_t parity);
bool gpu_barrier_test(uint32_t barrier, uint32_t parity); /* whether one need not wait */

/* ---- what happens later -------------------------------------------------------------------- */

void gpu_load_tensor(uint32_t to, const void *map, uint32_t barrier, const int at[4]);
void gpu_load_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier); /* from memory of any kind */
void gpu_send(uint32_t to, const void *data, uint32_t bytes, uint32_t barrier);      /* of data as it is now */
void gpu_store_tensor(const void *map, uint32_t from, const int at[4]);
void gpu_store_bulk(float *to, uint32_t from, uint32_t bytes);
void gpu_add_bulk(float *to, uint32_t from, uint32_t bytes);
void gpu_wait_bulk(int newer); /* for the thread's stores and additions but the `newer` last ones */
void gpu_wait_bulk_read();     /* until they have read shared memory */

/* A thread's copy of 16 bytes, of which those after the first `bytes` become zeros. Until it waits, what is there is no
 * number. gpu_wait_copies: for the thread's groups but the `newer` last ones. */
void gpu_copy(uint32_t to, const void *from, uint32_t bytes);
void gpu_copy_word(uint32_t to, const void *from, uint32_t bytes); /* the same of 4 bytes */
void gpu_commit_copies(void);
void gpu_wait_copies(int newer);

/* Operands of a product of a warpgroup: 64 x n x 16, of E4M3 x 32 and none ALONG. Bits of `form`. */
enum { GPU_A_REGISTERS = 1, GPU_A_ALONG = 2, GPU_B_ALONG = 4 }; /* ALONG: rows, or columns, along the line */

void gpu_product(int form, int dtype, int n, float *sums, uint64_t a, const uint32_t *words, uint64_t b, int keep);
void gpu_commit(void);
void gpu_wait(int pending);

/* Of a warp: sums 16 x 8 += A 16 x 16 by B 16 x 8. */
void gpu_warp_product(int dtype, float *sums, const uint32_t *a, const uint32_t *b);

/* Of four 8 x 8 matrices, with the whole warp. */
void gpu_store_matrices(uint32_t address, const uint32_t *words);
void gpu_load_matrices(uint32_t address, uint32_t *words);
void gpu_load_transposed(uint32_t address, uint32_t *words);

#endif
