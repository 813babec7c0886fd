/* Contract: cache.h. */
#define _POSIX_C_SOURCE 200809L
#include "cuda/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MOST = 4096, SIZE_MOST = 1 << 28 };

/* ---- hash ---------------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 uint128;

attn_hash attn_hash_start(void)
{
    return (attn_hash){ 0x6c62272e07bb0142u, 0x62b821756295c58du };
}

attn_hash attn_hash_more(attn_hash hash, const void *data, size_t size)
{
    const uint128 prime = (uint128)1 << 88 | 0x13b;
    uint128 h = (uint128)hash.high << 64 | hash.low;
    for (size_t i = 0; i < size; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * prime;
    return (attn_hash){ (uint64_t)(h >> 64), (uint64_t)h };
}

/* ---- files --------------------------------------------------------------------------------- */

typedef struct header {
    char magic[16];
    attn_hash key, hash; /* hash: of the data */
    uint64_t size;
} header;

static const char magic[16] = "libattn kernel 1";

/* The folder's name, without the last slash; false: there is none. */
static bool folder(char path[PATH_MOST])
{
    const char *own = getenv("ATTN_CACHE_DIR"), *all = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (own && *own)
        length = snprintf(path, PATH_MOST, "%s", own);
    else if (all && *all == '/')
        length = snprintf(path, PATH_MOST, "%s/libattn", all);
    else if (home && *home)
        length = snprintf(path, PATH_MOST, "%s/.cache/libattn", home);
    else
        return false;
    return length > 0 && length < PATH_MOST - 128;
}

static void make_folders(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    mkdir(path, 0700);
}

static void append_name(char *path, attn_hash key, const char *end)
{
    size_t length = strlen(path);
    snprintf(path + length, PATH_MOST - length, "/%016llx%016llx%s", (unsigned long long)key.high,
             (unsigned long long)key.low, end);
}

static bool read_all(int file, void *data, size_t size)
{
    for (char *at = data; size > 0;) {
        ssize_t n = read(file, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n, size -= (size_t)n;
    }
    return true;
}

static bool write_all(int file, const void *data, size_t size)
{
    for (const char *at = data; size > 0;) {
        ssize_t n = write(file, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n, size -= (size_t)n;
    }
    return true;
}

static bool same(attn_hash a, attn_hash b)
{
    return a.high == b.high && a.low == b.low;
}

static void *read_entry(int file, attn_hash key, size_t *size)
{
    header h;
    if (!read_all(file, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic) || !same(h.key, key)) return NULL;
    if (h.size == 0 || h.size > SIZE_MOST) return NULL;
    void *data = malloc((size_t)h.size);
    if (!data) return NULL;
    if (read_all(file, data, (size_t)h.size) && same(h.hash, attn_hash_more(attn_hash_start(), data, (size_t)h.size))) {
        *size = (size_t)h.size;
        return data;
    }
    free(data);
    return NULL;
}

void *attn_cache_read(attn_hash key, size_t *size)
{
    char path[PATH_MOST];
    if (!folder(path)) return NULL;
    append_name(path, key, "");
    int saved = errno, file = open(path, O_RDONLY | O_CLOEXEC);
    void *data = file >= 0 ? read_entry(file, key, size) : NULL;
    if (file >= 0) close(file);
    errno = saved;
    return data;
}

static bool write_entry(const char *path, attn_hash key, const void *data, size_t size)
{
    header h = { .key = key, .hash = attn_hash_more(attn_hash_start(), data, size), .size = size };
    memcpy(h.magic, magic, sizeof magic);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return false;
    bool written = write_all(file, &h, sizeof h) && write_all(file, data, size);
    return close(file) == 0 && written;
}

void attn_cache_write(attn_hash key, const void *data, size_t size)
{
    static atomic_uint writes; /* tells the threads of a process apart */
    char path[PATH_MOST], temporary[PATH_MOST], end[64];
    int saved = errno;
    if (size == 0 || size > SIZE_MOST || !folder(path)) return;
    make_folders(path);
    memcpy(temporary, path, sizeof temporary);
    append_name(path, key, "");
    snprintf(end, sizeof end, ".%ld.%u", (long)getpid(), atomic_fetch_add(&writes, 1));
    append_name(temporary, key, end);
    if (!write_entry(temporary, key, data, size) || rename(temporary, path) != 0) unlink(temporary);
    errno = saved;
}
