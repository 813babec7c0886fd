/* What the driver's files share: driver.c, and graph.c for what streams capture. */
#ifndef TESTS_FAKE_CUDA_DRIVER_H
#define TESTS_FAKE_CUDA_DRIVER_H

#include "fake.h"

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500
};

/* As much memory is set to 0 to empty caches, and is nothing else: nobody writes it here. */
enum { FLUSH = 256 << 20 };

/* Counts a call; what it was told to return. */
CUresult fake_called(const char *name);

#define CALLED                                    \
    do {                                          \
        CUresult result_ = fake_called(__func__); \
        if (result_) return result_;              \
    } while (0)

#define API __attribute__((visibility("default")))

/* The prototypes, under the symbols' own names. */
#define PROTOTYPE(member, symbol, arguments) API CUresult symbol arguments;
ATTN_CUDA_FUNCTIONS(PROTOTYPE)
/* And of those that programs call, but the library does not. */
PROTOTYPE(, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *from, size_t bytes, CUstream))
PROTOTYPE(, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr, size_t bytes, CUstream))

/* Which nodes a node of a graph waits for. */
enum { WAITS_MOST = 16 };

typedef struct waits {
    size_t count;
    CUgraphNode of[WAITS_MOST]; /* 1 + a node's number */
} waits;

struct CUstream_st {
    CUcontext context;
    CUgraph captured; /* NULL: its work is done at once */
    waits waits;      /* of what is captured next */
    CUstream joined;  /* the one that joined the capture before it */
};

struct CUevent_st {
    CUgraph captured; /* NULL: it is there at once */
    waits waits;
};

static inline bool capturing(CUstream stream)
{
    return stream && stream->captured;
}

/* A launch, or a copy, as a node of what its stream captures. */
void fake_capture_launch(const char *symbol, const CUlaunchConfig *config, const void *params);
void fake_capture_copy(const CUDA_MEMCPY2D *copy, CUstream stream);

void fake_copy(const CUDA_MEMCPY2D *copy);

/* A stream waits for a captured event: it joins the capture. */
CUresult fake_capture_wait(CUstream stream, CUevent event);

#endif
