/* Contract: manual.h. */
#include "manual.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

/* What a page is printed with: to where, and how a command with its options is printed. */
typedef struct page {
    FILE *out;
    void (*command)(FILE *out, const attn_command *command);
} page;

static void print_command(const attn_command *command, void *context)
{
    const page *p = context;
    p->command(p->out, command);
}

static void print_commands(const page *p, const attn_entry *entries, int count)
{
    attn_options_visit(print_command, (void *)(uintptr_t)p);
    for (int i = 0; i < count; i++) {
        char name[16], help[] = "--help", *words[] = { name, help, NULL };
        snprintf(name, sizeof name, "%s", entries[i].name);
        entries[i].run(2, words);
    }
    attn_options_visit(NULL, NULL);
}

/* The words that an option takes, with blanks between; NULL: it takes no listed words. */
static const char *choices(const attn_option *option)
{
    if (option->parse == attn_parse_dtype) return "f32 f16 bf16";
    if (option->parse == attn_parse_any_dtype) return "f32 f16 bf16 e4m3";
    if (option->parse == attn_parse_bytes) return "e4m3 i8";
    if (option->parse == attn_parse_device) return "cpu cuda";
    if (option->parse == attn_parse_isa) return "auto portable avx2 avx512 avx512bf16 amx neon";
    return NULL;
}

/* Whether a path is there. */
static bool takes_file(const attn_option *option)
{
    const char *argument = option->argument;
    bool machine = argument && !strcmp(option->name, "machine");
    return machine || (argument && (!strcmp(argument, "FILE") || !strcmp(argument, "PATH")));
}

/* ---- man page ------------------------------------------------------------------------------ */

/* Text as troff takes it, whatever line it begins. */
static void say(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((c == text || c[-1] == '\n') && (*c == '.' || *c == '\'')) fputs("\\&", out);
        if (*c == '\\')
            fputs("\\e", out);
        else if (*c == '-')
            fputs("\\-", out);
        else
            fputc(*c, out);
    }
}

static void say_option(FILE *out, const attn_option *option)
{
    fputs(".TP\n", out);
    if (option->letter == ATTN_OPERAND) {
        fprintf(out, "\\fI%s\\fR\n", option->argument);
    } else {
        if (option->letter) fprintf(out, "\\fB\\-%c\\fR, ", option->letter);
        fputs("\\fB\\-\\-", out);
        say(out, option->name);
        fputs("\\fR", out);
        if (option->argument) {
            fputs(" \\fI", out);
            say(out, option->argument);
            fputs("\\fR", out);
        }
        fputc('\n', out);
    }
    say(out, option->help);
    fputc('\n', out);
}

