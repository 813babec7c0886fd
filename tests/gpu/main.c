/* What a GPU must show besides the covering array (`attn check --device cuda`): lengths around every tile and ring,
 * the same bits thousands of times over, graphs, streams, threads. Needs nothing but the library; `make test-gpu`
 * builds and runs both. A kernel that hangs is ended by a watchdog.
 *
 *     attn_test_gpu [REPETITIONS [PART PARTS [ONLY]]]   (10000 1 1)
 *
 * Of the kernels, whose lengths take most of the time, each PARTS-th from the PART-th on; the rest with the first part.
 * REPETITIONS 0: lengths alone; -1: of E4M3 also the errors at 2048 and 131072 keys. ONLY: forward, backward, pages or
 * quant (alone), bytes (kernels of E4M3), cache (decode kernels of keys of a byte), or one kernel's lengths, by its
 * name. ATTN_TEST_SCALE=n: each n-th length. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check/gpu/launch.h"
#include "device/device.h"
#include "cuda/load.h"
#include "gpu.h"

enum { FAILURES_SHOWN = 10 };

int failures, checks;
char watched[400] = "a kernel";
const attn_cuda_driver *driver;
check_by reference_by = CHECK_BY_CPU;

void result(bool right, const char *format, ...)
{
    va_list values;
    checks++;
    if (right || ++failures > FAILURES_SHOWN) return;
    va_start(values, format);
    printf("FAILED: ");
    vprintf(format, values);
    putchar('\n');
    va_end(values);
}

static void bark(int signal_number)
{
    const char *const parts[] = { "FAILED: it hangs: ", watched, "\n" };
    (void)signal_number;
    for (int i = 0; i < 3; i++)
        if (write(STDOUT_FILENO, parts[i], strlen(parts[i])) < 0) break;
    _exit(1);
}

int main(int argc, char **argv)
{
    int count, tested = 0, repeat = argc > 1 ? atoi(argv[1]) : 10000, part = argc > 2 ? atoi(argv[2]) : 1,
               parts = argc > 3 ? atoi(argv[3]) : 1;
    const char *only = argc > 4 ? argv[4] : "";
    const bool wanted[] = { strcmp(only, "backward") != 0, strcmp(only, "forward") != 0 }; /* by attn_direction */
    const bool caches = strcmp(only, "pages") == 0, quants = strcmp(only, "quant") == 0,
               of_bytes = strcmp(only, "bytes") == 0, of_cache = strcmp(only, "cache") == 0;
    const bool one = only[0] && wanted[0] && wanted[1] && !caches && !quants && !of_bytes && !of_cache;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    if (device_open()) {
        printf("SKIPPED: %s\n", attn_error());
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    result(!attn_machine_use("h200"), "%s", attn_error()); /* plans, and so what is tested, are alike on all GPUs */
    driver = &attn_cuda_machine_get()->driver;
    if (check_gpu_open() == ATTN_OK) reference_by = CHECK_BY_GPU_LARGE;
    signal(SIGALRM, bark);
    if (caches || (part == 1 && repeat > 0 && !only[0])) {
        operations_on_pages(), paged_keys(), merges(), pages_alike();
        cascades(repeat > 0 ? 120 : 24);
    }
    if (quants || (part == 1 && repeat > 0 && !only[0])) quantisation();
    for (int d = ATTN_FORWARD; d <= ATTN_BACKWARD && part == 1 && repeat > 0 && !caches && !quants; d++) {
        if (!wanted[d]) continue;
        alike((attn_direction)d, repeat);
        host_times((attn_direction)d);
    }
    for (int i = part - 1; i < count && !caches && !quants; i += parts) {
        const attn_cuda_kernel *k = &kernels[i];
        if (!wanted[attn_cuda_direction(k)]) continue;
        if (of_cache && !attn_cuda_kv_dtype(k)) continue;
        if (one ? strcmp(k->name, only) != 0 : of_bytes && k->dtype != ATTN_E4M3) continue;
        if (attn_cuda_is_variant(k) && !attn_cuda_can_load(k)) {
            printf("SKIPPED: %s: %s\n", k->name, attn_error());
            continue;
        }
        tested++;
        starts_out_of_range(k);
        if (!attn_cuda_is_variant(k) && k->dtype != ATTN_E4M3) continue;
        if (k->form == ATTN_CUDA_DECODE) {
            decode_lengths(k);
            decode_sequences(k);
            if (k->dim == 64) decode_batches(k);
            continue;
        }
        if (k->dtype == ATTN_E4M3) {
            bytes(k, repeat < 0 ? 100 : of_bytes ? 10 : 40, repeat < 0);
            continue;
        }
        lengths(k);
        bits_and_lists(k);
        masks_of_spans(k);
        odd_addresses(k);
        scales_of_bytes(k);
        windows_of_bytes(k);
        bool backward = attn_cuda_direction(k) == ATTN_BACKWARD;
        if (k->needs && (backward || k->needs != ATTN_BIAS)) continue; /* its schedule and tiles are a plain kernel's */
        if (backward)
            backward_schedules(k);
        else
            forward_tiles(k);
    }
    if (one) result(tested > 0, "%s is none of the kernels", only);
    printf("%d checks on the GPU, %d failed\n", checks, failures);
    return failures > 0;
}
