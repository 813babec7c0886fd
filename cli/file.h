/* Files, in and out.
 *
 * Input: read into memory, so that nobody can change or shorten it under the work. A regular file is read to its end,
 * anything else (a pipe, a device) as far as its header says.
 * Output: written whole or not at all. A temporary file beside the target gets what the caller left in memory, is
 * synced and renamed over the target. Space is allotted first, so a full disk shows before the work. Until the rename
 * SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE remove it on their way out; what SIGKILL leaves is in nobody's way.
 * A target that exists keeps its permissions and, where the system lets us, its owner and group; links to it are
 * followed. Other hard links to it keep the old content. */
#ifndef ATTN_CLI_FILE_H
#define ATTN_CLI_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

typedef struct attn_file {
    unsigned char *bytes; /* at a multiple of 64 */
    size_t size;
    uint64_t device, number; /* which file it is: stat's st_dev and st_ino */
} attn_file;

/* Says, by the first `size` bytes of a file, how long the file is; or, if that takes more of its header, up to where it
 * must be read to say more: *need > size then. Fails where the header is wrong. */
typedef attn_status attn_file_extent(const void *bytes, size_t size, uint64_t *need);

/* extent: NULL where the file has no header; what is no regular file may then be 64 MiB long. A regular file may be
 * longer or shorter than its header says: the caller looks. Messages do not name the path. */
attn_status attn_file_open(attn_file *file, const char *path, attn_file_extent *extent);
void attn_file_close(attn_file *file);

typedef struct attn_output {
    unsigned char *bytes; /* zeros at first, at a multiple of 64 */
    size_t size;
    char *target;
    int slot; /* of the temporary's name; see file.c */
    int descriptor;
} attn_output;

/* size > 0; at most ATTN_OUTPUTS_MOST outputs at a time. On failure nothing is left of it. */
enum { ATTN_OUTPUTS_MOST = 8 };
attn_status attn_output_create(attn_output *output, const char *path, size_t size);

/* Whether both will be renamed to the same name. */
bool attn_output_same(const attn_output *a, const attn_output *b);

/* Whether the output will replace the file that was read. */
bool attn_output_replaces(const attn_output *output, const attn_file *file);

/* Writes the temporary file: all that may fail for want of space. */
attn_status attn_output_write(attn_output *output);

/* Ends the output, in place (written first, if it is not yet) or without a trace. Both allow a zeroed struct. */
attn_status attn_output_commit(attn_output *output);
void attn_output_discard(attn_output *output);

/* All of it at once, from text in memory; size > 0. */
attn_status attn_output_text(const char *path, const char *text, size_t size);

#endif
