/* See file.h. Temporaries' names are in static slots so that the signal handler can remove them. */
#define _DEFAULT_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

enum {
    SLOTS = ATTN_OUTPUTS_MOST,
    ALIGNMENT = 64,
    FIRST_ROOM = 1 << 16,
    STREAM_MOST = 64 << 20, /* of what has neither an end nor a header that says where it is */
    LINKS_MOST = 40,
    NAME_KEPT = 200 /* characters of the target's name in the temporary's: a name may have 255 */
};

static char slot_path[SLOTS][PATH_MAX];
static volatile sig_atomic_t slot_used[SLOTS];

static attn_status system_failure(const char *what)
{
    return attn_fail(errno == ENOMEM ? ATTN_NO_MEMORY : ATTN_INVALID, "cannot %s: %s", what, strerror(errno));
}

/* ---- input --------------------------------------------------------------------------------- */

typedef struct reader {
    attn_file *file;
    size_t room; /* for its bytes */
    int descriptor;
    bool regular;
    bool ended;
    struct stat info;
    uint64_t end; /* of a regular file; of others the most that is read */
} reader;

/* Room for `wanted` bytes; as long as nothing but a header says so, for twice what there is. */
static attn_status grow(reader *r, uint64_t wanted)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t twice = r->room ? 2 * (uint64_t)r->room : FIRST_ROOM, room = r->regular || wanted < twice ? wanted : twice;
    void *grown = NULL;
    if (wanted > memory || wanted > SIZE_MAX || posix_memalign(&grown, ALIGNMENT, (size_t)room))
        return attn_fail(ATTN_NO_MEMORY, "no memory for its %llu bytes", (unsigned long long)wanted);
    if (r->file->size) memcpy(grown, r->file->bytes, r->file->size);
    free(r->file->bytes);
    r->file->bytes = grown;
    r->room = (size_t)room;
    return ATTN_OK;
}

/* Reads on until `wanted` bytes are there or the file ends. */
static attn_status read_to(reader *r, uint64_t wanted)
{
    attn_file *file = r->file;
    while (file->size < wanted && !r->ended) {
        attn_status status = file->size == r->room ? grow(r, wanted) : ATTN_OK;
        if (status) return status;
        size_t room = (wanted < r->room ? (size_t)wanted : r->room) - file->size;
        ssize_t got = read(r->descriptor, file->bytes + file->size, room);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_failure("read");
        r->ended = got == 0;
        file->size += (size_t)got;
    }
    return ATTN_OK;
}

/* Of a regular file: that it is as it was when it was opened. */
static attn_status check_unchanged(const reader *r)
{
    struct stat now;
    if (fstat(r->descriptor, &now)) return system_failure("read");
    if (r->file->size == r->end && now.st_size == r->info.st_size && now.st_mtim.tv_sec == r->info.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == r->info.st_mtim.tv_nsec)
        return ATTN_OK;
    return attn_fail(ATTN_INVALID, "changed while it was read");
}

/* Of anything else: that nothing follows. */
static attn_status check_ended(const reader *r, bool header)
{
    unsigned char more;
    ssize_t got;
    do
        got = r->ended ? 0 : read(r->descriptor, &more, 1);
    while (got < 0 && errno == EINTR);
    if (got < 0) return system_failure("read");
    if (got && header)
        return attn_fail(ATTN_INVALID, "goes on after the %zu bytes that its header announces", r->file->size);
    if (got)
        return attn_fail(ATTN_INVALID, "takes at most %d MiB from what is no regular file: this goes on",
                         STREAM_MOST >> 20);
    return ATTN_OK;
}

static attn_status read_whole(reader *r, attn_file_extent *extent)
{
    const attn_file *file = r->file;
    attn_status status = ATTN_OK;
    uint64_t need = r->end;
    while (!status) {
        if (extent) status = extent(file->bytes, file->size, &need);
        if (status || file->size >= need || file->size >= r->end || r->ended) break;
        status = read_to(r, need < r->end ? need : r->end);
    }
    if (!status && r->regular) status = read_to(r, r->end);
    if (status) return status;
    return r->regular ? check_unchanged(r) : check_ended(r, extent != NULL);
}

