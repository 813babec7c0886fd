/* Contract: machine.h. Threads, who runs when, and how they meet. */
#include "inside.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

thread *running;
const gpu_place *gpu_here;
const gpu_grid *gpu_grid_here;

static const size_t STACK = 128 << 10;
static const uint64_t IDLE_MOST = 4000000; /* turns in which threads only look whether something has changed */

static jmp_buf scheduler;
static std::vector<block> blocks; /* those resident */
uint64_t turn;
static uint64_t idle, random_state;
static int live_threads;
static bool interrupted; /* the warp that runs has fallen asleep at once */

[[noreturn]] void die(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "emulated GPU: %s: ", gpu_grid_here ? gpu_grid_here->symbol : "");
    if (running) fprintf(stderr, "block %u, thread %u: ", running->place.block.x, running->place.thread.x);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    abort();
}

uint32_t random_below(uint32_t count)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) * count >> 32);
}

/* ---- switching ----------------------------------------------------------------------------- */

void leave()
{
    if (!_setjmp(running->on->state)) _longjmp(scheduler, 1);
}

static uint32_t bit_of(const thread *t)
{
    return 1u << t->place.lane;
}

void wait_here(const char *what, uint32_t at)
{
    running->waits_for = what, running->waits_at = at;
    running->crew->ready &= ~bit_of(running);
    leave();
}

void wake(thread *t)
{
    t->crew->ready |= bit_of(t);
}

void gpu_yield(void)
{
    running->yielded = true;
    leave();
}

/* A multiprocessor is free for the next cluster of those that come late. */
static void begin_late()
{
    for (block &b : blocks) {
        if (!b.late) continue;
        for (unsigned i = 0; i < gpu_grid_here->cluster; i++)
            b.first[i].late = false;
        return;
    }
}

static void end(thread *t)
{
    t->crew->live &= ~bit_of(t), t->crew->ready &= ~bit_of(t);
    live_threads--;
    if (--t->home->live == 0) begin_late();
    if (t->crew->arrived && t->crew->arrived == t->crew->live) die("ended while the rest of its warp waits for it");
}

static fiber *made; /* the one that begins */

static void fiber_main()
{
    for (fiber *own = made;;) {
        if (!_setjmp(own->state)) _longjmp(scheduler, 1);
        gpu_grid_here->entry(gpu_grid_here->params);
        end(running);
    }
}

/* The resident thread's. Fibers live as long as the process, since to begin one takes system calls. Their stacks lie so
 * that those of a warp do not share the same few lines of a cache. */
static fiber *fiber_of(size_t index)
{
    static std::vector<fiber *> fibers;
    while (fibers.size() <= index) {
        ucontext_t start;
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) die("no memory for stacks");
        fibers.push_back(made = new fiber);
        getcontext(&start);
        start.uc_stack.ss_sp = stack, start.uc_stack.ss_size = STACK - (fibers.size() % 64) * 576;
        makecontext(&start, fiber_main, 0);
        if (!_setjmp(scheduler)) setcontext(&start);
    }
    return fibers[index];
}

static void resume(thread *t)
{
    running = t, gpu_here = &t->place;
    if (!_setjmp(scheduler)) _longjmp(t->on->state, 1);
}

/* ---- who runs ------------------------------------------------------------------------------ */

