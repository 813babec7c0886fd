/* The emulated GPU itself: a warp's products and matrices, copies by threads, arrivals. Each kernel writes down what
 * it got; what is right is computed here without the fragments' layouts. */
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

static int failures;

static void expect(bool holds, const char *what)
{
    if (!holds) failures++, fprintf(stderr, "emulated machine: %s\n", what);
}

static void run(const char *name, unsigned blocks, unsigned threads, unsigned bytes, void (*entry)(const void *))
{
    gpu_grid grid = { { blocks, 1, 1 }, { threads, 1, 1 }, 1, bytes, name, entry, nullptr };
    gpu_run(&grid);
}

/* ---- products: A by ldmatrix, B stored as k x n by ldmatrix.trans ----------------------------- */

alignas(16) static unsigned short a[16][16], b[16][16];
static float product[16][16];

template <int dtype> static void multiply(const void *)
{
    u32 memory = shared_address(gpu_shared_memory());
    int lane = (int)threadIdx.x, row = lane % 16, half = lane / 16;
    copy_async(memory + 32 * row + 16 * half, &a[row][8 * half], 16);
    copy_async(memory + 512 + 32 * row + 16 * half, &b[row][8 * half], 16);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    u32 left[4], right[4];
    ldmatrix_x4(left, memory + 32 * row + 16 * half);
    ldmatrix_x4_trans(right, memory + 512 + 32 * row + 16 * half);
    for (int n = 0; n < 2; n++) {
        float sums[4] = { 1, 1, 1, 1 };
        warp_mma<dtype>(sums, left, right + 2 * n);
        for (int i = 0; i < 4; i++)
            product[lane / 4 + i / 2 * 8][8 * n + lane % 4 * 2 + i % 2] = sums[i];
    }
}

template <int dtype> static void test_product()
{
    int left[16][16], right[16][16];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            left[i][j] = rand() % 17 - 8, right[i][j] = rand() % 17 - 8;
            a[i][j] = (unsigned short)pack_as(dtype, (float)left[i][j], 0);
            b[i][j] = (unsigned short)pack_as(dtype, (float)right[i][j], 0);
        }
    run("multiply", 1, 32, 1024, multiply<dtype>);
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            int sum = 1;
            for (int k = 0; k < 16; k++)
                sum += left[r][k] * right[k][c];
            expect(product[r][c] == (float)sum, "a product is wrong");
        }
}

/* ---- copies ------------------------------------------------------------------------------------ */

enum { COPIES = 6 };
static const unsigned NOT_YET = ~0u;
alignas(16) static unsigned source[32][COPIES][4];
static unsigned at_once[32][COPIES], waited[32][COPIES], last[32][COPIES][4];

/* Copy i takes 4(i % 5) bytes, in a group of its own; the wait leaves two groups. */
static void copy(const void *)
{
    unsigned(*memory)[COPIES][4] = (unsigned(*)[COPIES][4])gpu_shared_memory();
    int lane = (int)threadIdx.x;
    for (int i = 0; i < COPIES; i++) {
        memset(memory[lane][i], 0, 16);
        copy_async(shared_address(memory[lane][i]), source[lane][i], (u32)(4 * (i % 5)));
        at_once[lane][i] = memory[lane][i][0];
        copy_async_commit();
    }
    copy_async_wait<2>();
    for (int i = 0; i < 8; i++) /* time for copies to come */
        __syncwarp();
    for (int i = 0; i < COPIES; i++)
        waited[lane][i] = memory[lane][i][0];
    copy_async_wait<0>();
    memcpy(last[lane], memory[lane], sizeof last[lane]);
}

static void test_copies()
{
    int early = 0, late = 0;
    for (int repeat = 0; repeat < 20; repeat++) {
        for (auto &lane : source)
            for (auto &piece : lane)
                for (unsigned &word : piece)
                    word = (unsigned)rand();
        run("copy", 1, 32, sizeof source, copy);
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < COPIES; i++) {
                unsigned first = i % 5 ? source[lane][i][0] : 0;
                expect(at_once[lane][i] == NOT_YET, "a copy is read before any wait");
                expect(waited[lane][i] == first || (i >= COPIES - 2 && waited[lane][i] == NOT_YET),
                       "a wait came back early");
                if (i >= COPIES - 2) *(waited[lane][i] == NOT_YET ? &late : &early) += 1;
                for (int j = 0; j < 4; j++)
                    expect(last[lane][i][j] == (j < i % 5 ? source[lane][i][j] : 0), "a copy is wrong");
            }
    }
    expect(early > 0 && late > 0, "copies that nobody waits for come always, or never");
}

/* ---- arrivals ---------------------------------------------------------------------------------- */

enum { BLOCKS = 5 };
static u64 arrivals;
static int written[BLOCKS], lasts, seen, who;

static void arrive(const void *)
{
    __syncthreads();
    if (threadIdx.x) return;
    written[blockIdx.x] = 1;
    if (add_acq_rel(&arrivals, 1) != BLOCKS - 1) return;
    lasts++, who = (int)blockIdx.x;
    for (int i = 0; i < BLOCKS; i++)
        seen += written[i];
}

static void test_arrivals()
{
    bool others = false;
    for (int repeat = 0; repeat < 20; repeat++) {
        arrivals = 0, lasts = seen = 0;
        memset(written, 0, sizeof written);
        run("arrive", BLOCKS, 32, 16, arrive);
        expect(lasts == 1 && seen == BLOCKS, "not exactly one block is the last, after all others");
        others |= who != BLOCKS - 1;
    }
    expect(others, "blocks always arrive in their order");
}

/* ---- loads that a copy overtakes ----------------------------------------------------------------- */

alignas(16) static unsigned fresh[4];

/* Lane 0 has a piece copied that another lane has just loaded. */
template <bool fenced> static void overtake(const void *)
{
    u32 memory = shared_address(gpu_shared_memory()), words[4];
    if (threadIdx.x == 0) barrier_init(memory + 16, 1);
    __syncwarp();
    if (threadIdx.x == 1) load_shared_words(memory, words);
    if (fenced) fence_async();
    __syncwarp();
    if (threadIdx.x) return;
    barrier_expect(memory + 16, 16);
    bulk_load(memory, fresh, 16, memory + 16);
    barrier_wait(memory + 16, 0);
}

template <bool fenced> static bool dies()
{
    pid_t child = fork();
    if (child == 0) {
        if (!fenced) fclose(stderr);
        run("overtake", 1, 32, 32, overtake<fenced>);
        _exit(0);
    }
    int status = 0;
    expect(child > 0 && waitpid(child, &status, 0) == child, "no process for a kernel that may die");
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_overtaking()
{
    expect(dies<false>(), "a copy may overtake a load");
    expect(!dies<true>(), "a fenced load counts as one that is under way");
}

int main()
{
    for (int i = 0; i < 20; i++)
        test_product<BF16>(), test_product<F16>();
    test_copies();
    test_arrivals();
    test_overtaking();
    if (!failures) puts("emulated machine: all right");
    return failures != 0;
}
