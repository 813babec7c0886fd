/* Where boxes and wires of a graph stand; see draw.h, attn_nap_place. */
#include <string.h>

#include "napkin/draw.h"

enum {
    FEW = 3,         /* wires that a wire may cross */
    THICKET = 16,    /* crossings of one wire from which on many are named at once */
    GAP = 14,        /* between what is in a layer */
    BAND_GAP = 22,   /* between bands */
    BEND = 40,       /* the least room between layers for wires to bend */
    NAME_SPACE = 20, /* what a name takes beside its text: a stub of wire and space */
    SWEEPS = 12      /* over the layers, for their order and for the places in them */
};

int attn_nap_wire_height(uint32_t axes)
{
    int lines = 0;
    for (; axes; axes &= axes - 1)
        lines++;
    return lines > 1 ? ATTN_NAP_LINE * (lines - 1) : 0;
}

/* ---- wires and layers --------------------------------------------------------------------------- */

static bool leads(const attn_nap_graph *g, int from, int to)
{
    bool reached[ATTN_NAP_BOXES] = { false };
    reached[from] = true;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < g->wires; i++) {
            if (!reached[g->wire[i].from] || reached[g->wire[i].to]) continue;
            reached[g->wire[i].to] = more = true;
        }
    }
    return reached[to];
}

void attn_nap_connect(attn_nap_graph *g, int from, int to)
{
    if (g->wires == ATTN_NAP_WIRES || leads(g, to, from)) return;
    for (int i = 0; i < g->wires; i++)
        if (g->wire[i].from == from && g->wire[i].to == to) return;
    g->wire[g->wires++] = (attn_nap_wire){ .from = from, .to = to };
}

/* Each box after all that it takes; what takes nothing right before the first that takes it. */
static void find_layers(attn_nap_graph *g)
{
    bool taken[ATTN_NAP_BOXES] = { false }, source[ATTN_NAP_BOXES];
    memset(source, true, sizeof source);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < g->wires; i++) {
            attn_nap_box *to = &g->box[g->wire[i].to];
            int layer = g->box[g->wire[i].from].layer + 1;
            source[g->wire[i].to] = false;
            if (to->layer < layer) to->layer = layer, more = true;
        }
    }
    for (int i = 0; i < g->wires; i++) {
        attn_nap_box *from = &g->box[g->wire[i].from];
        int before = g->box[g->wire[i].to].layer - 1;
        if (!source[g->wire[i].from]) continue;
        if (!taken[g->wire[i].from] || before < from->layer) from->layer = before;
        taken[g->wire[i].from] = true;
    }
    g->layers = 0;
    for (int i = 0; i < g->boxes; i++)
        if (g->box[i].layer >= g->layers) g->layers = g->box[i].layer + 1;
}

static int fold(attn_nap_graph *g, int limit)
{
    int bands = 0, width = 0;
    for (int l = 0; l < g->layers; l++) {
        if (l && width + BEND + g->layer[l].width > limit) bands++, width = 0;
        width += g->layer[l].width + (width ? BEND : 0);
        g->layer[l].band = bands;
    }
    return bands + 1;
}

/* As few bands as a limit on their width allows, and no wider than those need be. */
static void find_bands(attn_nap_graph *g, int limit)
{
    memset(g->layer, 0, sizeof g->layer);
    for (int i = 0; i < g->boxes; i++) {
        attn_nap_layer *layer = &g->layer[g->box[i].layer];
        if (g->box[i].width > layer->width) layer->width = g->box[i].width;
    }
    g->bands = fold(g, limit);
    while (limit > 0 && fold(g, limit) == g->bands)
        limit -= 10;
    fold(g, limit + 10);
    for (int i = 0; i < g->boxes; i++)
        g->box[i].band = g->layer[g->box[i].layer].band;
}

static void name_long_wires(attn_nap_graph *g)
{
    for (int i = 0; i < g->wires; i++) {
        const attn_nap_box *from = &g->box[g->wire[i].from], *to = &g->box[g->wire[i].to];
        g->wire[i].named = from->band != to->band || to->layer - from->layer > ATTN_NAP_SPAN;
    }
}

/* ---- slots, their order ------------------------------------------------------------------------- */

