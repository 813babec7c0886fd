/* attn_gpt: options, and what to do in which order: measure, or train, then write. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "gpt.h"
#include "options.h"

#define TEXT \
    "README.md,docs/*.md,include/*.h,src/*/*.[ch],src/*/*/*.[ch],cli/*.[ch],tests/*.[ch],demo/*.[ch],demo/alice.txt"

typedef struct values {
    int64_t layers, dim, heads, context, batch, steps, tokens; /* 0: not given */
    float rate, seconds;                                       /* likewise */
    float temperature;
    attn_seed seed;
    int32_t threads;
    gpt_attention_maker *maker;
    const char *text, *out, *resume, *sample;
    bool bench;
} values;

static attn_status parse_attention(const char *text, void *value)
{
    gpt_attention_maker **maker = value;
    *maker = !strcmp(text, "libattn") ? gpt_attention_new : !strcmp(text, "standard") ? gpt_standard_new : NULL;
    return *maker ? ATTN_OK : attn_fail(ATTN_INVALID, "takes libattn or standard");
}

#define AT(member) offsetof(values, member)

static const attn_option options[] = {
    { "layers", 0, "N", attn_parse_count, AT(layers), "layers (4)" },
    { "dim", 0, "N", attn_parse_count, AT(dim), "channels of the residual stream (128)" },
    { "heads", 0, "N", attn_parse_count, AT(heads), "attention heads, which share the channels (2)" },
    { "context", 0, "N", attn_parse_count, AT(context), "bytes per sequence (256)" },
    { "batch", 0, "N", attn_parse_count, AT(batch), "sequences a step (1)" },
    { "steps", 0, "N", attn_parse_count, AT(steps), "training steps (1000); with --resume the number in all" },
    { "seconds", 0, "S", attn_parse_positive, AT(seconds), "stop after this time instead" },
    { "lr", 0, "X", attn_parse_positive, AT(rate), "greatest learning rate (0.004)" },
    { "seed", 0, "N", attn_parse_seed, AT(seed), "of weights, batches and the sample" },
    { "threads", 0, "N", attn_parse_threads, AT(threads), "of everything (all processors)" },
    { "attention", 0, "NAME", parse_attention, AT(maker), "libattn, or standard: all scores stored" },
    { "text", 0, "FILES", attn_parse_text, AT(text),
      "what to learn: names with * and ?, separated by commas\n(this repository)" },
    { "out", 'o', "FILE", attn_parse_text, AT(out),
      "checkpoint to write, .safetensors; the curve goes beside it as .svg" },
    { "resume", 0, "FILE", attn_parse_text, AT(resume),
      "checkpoint to go on from, with its sizes and its learning rate" },
    { "sample", 0, "PROMPT", attn_parse_text, AT(sample),
      "write on from these words at the end; with --resume and\nwithout --steps do just that" },
    { "tokens", 0, "N", attn_parse_count, AT(tokens), "bytes of the sample (400)" },
    { "temperature", 0, "X", attn_parse_positive, AT(temperature), "of the sample (0.8)" },
    { "bench", 0, NULL, attn_parse_switch, AT(bench), "time and memory of one step with either attention" },
};

static const attn_command command = {
    .name = "gpt",
    .options = options,
    .count = sizeof options / sizeof *options,
    .details = "Examples\n"
               "  attn_gpt --seconds 60 --out gpt.safetensors --sample 'Alice '\n"
               "  attn_gpt --resume gpt.safetensors --steps 5000 --out gpt.safetensors\n"
               "  attn_gpt --resume gpt.safetensors --sample 'static int ' --tokens 1000\n"
               "  attn_gpt --bench --dim 256 --heads 4\n"
               "\n"
               "Ends with 0; with 1 where files or the machine do not allow it; with 2 for a wrong command line.\n",
};

