/* Text from files to batches. */
#define _POSIX_C_SOURCE 200809L
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "check/random.h"
#include "command.h"
#include "file.h"
#include "gpt.h"

static void append(uint8_t **to, int64_t *count, const uint8_t *bytes, int64_t more)
{
    uint8_t *grown = gpt_allocate(*count + more, 1);
    if (*count) memcpy(grown, *to, (size_t)*count);
    if (more) memcpy(grown + *count, bytes, (size_t)more);
    free(*to);
    *to = grown;
    *count += more;
}

static attn_status add_file(gpt_text *text, const char *path)
{
    attn_file file;
    attn_status status = attn_file_open(&file, path, NULL);
    if (status) return attn_fail_in(status, path);
    int64_t size = (int64_t)file.size, held = size / 16;
    append(&text->train, &text->train_count, file.bytes, size - held);
    append(&text->held, &text->held_count, file.bytes + (size - held), held);
    attn_file_close(&file);
    text->files++;
    return ATTN_OK;
}

static attn_status add_pattern(gpt_text *text, const char *pattern)
{
    glob_t found;
    attn_status status = ATTN_OK;
    int failed = glob(pattern, 0, NULL, &found);
    if (failed == GLOB_NOMATCH) return attn_fail(ATTN_INVALID, "no file of this name: %.200s", pattern);
    if (failed) return attn_fail(ATTN_INVALID, "cannot be searched for: %.200s", pattern);
    for (size_t i = 0; i < found.gl_pathc && !status; i++)
        status = add_file(text, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

attn_status gpt_text_read(gpt_text *text, const char *patterns)
{
    attn_status status = ATTN_OK;
    *text = (gpt_text){ .files = 0 };
    for (const char *at = patterns; !status; at++) {
        size_t length = strcspn(at, ",");
        char *pattern = gpt_allocate((int64_t)length + 1, 1);
        memcpy(pattern, at, length);
        status = add_pattern(text, pattern);
        free(pattern);
        at += length;
        if (!*at) break;
    }
    if (status) gpt_text_free(text);
    return status;
}

void gpt_text_free(gpt_text *text)
{
    free(text->train);
    free(text->held);
    *text = (gpt_text){ .files = 0 };
}

void gpt_text_batch(const uint8_t *text, int64_t count, int64_t batch, int64_t rows, uint64_t *random, uint8_t *bytes,
                    uint8_t *targets)
{
    for (int64_t b = 0; b < batch; b++) {
        const uint8_t *window = text + check_below(random, count - rows);
        memcpy(bytes + b * rows, window, (size_t)rows);
        memcpy(targets + b * rows, window + 1, (size_t)rows);
    }
}