static int add_slot(attn_nap_graph *g, int layer, int box, int from)
{
    g->slot[g->slots] = (attn_nap_slot){ .layer = layer, .box = box, .from = from, .order = g->slots };
    return g->slots++;
}

static void add_link(attn_nap_graph *g, int from, int to)
{
    g->link[g->links].from = from;
    g->link[g->links++].to = to;
}

/* Wires of one box share what they pass. */
static void make_slots(attn_nap_graph *g)
{
    g->slots = g->links = 0;
    for (int i = 0; i < g->boxes; i++) {
        memset(g->passing[i], -1, sizeof g->passing[i]);
        g->passing[i][0] = add_slot(g, g->box[i].layer, i, -1);
    }
    for (int i = 0; i < g->wires; i++) {
        const attn_nap_wire *wire = &g->wire[i];
        int *passing = g->passing[wire->from], first = g->box[wire->from].layer;
        int last = g->box[wire->to].layer - 1;
        if (wire->named) continue;
        for (int l = first + 1; l <= last; l++)
            if (passing[l - first] < 0) {
                passing[l - first] = add_slot(g, l, -1, wire->from);
                add_link(g, passing[l - first - 1], passing[l - first]);
            }
        add_link(g, passing[last - first], g->passing[wire->to][0]);
    }
}

/* Whose wire leaves a slot. */
static int origin(const attn_nap_graph *g, int slot)
{
    return g->slot[slot].box >= 0 ? g->slot[slot].box : g->slot[slot].from;
}

static bool cross(const attn_nap_graph *g, int one, int other)
{
    const attn_nap_slot *a = &g->slot[g->link[one].from], *b = &g->slot[g->link[one].to];
    const attn_nap_slot *c = &g->slot[g->link[other].from], *d = &g->slot[g->link[other].to];
    return a->layer == c->layer && (a->order - c->order) * (b->order - d->order) < 0;
}

static int count_crossings(const attn_nap_graph *g)
{
    int count = 0;
    for (int i = 0; i < g->links; i++)
        for (int j = 0; j < i; j++)
            count += cross(g, i, j);
    return count;
}

/* Orders each layer by what the slots are wired to, on the left or on the right. */
static void sweep(attn_nap_graph *g, bool right)
{
    for (int i = 0; i < g->slots; i++) {
        double sum = 0, count = 0;
        for (int j = 0; j < g->links; j++) {
            if ((right ? g->link[j].from : g->link[j].to) != i) continue;
            sum += g->slot[right ? g->link[j].to : g->link[j].from].order;
            count++;
        }
        g->slot[i].wish = count ? sum / count : g->slot[i].order;
    }
    int order[ATTN_NAP_SLOTS];
    for (int i = 0; i < g->slots; i++) {
        order[i] = 0;
        for (int j = 0; j < g->slots; j++) {
            if (g->slot[j].layer != g->slot[i].layer) continue;
            order[i] += g->slot[j].wish < g->slot[i].wish ||
                        (g->slot[j].wish == g->slot[i].wish && g->slot[j].order < g->slot[i].order);
        }
    }
    for (int i = 0; i < g->slots; i++)
        g->slot[i].order = order[i];
}

static void find_order(attn_nap_graph *g)
{
    int best[ATTN_NAP_SLOTS], least = -1;
    make_slots(g);
    for (int s = 0; s < SWEEPS && least; s++) {
        sweep(g, s % 2);
        int crossings = count_crossings(g);
        if (least >= 0 && crossings >= least) continue;
        least = crossings;
        for (int i = 0; i < g->slots; i++)
            best[i] = g->slot[i].order;
    }
    for (int i = 0; i < g->slots; i++)
        g->slot[i].order = best[i];
}

/* How many others a wire crosses. */
static int crossings_of(const attn_nap_graph *g, const attn_nap_wire *wire)
{
    int count = 0;
    if (wire->named) return 0;
    for (int at = g->passing[wire->to][0], link = 0; g->slot[at].box != wire->from; at = g->link[link].from) {
        for (link = 0; g->link[link].to != at || origin(g, g->link[link].from) != wire->from;)
            link++;
        for (int i = 0; i < g->links; i++)
            count += cross(g, link, i);
    }
    return count;
}