static attn_status check_options(const values *v)
{
    size_t length = v->out ? strlen(v->out) : 0, end = strlen(".safetensors");
    if (v->out && (length <= end || strcmp(v->out + length - end, ".safetensors")))
        return attn_fail(ATTN_INVALID, "--out %.200s: takes a name that ends in .safetensors", v->out);
    if (v->resume && (v->layers || v->dim || v->heads || v->context || v->batch || v->rate > 0 || v->seconds > 0))
        return attn_fail(ATTN_INVALID, "--resume takes --layers, --dim, --heads, --context, --batch, --lr and the time "
                                       "from the checkpoint: leave them out");
    if (v->bench && (v->out || v->resume || v->sample || v->steps || v->seconds > 0 || v->maker || v->text))
        return attn_fail(ATTN_INVALID, "--bench only measures: it takes --layers, --dim, --heads, --context, --batch "
                                       "and --threads");
    if (v->steps && v->seconds > 0) return attn_fail(ATTN_INVALID, "--steps and --seconds: takes one of them");
    if (v->steps > GPT_STEPS_MOST)
        return attn_fail(ATTN_INVALID, "--steps %lld: takes at most %d", (long long)v->steps, GPT_STEPS_MOST);
    if ((v->tokens || v->temperature > 0) && !v->sample)
        return attn_fail(ATTN_INVALID, "--tokens and --temperature need --sample");
    return ATTN_OK;
}

static int64_t either(int64_t given, int64_t usual)
{
    return given ? given : usual;
}

static gpt_shape shape_of(const values *v)
{
    return (gpt_shape){ either(v->layers, 4), either(v->dim, 128), either(v->heads, 2) };
}

/* A fresh run, or the one of the checkpoint. */
static attn_status begin(gpt_run *run, const values *v)
{
    if (v->resume) {
        attn_status status = gpt_load(run, v->resume);
        if (status || !v->steps) return status;
        if (v->steps < run->step)
            return attn_fail(ATTN_INVALID, "--steps %lld: %.200s has done %lld", (long long)v->steps, v->resume,
                             (long long)run->step);
        gpt_run_set_steps(run, v->steps);
        return ATTN_OK;
    }
    *run = (gpt_run){ .shape = shape_of(v),
                      .context = either(v->context, 256),
                      .batch = either(v->batch, 1),
                      .rate = v->rate > 0 ? v->rate : 4e-3f,
                      .random = v->seed.value };
    attn_status status = gpt_shape_check(&run->shape);
    if (!status) status = gpt_sizes_check(run->context, run->batch);
    if (status) return status;
    gpt_run_allocate(run);
    gpt_run_set_steps(run, either(v->steps, 1000));
    gpt_weights_start(&run->weights, &run->shape, &run->random);
    return ATTN_OK;
}

static attn_status train(gpt_run *run, const values *v)
{
    gpt_text text;
    attn_status status = gpt_text_read(&text, v->text ? v->text : TEXT);
    if (status) return v->text ? status : attn_fail_in(status, "no --text, and not at the root of the repository");
    printf("%lld layers, dim %lld, %lld heads: %.2f million weights; %lld files, %.0f KB, 1/16 held out; %s attention, "
           "%d threads\n",
           (long long)run->shape.layers, (long long)run->shape.dim, (long long)run->shape.heads,
           (double)run->weights.count * 1e-6, (long long)text.files,
           (double)(text.train_count + text.held_count) * 1e-3, v->maker == gpt_standard_new ? "standard" : "libattn",
           gpt_threads());
    status = gpt_train(run, &text, v->maker ? v->maker : gpt_attention_new, v->out, (double)v->seconds);
    gpt_text_free(&text);
    return status;
}

static attn_status work(const values *v)
{
    gpt_run run = { .step = 0 };
    if (v->bench) {
        gpt_shape shape = shape_of(v);
        attn_status status = gpt_shape_check(&shape);
        return status ? status : gpt_bench(&shape, v->context, v->batch, v->threads);
    }
    gpt_threads_set(v->threads);
    attn_status status = begin(&run, v);
    if (!status && (!v->resume || !v->sample || v->steps)) status = train(&run, v);
    if (!status && v->sample) {
        printf("\n");
        status = gpt_write(&run, v->sample, either(v->tokens, 400), v->temperature > 0 ? v->temperature : 0.8f,
                           v->seed.value);
    }
    gpt_run_free(&run);
    return status;
}

int main(int argc, char **argv)
{
    values v = { .bench = false };
    bool help;
    attn_status status = attn_options_parse(&command, argc, argv, &v, &help);
    if (!status && help) {
        printf("attn_gpt: a GPT on libattn\n\nUsage: attn_gpt [options]\n\nOptions\n");
        attn_options_print(&command);
        return ATTN_EXIT_OK;
    }
    if (!status) status = check_options(&v);
    if (status) {
        fprintf(stderr, "attn_gpt: %s\nSee attn_gpt --help.\n", attn_error());
        return ATTN_EXIT_USAGE;
    }
    if (!work(&v)) return ATTN_EXIT_OK;
    fprintf(stderr, "attn_gpt: %s\n", attn_error());
    return ATTN_EXIT_FAILURE;
}
