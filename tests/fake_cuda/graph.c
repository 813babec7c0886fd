/* Graphs: what streams capture, launches and memory that is set or copied, and what is done when one is launched. */
#include "driver.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct node {
    waits waits;
    bool done;
    char symbol[64]; /* "": count numbers of `size` bytes, from `at`; or count bytes, from `from`; or copy */
    CUlaunchConfig config;
    CUlaunchAttribute attribute;
    void *params;
    CUdeviceptr at, from;
    size_t count, size;
    unsigned value;
    CUDA_MEMCPY2D copy; /* if it has rows */
} node;

struct CUgraph_st {
    node *nodes;
    int count;
    CUstream joined; /* the last one that joined the capture */
};

struct CUgraphExec_st {
    CUgraph graph;
};

static node *node_new(CUstream stream)
{
    CUgraph graph = stream->captured;
    graph->nodes = realloc(graph->nodes, (size_t)++graph->count * sizeof *graph->nodes);
    node *n = &graph->nodes[graph->count - 1];
    *n = (node){ .waits = stream->waits };
    stream->waits = (waits){ 1, { (CUgraphNode)(uintptr_t)graph->count } };
    return n;
}

void fake_capture_launch(const char *symbol, const CUlaunchConfig *config, const void *params)
{
    node *n = node_new(config->hStream);
    size_t size = fake_params_size(symbol, params);
    snprintf(n->symbol, sizeof n->symbol, "%s", symbol);
    n->config = *config;
    if (config->numAttrs > 0) n->attribute = config->attrs[0];
    n->params = memcpy(aligned_alloc(64, (size + 63) / 64 * 64), params, size);
}

void fake_capture_copy(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    node_new(stream)->copy = *copy;
}

void fake_copy(const CUDA_MEMCPY2D *c)
{
    for (size_t row = 0; row < c->Height; row++)
        memcpy((char *)(uintptr_t)c->dstDevice + row * c->dstPitch,
               (const char *)(uintptr_t)c->srcDevice + row * c->srcPitch, c->WidthInBytes);
}

CUresult fake_capture_wait(CUstream stream, CUevent event)
{
    if (!stream || (stream->captured && stream->captured != event->captured)) return INVALID_VALUE;
    if (!stream->captured) {
        stream->captured = event->captured, stream->waits.count = 0;
        stream->joined = event->captured->joined, event->captured->joined = stream;
    }
    for (size_t i = 0; i < event->waits.count; i++) {
        size_t k = 0;
        while (k < stream->waits.count && stream->waits.of[k] != event->waits.of[i])
            k++;
        if (k == WAITS_MOST) return INVALID_VALUE;
        if (k == stream->waits.count) stream->waits.of[stream->waits.count++] = event->waits.of[i];
    }
    return 0;
}

static void set_memory(const node *n)
{
    fake_copy(&n->copy);
    bool bytes = !n->from && n->size == 1;
    if (bytes && !n->value && n->count >= FLUSH) return;
    if (n->from) memcpy((void *)(uintptr_t)n->at, (void *)(uintptr_t)n->from, n->count);
    if (bytes) memset((void *)(uintptr_t)n->at, (unsigned char)n->value, n->count);
    for (size_t i = 0; i < n->count && n->size == 4; i++)
        ((unsigned *)(uintptr_t)n->at)[i] = n->value;
}

static void set_or_copy(CUstream stream, node n)
{
    if (!capturing(stream)) {
        set_memory(&n);
        return;
    }
    node *to = node_new(stream);
    n.waits = to->waits, *to = n;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CALLED;
    if (bytes == 4 && !capturing(stream)) { /* a word that another thread may wait for */
        atomic_store((_Atomic uint32_t *)(uintptr_t)to, atomic_load((_Atomic uint32_t *)(uintptr_t)from));
        return 0;
    }
    set_or_copy(stream, (node){ .at = to, .from = from, .count = bytes });
    return 0;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream stream)
{
    CALLED;
    set_or_copy(stream, (node){ .at = at, .value = value, .count = count, .size = 1 });
    return 0;
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream)
{
    CALLED;
    set_or_copy(stream, (node){ .at = at, .value = value, .count = count, .size = 4 });
    return 0;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    CALLED;
    (void)mode;
    if (!stream || stream->captured) return INVALID_VALUE; /* nobody captures the default stream */
    stream->captured = calloc(1, sizeof *stream->captured), stream->waits.count = 0;
    return stream->captured ? 0 : OUT_OF_MEMORY;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, const void **edges, size_t *count)
{
    CALLED;
    if (id || graph || edges) fake_die("asked for more of a capture than what is waited for");
    *status = capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (capturing(stream)) *nodes = stream->waits.of, *count = stream->waits.count;
    return 0;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count,
                                              unsigned flags)
{
    CALLED;
    if (!capturing(stream) || edges || count > WAITS_MOST || flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (nodes[i] == nodes[k]) return INVALID_VALUE;
    stream->waits.count = count;
    for (size_t i = 0; i < count; i++)
        stream->waits.of[i] = nodes[i];
    return 0;
}

/* Whether what the stream does next would come after all nodes: other streams' work has been waited for. */
static bool is_last(CUstream stream)
{
    CUgraph graph = stream->captured;
    for (int i = 0; i < graph->count; i++)
        graph->nodes[i].done = false;
    for (size_t k = 0; k < stream->waits.count; k++)
        graph->nodes[(uintptr_t)stream->waits.of[k] - 1].done = true;
    for (int i = graph->count; i-- > 0;) { /* a node waits for those before it alone */
        const node *n = &graph->nodes[i];
        if (!n->done) return false;
        for (size_t k = 0; k < n->waits.count; k++)
            graph->nodes[(uintptr_t)n->waits.of[k] - 1].done = true;
    }
    return true;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CALLED;
    if (stream->captured && !is_last(stream)) fake_die("a capture ends before other streams' work is waited for");
    *graph = stream->captured;
    stream->captured = NULL;
    for (CUstream s = *graph ? (*graph)->joined : NULL; s; s = s->joined)
        s->captured = NULL;
    return *graph ? 0 : INVALID_VALUE;
}

/* The graph's nodes are its own from then on; here they are the same, so it must live as long. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    CALLED;
    (void)flags;
    *executable = calloc(1, sizeof **executable);
    (*executable)->graph = graph;
    return 0;
}

/* Of those that wait for none the last: branches are done in the order in which they were not captured. */
static node *next_node(CUgraph graph)
{
    for (int i = graph->count; i-- > 0;) {
        node *n = &graph->nodes[i];
        bool ready = !n->done;
        for (size_t k = 0; k < n->waits.count && ready; k++)
            ready = graph->nodes[(uintptr_t)n->waits.of[k] - 1].done;
        if (ready) return n;
    }
    return NULL;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    CALLED;
    if (capturing(stream)) fake_die("a graph is launched into a stream that is captured");
    for (int i = 0; i < executable->graph->count; i++)
        executable->graph->nodes[i].done = false;
    for (node *n; (n = next_node(executable->graph));) {
        n->done = true, n->config.attrs = &n->attribute;
        if (n->symbol[0])
            fake_launch(n->symbol, &n->config, n->params);
        else
            set_memory(n);
    }
    return 0;
}

CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    free(executable);
    return 0;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    for (int i = 0; i < graph->count; i++)
        free(graph->nodes[i].params);
    free(graph->nodes);
    free(graph);
    return 0;
}