/* Names the wire that crosses most others, and all that cross nearly as many in a thicket; false: none crosses more
 * than a few. */
static bool name_worst_wires(attn_nap_graph *g)
{
    int count[ATTN_NAP_WIRES], most = 0;
    for (int i = 0; i < g->wires; i++) {
        count[i] = crossings_of(g, &g->wire[i]);
        if (count[i] > most) most = count[i];
    }
    for (int i = 0, some = 0; i < g->wires && most > FEW; i++) {
        if (count[i] < (most > THICKET ? most * 3 / 4 : most) || (some && most <= THICKET)) continue;
        g->wire[i].named = true;
        some = 1;
    }
    return most > FEW;
}

/* ---- places ------------------------------------------------------------------------------------- */

static int port_height(const attn_nap_graph *g, const attn_nap_wire *wire)
{
    int height = attn_nap_wire_height(g->box[wire->from].axes) + 8;
    return height > 16 ? height : 16;
}

static void find_heights(attn_nap_graph *g)
{
    int ports[ATTN_NAP_BOXES] = { 0 };
    for (int i = 0; i < g->wires; i++)
        ports[g->wire[i].to] += port_height(g, &g->wire[i]);
    for (int i = 0; i < g->slots; i++) {
        attn_nap_slot *slot = &g->slot[i];
        slot->height = attn_nap_wire_height(g->box[origin(g, i)].axes);
        if (slot->box < 0) continue;
        if (g->box[slot->box].height > slot->height) slot->height = g->box[slot->box].height;
        if (ports[slot->box] > slot->height) slot->height = ports[slot->box];
    }
}

/* The slot of that order in a layer, or -1. */
static int slot_at(const attn_nap_graph *g, int layer, int order)
{
    for (int i = 0; i < g->slots; i++)
        if (g->slot[i].layer == layer && g->slot[i].order == order) return i;
    return -1;
}

/* Places the slots of a layer between 0 and height, in their order and as near to their wishes as it allows: halfway
 * between the highest and the lowest possible place. */
static void place_layer(attn_nap_graph *g, int layer, int height)
{
    int at[ATTN_NAP_SLOTS], down[ATTN_NAP_SLOTS], up[ATTN_NAP_SLOTS], count = 0;
    while ((at[count] = slot_at(g, layer, count)) >= 0)
        count++;
    for (int i = 0, edge = 0; i < count; i++) {
        const attn_nap_slot *slot = &g->slot[at[i]];
        down[i] = (int)slot->wish > edge ? (int)slot->wish : edge;
        edge = down[i] + slot->height + GAP;
    }
    for (int i = count - 1, edge = height; i >= 0; i--) {
        const attn_nap_slot *slot = &g->slot[at[i]];
        up[i] = (int)slot->wish + slot->height < edge ? (int)slot->wish : edge - slot->height;
        edge = up[i] - GAP;
    }
    for (int i = 0, edge = 0; i < count; i++) {
        int middle = (down[i] + up[i]) / 2;
        g->slot[at[i]].y = middle > edge ? middle : edge;
        edge = g->slot[at[i]].y + g->slot[at[i]].height + GAP;
    }
    for (int i = count - 1, edge = height; i >= 0; i--) {
        attn_nap_slot *slot = &g->slot[at[i]];
        if (slot->y + slot->height > edge) slot->y = edge - slot->height;
        edge = slot->y - GAP;
    }
}

/* Each slot wishes to be level with what it is wired to. */
static void straighten(attn_nap_graph *g, int layer, int height)
{
    for (int i = 0; i < g->slots; i++) {
        attn_nap_slot *slot = &g->slot[i];
        double sum = 0, count = 0;
        if (slot->layer != layer) continue;
        for (int j = 0; j < g->links; j++) {
            int other = g->link[j].from == i ? g->link[j].to : g->link[j].to == i ? g->link[j].from : -1;
            if (other < 0) continue;
            double weight = g->slot[other].box < 0 || slot->box < 0 ? 3 : 1; /* a bend on the way is the worst */
            sum += weight * (g->slot[other].y + g->slot[other].height / 2.0);
            count += weight;
        }
        slot->wish = count ? sum / count - slot->height / 2.0 : slot->y;
    }
    place_layer(g, layer, height);
}