static void man_command(FILE *out, const attn_command *command)
{
    fprintf(out, ".SS attn %s\n", command->name);
    say(out, command->summary);
    fprintf(out, "\n.PP\n.nf\n\\fBattn %s\\fR ", command->name);
    say(out, command->usage);
    fputs("\n.fi\n", out);
    for (int i = 0; i < command->count; i++)
        say_option(out, &command->options[i]);
    fputs(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprint all this\n", out);
    if (!command->details) return;
    fputs(".PP\n.nf\n", out);
    say(out, command->details);
    fputs(".fi\n", out);
}

static void print_man(FILE *out, const attn_entry *entries, int count)
{
    fprintf(
        out,
        ".TH ATTN 1 \"\" \"attn %s\" \"User Commands\"\n.SH NAME\nattn \\- exact, IO\\-aware attention\n"
        ".SH SYNOPSIS\n\\fBattn\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n.br\n\\fBattn help\\fR [\\fICOMMAND\\fR]\n.br\n"
        "\\fBattn \\-\\-version\\fR\n"
        ".SH DESCRIPTION\nComputes O = softmax(scale Q K^T + bias | mask) V, without ever holding the scores.\n"
        "An option is written \\fB\\-\\-name\\fR \\fIVALUE\\fR or \\fB\\-\\-name=\\fR\\fIVALUE\\fR, at most once "
        "each.\n"
        "Lengths and counts may end in k, m or g: 4k is 4096.\n",
        attn_version());
    for (int i = 0; i < count; i++) {
        fprintf(out, ".TP\n\\fB%s\\fR\n", entries[i].name);
        say(out, entries[i].summary);
        fputc('\n', out);
    }
    fputs(".SH COMMANDS\n", out);
    print_commands(&(page){ out, man_command }, entries, count);
    fputs(".SH \"EXIT STATUS\"\n0 for success, 1 where files, machine or results do not allow it,\n"
          "2 for a wrong command line.\n"
          ".SH ENVIRONMENT\n.TP\n\\fBATTN_ISA\\fR\nthe instruction set of plans that leave it open\n"
          ".TP\n\\fBATTN_NVRTC\\fR\nthe path of libnvrtc, or of its folder\n"
          ".TP\n\\fBATTN_CACHE_DIR\\fR\nthe folder of compiled GPU kernels\n",
          out);
}

/* ---- bash ---------------------------------------------------------------------------------- */

static void bash_command(FILE *out, const attn_command *command)
{
    fprintf(out, "    %s)\n        options='", command->name);
    for (int i = 0; i < command->count; i++)
        if (command->options[i].letter != ATTN_OPERAND) fprintf(out, "--%s ", command->options[i].name);
    fputs("--help'\n        case $prev in\n", out);
    for (int i = 0; i < command->count; i++) {
        const attn_option *option = &command->options[i];
        if (!option->argument || option->letter == ATTN_OPERAND) continue;
        fprintf(out, "        --%s", option->name);
        if (option->letter) fprintf(out, " | -%c", option->letter);
        fprintf(out, ") takes='%s' ;;\n", choices(option) ? choices(option) : takes_file(option) ? "FILE" : "VALUE");
    }
    fputs("        esac\n        ;;\n", out);
}

static void print_bash(FILE *out, const attn_entry *entries, int count)
{
    fputs("# bash completion for attn\n_attn() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options='' takes='' commands='",
          out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s ", entries[i].name);
    fputs("help'\n    COMPREPLY=()\n"
          "    if [ \"$cur\" = = ]; then cur=''; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$cur\"))\n        return\n    fi\n"
          "    case ${COMP_WORDS[1]} in\n    help) options=$commands ;;\n",
          out);
    print_commands(&(page){ out, bash_command }, entries, count);
    fputs("    esac\n"
          "    case $takes:$cur in\n"
          "    VALUE:*) ;;\n"
          "    :-*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
          "    FILE:* | :*)\n"
          "        if [ \"${COMP_WORDS[1]}\" = help ]; then\n"
          "            COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "        else\n"
          "            compopt -o filenames 2>/dev/null\n"
          "            local IFS=$'\\n'\n"
          "            COMPREPLY=($(compgen -f -- \"$cur\"))\n"
          "        fi\n"
          "        ;;\n"
          "    *) COMPREPLY=($(compgen -W \"$takes\" -- \"$cur\")) ;;\n"
          "    esac\n}\ncomplete -F _attn attn\n",
          out);
}

/* ---- zsh and fish -------------------------------------------------------------------------- */

/* Help's first line inside single quotes, each character of `special` after a backslash. */
static void quote(FILE *out, const char *text, const char *special)
{
    for (const char *c = text; *c && *c != '\n'; c++) {
        if (strchr(special, *c)) fputc('\\', out);
        fputs(*c == '\'' ? "'\\''" : (char[]){ *c, 0 }, out);
    }
}

static void zsh_command(FILE *out, const attn_command *command)
{
    fprintf(out, "    %s) _arguments \\\n", command->name);
    for (int i = 0; i < command->count; i++) {
        const attn_option *option = &command->options[i];
        if (option->letter == ATTN_OPERAND) {
            fprintf(out, "        '1:%s:_files' \\\n", option->argument);
            continue;
        }
        for (int letter = 0; letter < 1 + (option->letter != 0); letter++) {
            if (letter)
                fprintf(out, "        '-%c[", option->letter);
            else
                fprintf(out, "        '--%s%s[", option->name, option->argument ? "=" : "");
            quote(out, option->help, "[]:\\");
            fputc(']', out);
            if (option->argument) {
                fputc(':', out);
                quote(out, option->argument, "[]:\\");
                if (choices(option))
                    fprintf(out, ":(%s)", choices(option));
                else
                    fprintf(out, ":%s", takes_file(option) ? "_files" : "");
            }
            fputs("' \\\n", out);
        }
    }
    fputs("        '(- *)'{-h,--help}'[print help]' ;;\n", out);
}

static void print_zsh(FILE *out, const attn_entry *entries, int count)
{
    fputs("#compdef attn\nlocal -a commands=(\n", out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "    '%s:", entries[i].name);
        quote(out, entries[i].summary, ":\\");
        fputs("'\n", out);
    }
    fputs("    'help:print what a command takes'\n)\n"
          "if (( CURRENT == 2 )); then\n    _describe command commands\n    return\nfi\n"
          "local command=$words[2]\nshift words\n(( CURRENT-- ))\ncase $command in\n"
          "    help) _describe command commands ;;\n",
          out);
    print_commands(&(page){ out, zsh_command }, entries, count);
    fputs("esac\n", out);
}

static void fish_command(FILE *out, const attn_command *command)
{
    for (int i = 0; i < command->count; i++) {
        const attn_option *option = &command->options[i];
        if (option->letter == ATTN_OPERAND) {
            fprintf(out, "complete -c attn -n '__fish_seen_subcommand_from %s' -F\n", command->name);
            continue;
        }
        fprintf(out, "complete -c attn -n '__fish_seen_subcommand_from %s' -l %s", command->name, option->name);
        if (option->letter) fprintf(out, " -s %c", option->letter);
        if (option->argument) fputs(takes_file(option) ? " -r -F" : " -x", out);
        if (choices(option)) fprintf(out, " -a '%s'", choices(option));
        fputs(" -d '", out);
        quote(out, option->help, "\\");
        fputs("'\n", out);
    }
}

static void print_fish(FILE *out, const attn_entry *entries, int count)
{
    fputs("# fish completion for attn\ncomplete -c attn -f\n", out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "complete -c attn -n __fish_use_subcommand -a %s -d '", entries[i].name);
        quote(out, entries[i].summary, "\\");
        fputs("'\n", out);
    }
    print_commands(&(page){ out, fish_command }, entries, count);
}

int attn_manual_write(const attn_entry *entries, int count, const char *folder)
{
    static const struct {
        const char *name;
        void (*print)(FILE *out, const attn_entry *entries, int count);
    } pages[] = {
        { "attn.1", print_man }, { "attn.bash", print_bash }, { "_attn", print_zsh }, { "attn.fish", print_fish }
    };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", folder, pages[i].name) >= (int)sizeof path) path[0] = 0;
        FILE *out = fopen(path, "w");
        if (out) pages[i].print(out, entries, count);
        bool failed = out && ferror(out);
        if (!out || fclose(out) || failed) {
            fprintf(stderr, "attn --manual: cannot write %s/%s: %s\n", folder, pages[i].name, strerror(errno));
            return ATTN_EXIT_FAILURE;
        }
    }
    return ATTN_EXIT_OK;
}