attn_status attn_file_open(attn_file *file, const char *path, attn_file_extent *extent)
{
    *file = (attn_file){ .bytes = NULL };
    reader r = { .file = file, .descriptor = open(path, O_RDONLY | O_CLOEXEC) };
    if (r.descriptor < 0) return system_failure("open");
    attn_status status = fstat(r.descriptor, &r.info) ? system_failure("open") : ATTN_OK;
    file->device = (uint64_t)r.info.st_dev, file->number = (uint64_t)r.info.st_ino;
    r.regular = !status && S_ISREG(r.info.st_mode) && r.info.st_size > 0; /* in /proc they have no size */
    r.end = r.regular ? (uint64_t)r.info.st_size : extent ? UINT64_MAX : STREAM_MOST;
    if (!status) status = read_whole(&r, extent);
    close(r.descriptor);
    if (status) attn_file_close(file);
    return status;
}

void attn_file_close(attn_file *file)
{
    free(file->bytes);
    *file = (attn_file){ .bytes = NULL };
}

/* ---- output -------------------------------------------------------------------------------- */

static void remove_and_end(int number)
{
    for (int i = 0; i < SLOTS; i++) {
        if (slot_used[i]) unlink(slot_path[i]);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = { .sa_handler = remove_and_end }, old;
        sigemptyset(&action.sa_mask);
        if (!sigaction(numbers[i], NULL, &old) && old.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit shows as EFBIG */
}

/* The length of the folder in a path, its slash included. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* Follows links to the name of a file, or of none yet, and stats that. */
static attn_status resolve(attn_output *output, const char *path, struct stat *old, bool *exists)
{
    char link[PATH_MAX];
    ssize_t length = 0;
    if (!path[folder_length(path)]) return attn_fail(ATTN_INVALID, "cannot write: '%.200s' names no file", path);
    output->target = strdup(path);
    for (int i = 0; output->target && i < LINKS_MOST && length >= 0; i++) {
        length = readlink(output->target, link, sizeof link - 1);
        if (length < 0) break;
        size_t folder = link[0] == '/' ? 0 : folder_length(output->target);
        char *next = malloc(folder + (size_t)length + 1);
        if (next) {
            memcpy(next, output->target, folder);
            memcpy(next + folder, link, (size_t)length);
            next[folder + (size_t)length] = 0;
        }
        free(output->target);
        output->target = next;
    }
    if (!output->target) return attn_fail(ATTN_NO_MEMORY, "no memory for a path");
    *exists = !stat(output->target, old);
    if (!*exists) return errno == ENOENT ? ATTN_OK : system_failure("write");
    if (!S_ISREG(old->st_mode)) return attn_fail(ATTN_INVALID, "cannot be replaced: it is not a regular file");
    if (faccessat(AT_FDCWD, output->target, W_OK, AT_EACCESS)) return system_failure("replace it");
    return ATTN_OK;
}

/* A name that nobody else takes: another one if there is such a file, be it left by a run that was killed or made by
 * the process of the same number in another container. */
static attn_status open_temporary(attn_output *output, char path[PATH_MAX])
{
    size_t folder = folder_length(output->target);
    do {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        int length = snprintf(path, PATH_MAX, "%.*s%.*s.%ld-%09ld.tmp", (int)folder, output->target, NAME_KEPT,
                              output->target + folder, (long)getpid(), now.tv_nsec);
        if (length >= PATH_MAX) return attn_fail(ATTN_INVALID, "cannot write: the path is too long");
        output->descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (output->descriptor < 0 && errno == EEXIST);
    return output->descriptor < 0 ? system_failure("write in its folder") : ATTN_OK;
}

static attn_status create_temporary(attn_output *output)
{
    int slot = 0;
    while (slot_used[slot])
        slot++;
    catch_signals();
    sigset_t all, before; /* no signal between making the file and knowing of it */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    attn_status status = open_temporary(output, slot_path[slot]);
    slot_used[slot] = !status;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (!status) output->slot = slot;
    return status;
}

/* Owner and group as far as we may, permissions in any case; with an owner of its own a file has no set-id bits. */
static attn_status keep_mode(int descriptor, const struct stat *old)
{
    struct stat now;
    mode_t mode = old->st_mode & 07777;
    if (fchown(descriptor, old->st_uid, old->st_gid)) {
        mode &= 0777;
        if (fchown(descriptor, (uid_t)-1, old->st_gid) && errno != EPERM) return system_failure("keep its group");
    }
    if (fstat(descriptor, &now)) return system_failure("write");
    if ((now.st_mode & 07777) != mode && fchmod(descriptor, mode)) return system_failure("keep its permissions");
    return ATTN_OK;
}

static attn_status allot(attn_output *output)
{
    int error;
    do
        error = posix_fallocate(output->descriptor, 0, (off_t)output->size);
    while (error == EINTR);
    errno = error;
    if (error && error != EOPNOTSUPP && error != EINVAL) return system_failure("write"); /* those: it shows later */
    void *bytes = mmap(NULL, output->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return attn_fail(ATTN_NO_MEMORY, "no memory for its %zu bytes", output->size);
    output->bytes = bytes;
    return ATTN_OK;
}

attn_status attn_output_create(attn_output *output, const char *path, size_t size)
{
    struct stat old;
    bool exists = false;
    *output = (attn_output){ .size = size, .descriptor = -1, .slot = -1 };
    attn_status status = resolve(output, path, &old, &exists);
    if (!status) status = create_temporary(output);
    if (!status && exists) status = keep_mode(output->descriptor, &old);
    if (!status) status = allot(output);
    if (status) attn_output_discard(output);
    return status;
}

static bool stat_folder(const attn_output *output, struct stat *info)
{
    size_t length = folder_length(output->target);
    char *folder = length ? strndup(output->target, length) : strdup(".");
    bool good = folder && !stat(folder, info);
    free(folder);
    return good;
}

bool attn_output_same(const attn_output *a, const attn_output *b)
{
    struct stat in_a, in_b;
    return !strcmp(a->target + folder_length(a->target), b->target + folder_length(b->target)) &&
           stat_folder(a, &in_a) && stat_folder(b, &in_b) && in_a.st_dev == in_b.st_dev && in_a.st_ino == in_b.st_ino;
}

bool attn_output_replaces(const attn_output *output, const attn_file *file)
{
    struct stat now;
    return !stat(output->target, &now) && (uint64_t)now.st_dev == file->device && (uint64_t)now.st_ino == file->number;
}

static void forget(attn_output *output)
{
    free(output->target);
    if (output->slot >= 0) slot_used[output->slot] = 0;
    *output = (attn_output){ .descriptor = -1, .slot = -1 };
}

attn_status attn_output_write(attn_output *output)
{
    bool failed = false;
    for (size_t at = 0; at < output->size && !failed;) {
        ssize_t put = write(output->descriptor, output->bytes + at, output->size - at);
        if (put > 0) at += (size_t)put;
        failed = put == 0 || (put < 0 && errno != EINTR);
    }
    if (!failed) failed = fsync(output->descriptor) != 0;
    attn_status status = failed ? system_failure("write") : ATTN_OK;
    if (close(output->descriptor) && !status) status = system_failure("write");
    output->descriptor = -1;
    munmap(output->bytes, output->size);
    output->bytes = NULL;
    if (status) attn_output_discard(output);
    return status;
}

attn_status attn_output_commit(attn_output *output)
{
    if (!output->target) return ATTN_OK;
    attn_status status = output->bytes ? attn_output_write(output) : ATTN_OK;
    if (status) return status;
    if (rename(slot_path[output->slot], output->target)) {
        status = system_failure("write");
        attn_output_discard(output);
        return status;
    }
    forget(output);
    return ATTN_OK;
}

void attn_output_discard(attn_output *output)
{
    if (!output->target) return;
    if (output->bytes) munmap(output->bytes, output->size);
    if (output->descriptor >= 0) close(output->descriptor);
    if (output->slot >= 0) unlink(slot_path[output->slot]);
    forget(output);
}

attn_status attn_output_text(const char *path, const char *text, size_t size)
{
    attn_output output;
    attn_status status = attn_output_create(&output, path, size);
    if (status) return status;
    memcpy(output.bytes, text, size);
    return attn_output_commit(&output);
}