static void find_rows(attn_nap_graph *g)
{
    int height[ATTN_NAP_BOXES], top = 0;
    for (int l = 0; l < g->layers; l++)
        height[l] = -GAP;
    for (int i = 0; i < g->slots; i++)
        height[g->slot[i].layer] += g->slot[i].height + GAP;
    for (int b = 0; b < g->bands; b++) {
        g->band_height[b] = 0;
        for (int l = 0; l < g->layers; l++)
            if (g->layer[l].band == b && height[l] > g->band_height[b]) g->band_height[b] = height[l];
        g->band_top[b] = top;
        top += g->band_height[b] + BAND_GAP;
    }
    g->height = top - BAND_GAP;
    for (int l = 0; l < g->layers; l++) {
        int y = (g->band_height[g->layer[l].band] - height[l]) / 2;
        for (int order = 0, i; (i = slot_at(g, l, order)) >= 0; order++) {
            g->slot[i].y = y;
            y += g->slot[i].height + GAP;
        }
    }
    for (int s = 0; s < SWEEPS; s++)
        for (int l = 0; l < g->layers; l++) {
            int layer = s % 2 ? l : g->layers - 1 - l;
            straighten(g, layer, g->band_height[g->layer[layer].band]);
        }
    for (int i = 0; i < g->slots; i++) {
        g->slot[i].y += g->band_top[g->layer[g->slot[i].layer].band];
        if (g->slot[i].box < 0) continue;
        g->box[g->slot[i].box].y = g->slot[i].y;
        g->box[g->slot[i].box].height = g->slot[i].height;
    }
}

/* The slot that a wire comes from last. */
static int last_slot(const attn_nap_graph *g, const attn_nap_wire *wire)
{
    return g->passing[wire->from][g->box[wire->to].layer - 1 - g->box[wire->from].layer];
}

/* Wires end at a box in the order in which they come; names below them. */
static void find_ports(attn_nap_graph *g)
{
    int key[ATTN_NAP_WIRES], total[ATTN_NAP_BOXES] = { 0 };
    for (int i = 0; i < g->wires; i++) {
        total[g->wire[i].to] += port_height(g, &g->wire[i]);
        key[i] = g->wire[i].named ? ATTN_NAP_SLOTS + i : g->slot[last_slot(g, &g->wire[i])].order;
    }
    for (int i = 0; i < g->wires; i++) {
        attn_nap_wire *wire = &g->wire[i];
        int above = 0;
        for (int j = 0; j < g->wires; j++)
            if (g->wire[j].to == wire->to && key[j] < key[i]) above += port_height(g, &g->wire[j]);
        wire->port = (g->box[wire->to].height - total[wire->to]) / 2 + above + port_height(g, wire) / 2;
    }
}

static void find_width(attn_nap_graph *g)
{
    int width[ATTN_NAP_BOXES] = { 0 };
    for (int l = 0; l < g->layers; l++)
        g->layer[l].names = 0;
    for (int i = 0; i < g->wires; i++) {
        attn_nap_layer *layer = &g->layer[g->box[g->wire[i].to].layer];
        int name = attn_nap_text_width(g->box[g->wire[i].from].title, 11) + NAME_SPACE;
        if (g->wire[i].named && name > layer->names) layer->names = name;
    }
    g->width = 0;
    for (int l = 0; l < g->layers; l++) {
        int *band = &width[g->layer[l].band];
        *band += (*band ? BEND : 0) + g->layer[l].names + g->layer[l].width;
        if (*band > g->width) g->width = *band;
    }
}

void attn_nap_place(attn_nap_graph *g)
{
    const int page = ATTN_NAP_WIDEST - 2 * ATTN_NAP_MARGIN;
    find_layers(g);
    for (int limit = page; limit == page || (g->width > page && limit > 0); limit -= 100) { /* names need room, too */
        find_bands(g, limit);
        name_long_wires(g);
        do
            find_order(g);
        while (name_worst_wires(g));
        find_width(g);
    }
    find_heights(g);
    find_rows(g);
    find_ports(g);
}