/* One that can run, at random; one that sleeps only if all do. */
static warp *choose()
{
    warp *sleeper = nullptr;
    size_t count = blocks.size(), from = random_below((uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        block &b = blocks[(from + i) % count];
        if (b.late) continue;
        size_t warps = b.warps.size(), first = random_below((uint32_t)warps);
        for (size_t j = 0; j < warps; j++) {
            warp &w = b.warps[(first + j) % warps];
            if (!w.ready) continue;
            if (w.asleep_until <= turn) return &w;
            if (!sleeper || w.asleep_until < sleeper->asleep_until) sleeper = &w;
        }
    }
    return sleeper;
}

/* Each lane that can run, once; those that are left when it is interrupted are the first ones when it wakes. */
static bool run_lanes(warp *w)
{
    bool moved = false;
    uint32_t ready = w->ready;
    interrupted = false;
    for (int i = 0; i < LANES && !interrupted; i++) {
        thread *t = w->lanes[w->next];
        if (ready >> w->next & 1 && t->asleep_until > turn) {
            moved = true;
        } else if (ready >> w->next & 1) {
            t->yielded = false;
            resume(t);
            moved |= !t->yielded;
        }
        w->next = (w->next + 1) % LANES;
    }
    running = nullptr;
    return moved;
}

/* What a warp's lanes wait for, those alike in one line. */
static void say_waiting(const block *b, int number)
{
    const warp *w = &b->warps[(size_t)number];
    for (uint32_t left = w->live, alike; left; left &= ~alike) {
        const thread *t = w->lanes[__builtin_ctz(left)];
        alike = 0;
        for (int i = 0; i < LANES; i++)
            if (left >> i & 1 && w->lanes[i]->waits_for == t->waits_for && w->lanes[i]->waits_at == t->waits_at)
                alike |= 1u << i;
        fprintf(stderr, "emulated GPU: block %u, warp %d, lanes %08x wait for %s %#x\n", b->index.x, number, alike,
                t->waits_for, t->waits_at);
    }
}

[[noreturn]] static void die_waiting()
{
    for (const block &b : blocks)
        for (int i = 0; i < (int)b.warps.size(); i++)
            say_waiting(&b, i);
    die("all threads wait for each other");
}

static void run_resident()
{
    warp *w = nullptr;
    for (turn = idle = 0; live_threads; turn++) {
        if (random_below(4) == 0) do_one_later(false);
        if (!w || !w->ready || w->asleep_until > turn || random_below(8) == 0) w = choose();
        if (!w) {
            if (!do_one_later(true)) die_waiting();
            continue;
        }
        if (w->asleep_until > turn) w->asleep_until = turn;
        idle = run_lanes(w) ? 0 : idle + 1;
        if (idle > IDLE_MOST) die_waiting();
    }
    while (do_one_later(true)) {
    }
}

void dawdle(bool now)
{
    if (running->place.lane || random_below(48)) return;
    running->crew->asleep_until = turn + 1 + random_below(3000);
    interrupted = now;
    if (now) leave();
}

/* ---- launching ----------------------------------------------------------------------------- */

static void thread_init(thread *t, block *b, unsigned index, size_t number)
{
    gpu_dim size = gpu_grid_here->threads;
    *t = thread();
    t->place.thread = { index % size.x, index / size.x % size.y, index / size.x / size.y };
    t->place.block = b->index, t->place.lane = (int)index % LANES, t->place.warp = (int)index / LANES;
    t->home = b, t->crew = &b->warps[index / LANES];
    t->crew->lanes[t->place.lane] = t;
    t->crew->live |= bit_of(t), t->crew->ready |= bit_of(t);
    t->on = fiber_of(number);
}

/* base: of its shared memory, which holds no numbers. */
static void block_init(block *b, unsigned index, size_t slot, uint32_t base)
{
    const gpu_grid *g = gpu_grid_here;
    unsigned threads = g->threads.x * g->threads.y * g->threads.z;
    static std::vector<unsigned char *> windows;
    while (windows.size() <= slot)
        windows.push_back((unsigned char *)aligned_alloc(1024, WINDOW));
    *b = block();
    b->index = { index % g->blocks.x, index / g->blocks.x % g->blocks.y, index / g->blocks.x / g->blocks.y };
    b->rank = index % g->cluster, b->first = b - b->rank;
    b->memory = windows[slot];
    b->base = base, b->end = b->base + g->shared_bytes;
    if (b->end > WINDOW) die("%u bytes of shared memory", g->shared_bytes);
    if (g->shared_bytes) memset(b->memory, 0xff, WINDOW), b->barriers.resize(WINDOW / 8);
    b->threads.resize(threads), b->warps.resize((threads + LANES - 1) / LANES);
    b->groups.resize((threads + GROUP_LANES - 1) / GROUP_LANES);
    b->live = (int)threads;
    live_threads += (int)threads;
    for (unsigned i = 0; i < threads; i++)
        thread_init(&b->threads[i], b, i, slot * threads + i);
    b->late = b->rank ? b->first->late : slot > 0 && random_below(4) == 0;
}

void gpu_run(const gpu_grid *grid)
{
    const char *seed = getenv("EMULATED_GPU_SEED");
    unsigned count = grid->blocks.x * grid->blocks.y * grid->blocks.z, resident = grid->shared_bytes ? count : 1;
    static uint64_t launches;
    random_state = 0x9e3779b97f4a7c15u * (1 + (seed ? strtoull(seed, nullptr, 10) : 0)) + launches++;
    random_below(2);                              /* the first one hardly differs from launch to launch */
    uint32_t base = 1024 * (1 + random_below(4)); /* aligned as it is declared, alike in all blocks */
    gpu_grid_here = grid;
    blocks.resize(resident);
    for (unsigned index = 0; index < count; index += resident) {
        for (unsigned i = 0; i < resident; i++)
            block_init(&blocks[i], index + i, i, base);
        run_resident();
    }
    gpu_grid_here = nullptr;
}

/* ---- meeting ------------------------------------------------------------------------------- */

static uint32_t voted(const warp *w)
{
    int32_t most = INT32_MIN, least = INT32_MAX;
    uint32_t mask = 0;
    for (int i = 0; i < LANES; i++) {
        if (!(w->live >> i & 1)) continue;
        int32_t value = (int32_t)w->value[i];
        mask |= (uint32_t)(value != 0) << i;
        most = value > most ? value : most, least = value < least ? value : least;
    }
    return w->vote == GPU_BALLOT ? mask : w->vote == GPU_LEAST ? (uint32_t)least : (uint32_t)most;
}

uint32_t gpu_warp(gpu_vote vote, uint32_t value, int from)
{
    thread *t = running;
    warp *w = t->crew;
    if (w->arrived && w->vote != vote) die("its warp's lanes are at different operations (%d and %d)", vote, w->vote);
    w->vote = vote, w->arrived |= bit_of(t);
    w->value[t->place.lane] = value, w->from[t->place.lane] = from & (LANES - 1);
    if (w->arrived != w->live) {
        wait_here("the rest of the warp, at operation", vote);
        return t->result;
    }
    uint32_t all = vote == GPU_SHUFFLE ? 0 : voted(w);
    for (uint32_t lanes = w->live; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes), giver = w->live >> w->from[lane] & 1 ? w->from[lane] : lane;
        w->lanes[lane]->result = vote == GPU_SHUFFLE ? w->value[giver] : all;
    }
    w->arrived = 0, w->ready = w->live;
    leave();
    return t->result;
}

