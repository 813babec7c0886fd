/* The man page and the completions of shells, from the tables that help is printed from: they cannot fall out of step.
 * The build asks for them (`attn --manual FOLDER`). */
#ifndef ATTN_CLI_MANUAL_H
#define ATTN_CLI_MANUAL_H

#include "command.h"

/* A word after `attn`. */
typedef struct attn_entry {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} attn_entry;

/* Writes attn.1, attn.bash, _attn (zsh) and attn.fish into the folder; returns an exit code. */
int attn_manual_write(const attn_entry *entries, int count, const char *folder);

#endif
