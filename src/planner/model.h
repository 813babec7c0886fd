/* The napkin's arithmetic: what a partitioned algorithm moves, holds and computes on a hierarchy of memories.
 *
 * An algorithm is arrays over axes, and work over axes. Level 0 is the outermost memory, where tiles are whole axes;
 * each level inward cuts the tiles of the level outside it. An axis is cut in groups (tiles that do not know of one
 * another, each going through all of the rest by itself) or streamed (chunk after chunk past what stays). Then
 *
 *     H, bytes that cross into a level (and out of it, for what is written), are for each array its size times the
 *     times its tiles pass: for an axis that it does not span, once per group, or, where the axis is streamed, once per
 *     tile of the level outside (once, where as many groups lie side by side as the tile outside has);
 *     M, bytes held in a level, are the most of any column: the tiles that are live together.
 *
 * A tile is a multiple of its axis's `multiple`, the least common one of all that demand one. Sizes of axes are in
 * elements, precision is of each array at each level: a wire may be narrower outside than inside. */
#ifndef ATTN_PLANNER_MODEL_H
#define ATTN_PLANNER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ATTN_MODEL_AXES = 12,
    ATTN_MODEL_ARRAYS = 24,
    ATTN_MODEL_COLUMNS = 24,
    ATTN_MODEL_WORKS = 16,
    ATTN_MODEL_LEVELS = 8,
    ATTN_MODEL_UNITS = 6
};

typedef struct attn_model_axis {
    const char *name;
    int64_t size, multiple; /* multiple: >= 1 */
} attn_model_axis;

enum { ATTN_MODEL_READ = 1, ATTN_MODEL_WRITTEN = 2 };

typedef struct attn_model_array {
    const char *name;
    uint32_t axes;                   /* bit i: it spans axis i */
    double bytes[ATTN_MODEL_LEVELS]; /* an element, by level; 0: as in the level outside */
    unsigned direction;              /* ATTN_MODEL_READ | ATTN_MODEL_WRITTEN, into and out of levels inside its home */
    int home;                        /* the level that it lies in; it crosses into those inside it */
    double density;                  /* share of its tiles that pass (a mask's); 0: all */
    double copies;                   /* tiles held at once, 2 where the next is loaded meanwhile; 0: one */
} attn_model_array;

/* `amount` operations of a unit for each point of the product of its axes. */
typedef struct attn_model_work {
    const char *name;
    uint32_t axes;
    int unit;
    double amount;
    double density; /* share of the points; 0: all */
} attn_model_work;

typedef struct attn_model {
    int axes, arrays, columns, works;
    attn_model_axis axis[ATTN_MODEL_AXES];
    attn_model_array array[ATTN_MODEL_ARRAYS];
    uint32_t column[ATTN_MODEL_COLUMNS]; /* bits of the arrays that are live together */
    attn_model_work work[ATTN_MODEL_WORKS];
} attn_model;

/* By level from 1 on; of level 0 nothing is read. */
typedef struct attn_partition {
    int levels;                                       /* with level 0 */
    int64_t tile[ATTN_MODEL_LEVELS][ATTN_MODEL_AXES]; /* at least 1 */
    uint32_t streamed[ATTN_MODEL_LEVELS];             /* bit i: axis i is streamed, else cut in groups */
    double side_by_side[ATTN_MODEL_LEVELS];           /* groups that lie in the level at once, each by itself; 0: one */
} attn_partition;

/* The partition in which everything is whole. */
void attn_partition_whole(const attn_model *model, int levels, attn_partition *partition);

/* H of one array, and of all. */
double attn_model_crossing(const attn_model *model, const attn_partition *partition, int level, int array);
double attn_model_transfer(const attn_model *model, const attn_partition *partition, int level);

/* M of one tile. */
double attn_model_live(const attn_model *model, const attn_partition *partition, int level);

/* Operations of a unit; sizes are rounded up to the axes' multiples. */
double attn_model_operations(const attn_model *model, int unit);

/* Bytes of one pass over every array that crosses from level 0: no partition moves less. */
double attn_model_least(const attn_model *model);

/* H* as a function of M: least + alpha M^-beta, of a partition of level 1 whose chunks are small and whose tiles are
 * free to be any size. beta is 1 where what stays is linear in the tiles (attention), 1/n where it is a product of n
 * (matmul: 1/2). Streamed axes are those of the partition; axes that it leaves whole stay so. exact: false where H or M
 * has another form than these; the optimum is then found by attn_model_optimum alone. */
typedef struct attn_model_closed {
    bool exact;
    double least, alpha, beta;
} attn_model_closed;

attn_model_closed attn_model_close(const attn_model *model, const attn_partition *partition);

/* Chooses the tiles of `level` that are 0 in the partition, so that H is least and no tile holds more than `capacity`:
 * groups first, with chunks of the least size, then the greatest chunks that still fit. False, with least tiles, where
 * these do not fit. */
bool attn_model_optimum(const attn_model *model, attn_partition *partition, int level, double capacity);

/* ---- time ---------------------------------------------------------------------------------- */

/* What a machine does in a second, all of it together: bytes into a level, operations of a unit. 0: not counted. */
typedef struct attn_model_rates {
    double bandwidth[ATTN_MODEL_LEVELS], unit[ATTN_MODEL_UNITS];
    double exposed; /* share of the time of all but the slowest that is not hidden beside it: 0 to 1 */
} attn_model_rates;

typedef struct attn_model_time {
    double level[ATTN_MODEL_LEVELS], unit[ATTN_MODEL_UNITS]; /* seconds each would take by itself */
    double seconds;
    int bound_level, bound_unit; /* the slowest: one of them, the other is -1 */
} attn_model_time;

attn_model_time attn_model_predict(const attn_model *model, const attn_partition *partition,
                                   const attn_model_rates *rates);

/* The slowest of `count` times, and `exposed` of the others. */
double attn_model_overlap(const double *seconds, int count, double exposed);

#endif
