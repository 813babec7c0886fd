/* `attn`: finds the command and hands over. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "manual.h"
#include "options.h"

static const attn_entry commands[] = {
    { "run", "compute attention over .npy or .safetensors files", attn_cmd_run },
    { "grad", "compute its gradients over .npy or .safetensors files", attn_cmd_grad },
    { "explain", "print how a problem would be computed, and how fast", attn_cmd_explain },
    { "napkin", "derive an algorithm from a diagram, and its costs", attn_cmd_napkin },
    { "check", "compare every kernel with the reference", attn_cmd_check },
    { "bench", "measure speed against this machine's limits and other libraries", attn_cmd_bench },
    { "info", "print this machine and what is built in", attn_cmd_info },
    { "machine", "print what is known of a machine, or measure this one", attn_cmd_machine },
    { "kernels", "print the kernel table", attn_cmd_kernels },
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static int print_help(FILE *out)
{
    fprintf(out,
            "attn %s: exact attention, O = softmax(scale Q K^T + bias | mask) V\n\nUsage: attn COMMAND [options]\n\n"
            "Commands\n",
            attn_version());
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\nattn help COMMAND, or attn COMMAND --help, says what it takes. attn --version, or -V, prints the "
                 "version.\n\n"
                 "Examples\n"
                 "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --causal\n"
                 "  attn explain --len 4096 --heads 32/8 --dim 128 --causal\n");
    return ATTN_EXIT_OK;
}

static const attn_entry *find(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) {
        if (!strcmp(name, commands[i].name)) return &commands[i];
        names[i] = commands[i].name;
    }
    const char *nearest = attn_nearest(name, names, COMMANDS);
    if (nearest)
        fprintf(stderr, "attn: unknown command '%s'; did you mean %s?\n", name, nearest);
    else
        fprintf(stderr, "attn: unknown command '%s'; see attn help\n", name);
    return NULL;
}

static bool asks_help(const char *word)
{
    return !strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h");
}

static int help(int argc, char **argv)
{
    if (argc == 1 || asks_help(argv[1])) return print_help(stdout);
    const attn_entry *wanted = find(argv[1]);
    char word[] = "--help", *words[] = { argv[1], word, NULL };
    return wanted ? wanted->run(2, words) : ATTN_EXIT_USAGE;
}

/* Results that stdout does not take are no results. */
static int finish(int code)
{
    if (!fflush(stdout) && !ferror(stdout)) return code;
    perror("attn: cannot write to stdout");
    return ATTN_EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return ATTN_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("attn %s\n", attn_version());
        return finish(ATTN_EXIT_OK);
    }
    if (asks_help(argv[1])) return finish(help(argc - 1, argv + 1));
    if (!strcmp(argv[1], "--manual") && argc == 3) return attn_manual_write(commands, COMMANDS, argv[2]);
    const attn_entry *wanted = find(argv[1]);
    return wanted ? finish(wanted->run(argc - 1, argv + 1)) : ATTN_EXIT_USAGE;
}
