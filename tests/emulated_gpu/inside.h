/* What the parts of the machine know of each other: machine.cc runs threads, later.cc does what is asynchronous. */
#ifndef TESTS_EMULATED_GPU_INSIDE_H
#define TESTS_EMULATED_GPU_INSIDE_H

#include <csetjmp>
#include <deque>
#include <vector>

#include "machine.h"

enum { LANES = 32, GROUP_LANES = 128, WINDOW = 1 << 18 /* addresses of a block's shared memory */ };

struct block;
struct warp;

/* A stack, on which one thread runs after the other. */
struct fiber {
    jmp_buf state;
};

struct thread {
    gpu_place place;
    block *home;
    warp *crew;
    uint32_t result; /* of the collective operation that it waits in */
    bool yielded;
    uint32_t exchanges;          /* of words with its warp */
    uint32_t copy_groups;        /* committed */
    uint64_t asleep_until;       /* turn; the lane by itself */
    std::vector<uint32_t> loads; /* of 16 bytes each, neither fenced nor followed by a product */
    const char *waits_for;
    uint32_t waits_at;
    fiber *on;
};

struct warp {
    thread *lanes[LANES];
    uint32_t live, ready; /* lanes that have not ended; that can run */
    uint32_t arrived;     /* at the operation under way */
    gpu_vote vote;
    uint32_t value[LANES];
    int from[LANES];
    uint32_t words[2][LANES][6]; /* warp.cc */
    uint64_t asleep_until;       /* turn */
    int next;                    /* the lane that runs first */
};

/* mbarrier: a phase ends when no arrival and no bytes are left. */
struct barrier {
    bool made;
    int arrivals, left;
    int64_t bytes;
    uint32_t phase;
    std::vector<thread *> waiting;
};

struct meeting {
    int arrived, threads;
    bool all;
    std::vector<thread *> waiting;
};

/* A product, as the warpgroup's threads come to it one by one. */
struct product {
    int form, dtype, n, keep, lanes;
    uint64_t a, b;
    float *sums[GROUP_LANES];
    uint32_t words[GROUP_LANES][4];
};

/* A warpgroup's products that are not done yet, oldest first, and its commits. Threads count their own. */
struct group {
    struct commit {
        uint64_t end; /* products before it */
        int lanes;
    };
    std::deque<product> products;
    std::vector<commit> commits;
    uint64_t done, issued[GROUP_LANES], committed[GROUP_LANES];
    int waiting, pending; /* lanes that wait, and for what */
};

struct block {
    gpu_dim index;
    unsigned rank;
    block *first;          /* of its cluster */
    unsigned char *memory; /* its shared memory's window */
    uint32_t base, end;    /* of what it asked for, in the window */
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::vector<group> groups;
    std::vector<barrier> barriers; /* one every 8 bytes of the window */
    meeting named[16], cluster;    /* cluster: the first block's counts */
    int live;
    bool late; /* begins when another one has ended */
};

extern thread *running;
extern uint64_t turn; /* of the scheduler: the emulated time */

uint32_t random_below(uint32_t count);
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

void wait_here(const char *what, uint32_t at); /* until woken; what for */
void leave(); /* until its warp's turn: who comes last runs no further than the others */
void wake(thread *t);

/* Where a warp may be slow: once in a while it is, by much. now: its other lanes are left where they are: where the
 * whole warp meets, since lanes go no ways of their own for long. */
void dawdle(bool now);

/* Shared memory at an address, as seen by a block: `bytes` at a multiple of `aligned`. */
unsigned char *memory_at(block *b, uint32_t address, uint32_t bytes, uint32_t aligned);
barrier *barrier_at(block *b, uint32_t address);
void bytes_came(barrier *b, uint32_t bytes);

/* Does one of the things that are to happen later, drawn at random; not now: if its time has come. False: there is
 * none. */
bool do_one_later(bool now);

/* The warpgroup of a thread, and its place in it. */
inline group *group_of(thread *t)
{
    return &t->home->groups[t->place.warp / 4];
}

inline int group_lane(const thread *t)
{
    return t->place.warp % 4 * LANES + t->place.lane;
}

#endif
