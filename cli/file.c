/* See file.h. Temporaries' names stand in static slots so that the signal handler can remove them. */
#define _XOPEN_SOURCE 700
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
#include <unistd.h>

#include "api/error.h"

enum { SLOTS = ATTN_OUTPUTS_MOST };

static char slot_path[SLOTS][PATH_MAX];
static volatile sig_atomic_t slot_used[SLOTS];

static attn_status system_failure(const char *what)
{
    return attn_fail(errno == ENOMEM ? ATTN_NO_MEMORY : ATTN_INVALID, "cannot %s: %s", what, strerror(errno));
}

static attn_status read_whole(attn_file *file, int descriptor)
{
    size_t room = 1 << 16;
    char *bytes = malloc(room);
    file->size = 0;
    while (bytes) {
        ssize_t got = read(descriptor, bytes + file->size, room - file->size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            file->bytes = bytes;
            return got ? system_failure("read") : ATTN_OK;
        }
        file->size += (size_t)got;
        if (file->size < room) continue;
        char *grown = realloc(bytes, room *= 2);
        if (!grown) free(bytes);
        bytes = grown;
    }
    return attn_fail(ATTN_NO_MEMORY, "no memory for more than %zu bytes", file->size);
}

attn_status attn_file_open(attn_file *file, const char *path)
{
    struct stat info;
    *file = (attn_file){ .bytes = NULL };
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || fstat(descriptor, &info)) {
        attn_status failed = system_failure("open");
        if (descriptor >= 0) close(descriptor);
        return failed;
    }
    attn_status status = ATTN_OK;
    if (S_ISREG(info.st_mode) && info.st_size > 0) {
        file->bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        file->mapped = file->bytes != MAP_FAILED;
        file->size = (size_t)info.st_size;
        if (!file->mapped) {
            file->bytes = NULL;
            status = system_failure("map");
        }
    } else {
        status = read_whole(file, descriptor);
    }
    close(descriptor);
    if (status) attn_file_close(file);
    return status;
}

void attn_file_close(attn_file *file)
{
    if (file->mapped)
        munmap(file->bytes, file->size);
    else
        free(file->bytes);
    *file = (attn_file){ .bytes = NULL };
}

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
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    for (int i = 0; i < 3; i++) {
        struct sigaction action = { .sa_handler = remove_and_end }, old;
        sigemptyset(&action.sa_mask);
        if (!sigaction(numbers[i], NULL, &old) && old.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit shows as EFBIG */
}

/* The file that `path` names, through links; itself where there is none yet. */
static attn_status resolve(attn_output *output, const char *path)
{
    struct stat info;
    if (!stat(path, &info) && !S_ISREG(info.st_mode))
        return attn_fail(ATTN_INVALID, "cannot be replaced: it is not a regular file");
    output->target = realpath(path, NULL);
    if (!output->target && errno == ENOENT) output->target = strdup(path);
    return output->target ? ATTN_OK : system_failure("write");
}

static attn_status create_temporary(attn_output *output)
{
    int slot = 0;
    while (slot_used[slot])
        slot++;
    int length = snprintf(slot_path[slot], PATH_MAX, "%s.%ld.tmp", output->target, (long)getpid());
    if (length >= PATH_MAX) return attn_fail(ATTN_INVALID, "the path is too long");
    catch_signals();
    sigset_t all, before; /* no signal between making the file and knowing of it */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    output->descriptor = open(slot_path[slot], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int error = errno;
    slot_used[slot] = output->descriptor >= 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error;
    if (!slot_used[slot]) return system_failure("write");
    output->slot = slot;
    return ATTN_OK;
}

attn_status attn_output_create(attn_output *output, const char *path, size_t size)
{
    *output = (attn_output){ .size = size, .descriptor = -1, .slot = -1 };
    attn_status status = resolve(output, path);
    if (!status) status = create_temporary(output);
    if (!status) {
        errno = posix_fallocate(output->descriptor, 0, (off_t)size);
        if (errno) status = system_failure("write");
    }
    if (!status) {
        void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, output->descriptor, 0);
        if (bytes == MAP_FAILED)
            status = system_failure("map");
        else
            output->bytes = bytes;
    }
    if (status) attn_output_discard(output);
    return status;
}

static void forget(attn_output *output)
{
    free(output->target);
    if (output->slot >= 0) slot_used[output->slot] = 0;
    *output = (attn_output){ .descriptor = -1, .slot = -1 };
}

attn_status attn_output_commit(attn_output *output)
{
    if (!output->target) return ATTN_OK;
    munmap(output->bytes, output->size);
    output->bytes = NULL;
    int failed = fsync(output->descriptor) != 0;
    failed |= close(output->descriptor) != 0;
    output->descriptor = -1;
    if (failed || rename(slot_path[output->slot], output->target)) {
        attn_status status = system_failure("write");
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
