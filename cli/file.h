/* Files, in and out.
 *
 * Input: a regular file is mapped, anything else (a pipe) is read to its end.
 * Output: written whole or not at all. A temporary file beside the target is mapped, filled by the caller, synced and
 * renamed over the target. Space is allotted first, so a full disk shows before the work. Until the rename SIGINT,
 * SIGTERM and SIGHUP remove it on their way out. */
#ifndef ATTN_CLI_FILE_H
#define ATTN_CLI_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

typedef struct attn_file {
    void *bytes;
    size_t size;
    bool mapped;
} attn_file;

/* Messages do not name the path. */
attn_status attn_file_open(attn_file *file, const char *path);
void attn_file_close(attn_file *file);

typedef struct attn_output {
    unsigned char *bytes; /* zeros at first */
    size_t size;
    char *target;
    int slot; /* of the temporary's name; see file.c */
    int descriptor;
} attn_output;

/* size > 0; at most ATTN_OUTPUTS_MOST outputs at a time. On failure nothing is left of it. */
enum { ATTN_OUTPUTS_MOST = 8 };
attn_status attn_output_create(attn_output *output, const char *path, size_t size);

/* Ends the output, in place or without a trace. Both allow a zeroed struct. */
attn_status attn_output_commit(attn_output *output);
void attn_output_discard(attn_output *output);

#endif
