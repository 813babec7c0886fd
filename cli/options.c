/* Reading a command line by its table; see options.h. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"

enum { HELP_COLUMN = 26, NAME_MOST = 24 };

static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(b), row[NAME_MOST + 1];
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (a[i] != b[j - 1]);
            corner = row[j];
            if (corner + 1 < best) best = corner + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* Whether the letters of `short_form` come in `name` in this order, the first one first: secs in seconds. */
static bool abbreviates(const char *short_form, const char *name)
{
    if (*short_form != *name) return false;
    for (; *name && *short_form; name++)
        short_form += *short_form == *name;
    return !*short_form;
}

const char *attn_nearest(const char *text, const char *const *names, int count)
{
    size_t length = strlen(text), best = length / 3 + 1;
    const char *nearest = NULL;
    for (int i = 0; i < count && length <= NAME_MOST; i++) {
        if (strlen(names[i]) > NAME_MOST) continue;
        size_t d = !length                                     ? distance(text, names[i])
                   : strncmp(names[i], text, length) == 0      ? 0
                   : length > 2 && abbreviates(text, names[i]) ? 1
                                                               : distance(text, names[i]);
        if (d > best || (nearest && d == best)) continue;
        best = d;
        nearest = names[i];
    }
    return nearest;
}

static attn_status unknown_option(const attn_command *command, const char *word)
{
    const char *names[64];
    for (int i = 0; i < command->count; i++)
        names[i] = command->options[i].name;
    if (word[0] != '-')
        return attn_fail(ATTN_INVALID, "'%.60s' is not an option: this command takes options only", word);
    size_t length = strcspn(word, "=");
    char name[NAME_MOST + 2];
    snprintf(name, sizeof name, "%.*s", (int)(length < NAME_MOST + 1 ? length : NAME_MOST + 1), word);
    const char *nearest = attn_nearest(name + strspn(name, "-"), names, command->count);
    if (nearest) return attn_fail(ATTN_INVALID, "unknown option %.60s; did you mean --%s?", word, nearest);
    return attn_fail(ATTN_INVALID, "unknown option %.60s", word);
}

/* The option that `word` names, and after '=' its value; -1: none. */
static int find_option(const attn_command *command, const char *word, const char **value)
{
    for (int i = 0; i < command->count; i++) {
        const attn_option *option = &command->options[i];
        size_t length = strlen(option->name);
        *value = option->letter == ATTN_OPERAND && word[0] != '-' ? word : NULL;
        if (*value) return i;
        if (word[0] == '-' && option->letter && word[1] == option->letter && !word[2]) return i;
        if (strncmp(word, "--", 2) || strncmp(word + 2, option->name, length)) continue;
        const char *end = word + 2 + length;
        if (*end == '=') *value = end + 1;
        if (!*end || *end == '=') return i;
    }
    return -1;
}

static attn_status parse_value(const attn_option *option, const char *text, char *values)
{
    if (!option->parse(text, values + option->offset)) return ATTN_OK;
    char where[128];
    snprintf(where, sizeof where, "--%s %.60s", option->name, text ? text : "");
    return attn_fail_in(ATTN_INVALID, where);
}

attn_status attn_options_parse(const attn_command *command, int argc, char **argv, void *values, bool *help)
{
    uint64_t seen = 0;
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            *help = true;
            return ATTN_OK;
        }
        int index = find_option(command, argv[i], &value);
        if (index < 0) return unknown_option(command, argv[i]);
        const attn_option *option = &command->options[index];
        if (seen >> index & 1) return attn_fail(ATTN_INVALID, "--%s is given twice", option->name);
        seen |= (uint64_t)1 << index;
        if (!option->argument && value) return attn_fail(ATTN_INVALID, "--%s takes no value", option->name);
        if (option->argument && !value) {
            if (i + 1 == argc) return attn_fail(ATTN_INVALID, "--%s needs a value: %s", option->name, option->argument);
            value = argv[++i];
        }
        attn_status status = parse_value(option, value, values);
        if (status) return status;
    }
    return ATTN_OK;
}

static void print_option(const attn_option *option)
{
    char left[64];
    if (option->letter == ATTN_OPERAND) {
        printf("  %-*s%s\n", HELP_COLUMN - 2, option->argument, option->help);
        return;
    }
    int length = option->letter ? snprintf(left, sizeof left, "  -%c, --%s", option->letter, option->name)
                                : snprintf(left, sizeof left, "  --%s", option->name);
    if (option->argument) snprintf(left + length, sizeof left - (size_t)length, " %s", option->argument);
    printf("%-*s", HELP_COLUMN, left);
    if (strlen(left) >= HELP_COLUMN) printf("\n%*s", HELP_COLUMN, "");
    for (const char *c = option->help; *c; c++) {
        putchar(*c);
        if (*c == '\n') printf("%*s", HELP_COLUMN, "");
    }
    putchar('\n');
}

void attn_options_print(const attn_command *command)
{
    for (int i = 0; i < command->count; i++)
        print_option(&command->options[i]);
    printf("%-*s%s\n", HELP_COLUMN, "  -h, --help", "print this");
    if (command->details) printf("\n%s", command->details);
}

static void (*visitor)(const attn_command *command, void *context);
static void *visitor_context;

void attn_options_visit(void (*visit)(const attn_command *command, void *context), void *context)
{
    visitor = visit;
    visitor_context = context;
}

int attn_options_start(const attn_command *command, int argc, char **argv, void *values)
{
    bool help;
    if (visitor) {
        visitor(command, visitor_context);
        return ATTN_EXIT_OK;
    }
    if (attn_options_parse(command, argc, argv, values, &help)) return attn_report_usage(command->name);
    if (!help) return ATTN_OPTIONS_READY;
    printf("attn %s: %s\n\nUsage: attn %s %s\n\nOptions\n", command->name, command->summary, command->name,
           command->usage);
    attn_options_print(command);
    return ATTN_EXIT_OK;
}
