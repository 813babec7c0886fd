/* What the parts of the emission share: indices and terms as C. Of axis x: n_x its size, T_x a tile's, o_x where the
 * tile begins, l_x how long it is, i_x the index in it. Of array A: in_A or out_A, and its tile t_A, row-major in the
 * order of the axes. stored_N: what one kernel stores for another. */
#ifndef ATTN_NAPKIN_EMIT_H
#define ATTN_NAPKIN_EMIT_H

#include "napkin/derive.h"

typedef struct attn_nap_emitter {
    attn_text_buffer *w;
    const attn_derivation *v;
    const attn_diagram *d;
    const attn_nap_kernel *k;
    int depth;
} attn_nap_emitter;

/* Starts a line. */
void attn_nap_emit_indent(const attn_nap_emitter *emitter);

bool attn_nap_is_cut(const attn_nap_emitter *emitter, int axis);
const char *attn_nap_axis_name(const attn_nap_emitter *emitter, int axis);

/* T_x, or n_x of an axis that is whole. */
void attn_nap_emit_extent(const attn_nap_emitter *emitter, int axis);

/* The index in a tile that spans the axes. */
void attn_nap_emit_place(const attn_nap_emitter *emitter, uint32_t axes);

/* An element in memory: of an input or of what was stored, or, to store, of an output or of what others load. */
void attn_nap_emit_memory(const attn_nap_emitter *emitter, int node, bool store);

/* An element of a tile: what it has come to. */
void attn_nap_emit_tile(const attn_nap_emitter *emitter, int tile);

/* Whether a condition may hold somewhere in the tile. */
void attn_nap_emit_may_hold(const attn_nap_emitter *emitter, int condition);

/* A term. Open: it is written out itself, though it has a tile. */
void attn_nap_emit_value(const attn_nap_emitter *emitter, int node, bool open);

#endif