/* The thread comes to a meeting. True: as the last, and those that wait are woken. */
static bool come(meeting *m, int threads, bool holds)
{
    if (m->arrived && m->threads != threads) die("%d threads are to meet, others say %d", threads, m->threads);
    m->all = holds && (!m->arrived || m->all);
    m->threads = threads;
    if (++m->arrived < threads) return false;
    for (thread *t : m->waiting)
        t->result = m->all, wake(t);
    m->waiting.clear(), m->arrived = 0;
    return true;
}

static void meet(meeting *m, int threads, bool holds)
{
    if (come(m, threads, holds)) {
        running->result = m->all;
        leave();
    } else {
        m->waiting.push_back(running);
        wait_here("a named barrier of as many threads:", (uint32_t)threads);
    }
}

static meeting *named(int id)
{
    if (id < 0 || id > 15) die("named barrier %d", id);
    return &running->home->named[id];
}

bool gpu_meet(int id, int threads, bool holds)
{
    dawdle(true);
    meet(named(id), threads ? threads : running->home->live, holds);
    return running->result;
}

void gpu_arrive(int id, int threads)
{
    dawdle(true);
    come(named(id), threads, true);
}

void gpu_meet_cluster(void)
{
    dawdle(false);
    meet(&running->home->first->cluster, (int)(gpu_grid_here->cluster * running->home->threads.size()), true);
}

