/* The GPT of examples/gpt, trained with its context split over ranks (docs/PARALLEL.md): each rank has the weights
 * whole and some rows of every sequence, as the zigzag layout deals them out. Attention goes from rank to rank, and the
 * sum of the gradients; everything else is what one device does, on fewer rows.
 *
 * ring.c   a rank        main.c   ranks that are threads        mpi.c   ranks that are processes */
#ifndef RING_H
#define RING_H

#include <attn_parallel.h>

#include "gpt.h"

typedef struct ring_job {
    gpt_shape shape;
    int64_t context, batch, steps;
    const gpt_text *text;
} ring_job;

/* What a rank does: all of them call it. losses: of each step, of all ranks' rows together; the same on every rank. A
 * failure ends the program. */
void ring_train(const ring_job *job, const attn_engine *engine, double *losses);

/* The command line: [RANKS [STEPS [TEXT]]], all of them or none; false after a message. ranks: as it is, or as given.
 */
bool ring_arguments(int argc, char **argv, ring_job *job, gpt_text *text, int64_t *ranks);

/* The same by one device, then both runs' losses and their greatest difference; what main() returns: 1 where they
 * differ by more than 1e-3. */
int ring_compare(const ring_job *job, const double *losses, int64_t ranks);

#endif
