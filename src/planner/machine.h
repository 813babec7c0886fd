/* Machines as the napkin knows them: levels of memory, units, and what each kernel costs there.
 *
 * A machine is a small text (machines/NAME.machine; `attn machine` prints one and measures this one). Lines:
 *
 *     machine NAME                    first, but for comments, which a # begins
 *     base NAME                       takes over all that the built-in machine NAME says; lines below replace it
 *     device cpu|cuda
 *     match TEXT                      it is this machine whose identity holds TEXT: of a processor
 *                                     "VENDOR family F model M: BRAND", of a GPU its name; several lines: any
 *     cores N                         cores, or SMs
 *     clock HERTZ                     under load: what clocks below are counted in
 *     sustained HERTZ                 under a load of many seconds, where power limits it; left out: clock
 *     level NAME bytes N count N one N all N
 *                                     from the outermost inward: bytes of one, how many there are, bytes per second
 *                                     into one by itself and into all at once from the level outside; 0 or left out:
 *                                     unknown
 *     unit NAME N                     operations (a multiply-add: two) per clock and core: tensor16, tensor8, fma, exp
 *     start SECONDS                   of a parallel loop, or a launch
 *     link send N put N beside N      to another device, each as it receives as much: bytes per second by kernels
 *                                     (NCCL's), by copy engines, and how many times as long computing takes beside
 *                                     such kernels; left out: unknown, and 1
 *     kernel NAME product N score N pack N byte N far N step N tile N edge N mixed N run N
 *                                     clocks, as attn_constant says; left out: 0, or the base's
 *
 * The library reads no file by itself: built-in machines are in it, others are named to it (attn_machine_use). */
#ifndef ATTN_PLANNER_MACHINE_H
#define ATTN_PLANNER_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "planner/model.h"

enum { ATTN_MACHINE_KERNELS = 96, ATTN_MACHINE_MATCHES = 6, ATTN_MACHINE_NAME = 48 };

/* In the order of attn_model_work.unit. */
typedef enum attn_unit { ATTN_UNIT_TENSOR16, ATTN_UNIT_TENSOR8, ATTN_UNIT_FMA, ATTN_UNIT_EXP, ATTN_UNITS } attn_unit;

/* Clocks of a core that a kernel takes for each ... ; they add up. */
typedef enum attn_constant {
    ATTN_PER_PRODUCT, /* multiply-add of its products */
    ATTN_PER_SCORE,   /* score: softmax and what belongs to it */
    ATTN_PER_PACK,    /* element of keys and values (backward: of rows too) that is packed */
    ATTN_PER_BYTE,    /* byte from L2 */
    ATTN_PER_FAR,     /* byte into L2 */
    ATTN_PER_STEP,    /* tile of rows against a tile of keys; prefill on the CPU: row against one */
    ATTN_PER_TILE,    /* tile of rows */
    ATTN_PER_EDGE,    /* tile of rows whose mask cuts through tiles of keys */
    ATTN_PER_MIXED,   /* step whose bits hide some of its pairs, besides */
    ATTN_PER_RUN,     /* run, launch and all */
    ATTN_CONSTANTS
} attn_constant;

typedef struct attn_machine_level {
    char name[16];
    double bytes, count, one, all;
} attn_machine_level;

typedef struct attn_machine_kernel {
    char name[ATTN_MACHINE_NAME];
    double clocks[ATTN_CONSTANTS];
} attn_machine_kernel;

typedef struct attn_machine {
    char name[ATTN_MACHINE_NAME];
    attn_device device;
    char match[ATTN_MACHINE_MATCHES][ATTN_MACHINE_NAME];
    double cores, hertz, sustained, start;
    double link_send, link_put, link_beside;
    int matches, levels, kernels;
    attn_machine_level level[ATTN_MODEL_LEVELS];
    double unit[ATTN_UNITS];
    attn_machine_kernel kernel[ATTN_MACHINE_KERNELS];
} attn_machine;

/* "tensor16", ...; "product", ...; NULL for any other number. */
const char *attn_unit_name(int unit);
const char *attn_constant_name(int constant);

/* Reads a machine's text. ATTN_INVALID: what is wrong, after "WHERE:LINE:COLUMN: ". */
attn_status attn_machine_parse(const char *where, const char *text, size_t length, attn_machine *machine);

/* The built-in machine of that name, or NULL; and all of them. */
const attn_machine *attn_machine_named(const char *name);
const attn_machine *attn_machine_builtin(int index);

/* The built-in machine of that name, else what the file of that name says. */
attn_status attn_machine_load(const char *name, attn_machine *machine);

/* What plans for the device are made by: a machine that was named to the library, else the built-in one that the
 * identity matches, else the built-in "cpu" or "h200". Lives as long as the library. */
const attn_machine *attn_machine_for(attn_device device, const char *identity);

/* That of the GPU of the current context, else of the first one; NULL, and why, where there is none (cuda/). */
const attn_machine *attn_machine_of_gpu(void);

/* This processor's identity, as `match` has it. */
void attn_machine_identity(char *text, size_t size);

/* NULL: it does not say. */
const attn_machine_level *attn_machine_level_named(const attn_machine *machine, const char *name);
const attn_machine_kernel *attn_machine_kernel_named(const attn_machine *machine, const char *name);

/* The most bytes per second from memory; 0: it does not say. */
double attn_machine_memory(const attn_machine *machine);

/* All of the machine in a second. exposed is left as it is. */
void attn_machine_rates(const attn_machine *machine, attn_model_rates *rates);

#endif