/* ---- shared memory ------------------------------------------------------------------------- */

/* The block of the cluster that has the address, as b sees it. */
static block *home_of(block *b, uint32_t address)
{
    uint32_t rank = address >> 24;
    if (rank > gpu_grid_here->cluster) die("shared address %#x is of no block of the cluster", address);
    return rank ? b->first + (rank - 1) : b;
}

unsigned char *memory_at(block *b, uint32_t address, uint32_t bytes, uint32_t aligned)
{
    const block *home = home_of(b, address);
    uint32_t at = address & 0xffffff;
    if (at < home->base || at + bytes > home->end) die("%u bytes at %#x are outside shared memory", bytes, at);
    if (at % aligned) die("shared address %#x is no multiple of %u", at, aligned);
    return home->memory + at;
}

void *gpu_at(uint32_t address, uint32_t bytes, uint32_t aligned)
{
    return memory_at(running->home, address, bytes, aligned);
}

const void *gpu_load(uint32_t address, uint32_t bytes)
{
    running->loads.push_back(address);
    return gpu_at(address, bytes, bytes);
}

void gpu_fence_async(void)
{
    running->loads.clear();
}

unsigned char *gpu_shared_memory(void)
{
    return running->home->memory + running->home->base;
}

uint32_t gpu_shared_address(const void *pointer)
{
    return (uint32_t)((const unsigned char *)pointer - running->home->memory);
}

uint32_t gpu_rank(void)
{
    return running->home->rank;
}

uint32_t gpu_peer(uint32_t address, uint32_t rank)
{
    return (rank + 1) << 24 | (address & 0xffffff);
}

/* ---- barriers ------------------------------------------------------------------------------ */

barrier *barrier_at(block *b, uint32_t address)
{
    block *home = home_of(b, address);
    return &home->barriers[(size_t)(memory_at(b, address, 8, 8) - home->memory) / 8];
}

static barrier *made_barrier(uint32_t address)
{
    barrier *b = barrier_at(running->home, address);
    if (!b->made) die("barrier %#x has not been made", address);
    return b;
}

static void end_phase(barrier *b)
{
    if (b->left || b->bytes) return;
    b->phase ^= 1, b->left = b->arrivals;
    for (thread *t : b->waiting)
        wake(t);
    b->waiting.clear();
}

void gpu_barrier_init(uint32_t address, int arrivals)
{
    barrier *b = barrier_at(running->home, address);
    if (b->made) die("barrier %#x is made twice", address);
    *b = barrier();
    b->made = true, b->arrivals = b->left = arrivals;
}

void gpu_barrier_arrive(uint32_t address, uint32_t expected)
{
    dawdle(false);
    barrier *b = made_barrier(address);
    b->bytes += expected;
    if (--b->left < 0) die("barrier %#x: more than %d arrivals", address, b->arrivals);
    end_phase(b);
}

void gpu_barrier_expect(uint32_t address, uint32_t bytes)
{
    made_barrier(address)->bytes += bytes;
}

void bytes_came(barrier *b, uint32_t bytes)
{
    if (!b->made) die("%u bytes have come to a barrier that has not been made", bytes);
    b->bytes -= bytes;
    end_phase(b);
}

/* A lane by itself comes late: a warp is sure to be together only where it meets. */
static void drift()
{
    if (random_below(1000)) return;
    running->asleep_until = turn + 1 + random_below(3000);
    leave();
}

void gpu_barrier_wait(uint32_t address, uint32_t parity)
{
    dawdle(false);
    drift();
    barrier *b = made_barrier(address);
    while (b->phase == (parity & 1)) {
        b->waiting.push_back(running);
        wait_here(parity ? "phase 1 of the barrier at" : "phase 0 of the barrier at", address);
    }
}

bool gpu_barrier_test(uint32_t address, uint32_t parity)
{
    return made_barrier(address)->phase != (parity & 1);
}
