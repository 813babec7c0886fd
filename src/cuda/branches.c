/* Branches of a captured graph: a capture remembers which nodes the stream's next one waits for, and lets them be set.
 * So no second stream is needed, and no event: threads that capture at once share nothing. Contract: branches.h. */
#include "cuda/branches.h"

#include "base/error.h"
#include "cuda/driver.h"

/* What the stream's next node would wait for, added to the count nodes at `to`, each once. */
static CUresult add_nodes(void *stream, void **to, size_t *count, bool *captured)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t found = 0, known;
    CUresult result =
        attn_cuda_machine_get()->driver.cuStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, NULL, &found);
    *captured = !result && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    for (size_t i = 0; i < found && *captured; i++) {
        for (known = 0; known < *count && to[known] != (void *)nodes[i];)
            known++;
        if (known == ATTN_BRANCH_NODES) *captured = false;
        if (*captured) to[known] = nodes[i], *count += known == *count;
    }
    return result;
}

bool attn_branches_begin(attn_branches *b, void *stream)
{
    bool captured = false;
    *b = (attn_branches){ .stream = stream };
    if (stream) add_nodes(stream, b->start, &b->starts, &captured);
    return captured;
}

attn_status attn_branches_next(attn_branches *b, bool last)
{
    bool captured;
    CUgraphNode nodes[ATTN_BRANCH_NODES];
    CUresult result = add_nodes(b->stream, b->end, &b->ends, &captured);
    if (!result && !captured) return attn_fail(ATTN_DEVICE_FAILED, "a captured graph: the capture ended during a run");
    size_t count = last ? b->ends : b->starts;
    for (size_t i = 0; i < count; i++)
        nodes[i] = last ? b->end[i] : b->start[i];
    if (!result)
        result = attn_cuda_machine_get()->driver.cuStreamUpdateCaptureDependencies(b->stream, nodes, NULL, count,
                                                                                   CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    return result ? attn_cuda_fail(result, "branches of a captured graph") : ATTN_OK;
}
