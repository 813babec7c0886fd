/* Kernels compiled when running, by the compiler of fake_cuda/, and the cache on disk. */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "cuda/cache.h"
#include "cuda/nvrtc.h"

static char cache[] = "/tmp/attn-cache-XXXXXX";

static int files_in_cache(char *last, size_t size)
{
    char line[300] = "", command[300];
    int count = 0;
    snprintf(command, sizeof command, "ls %s/deep", cache);
    FILE *list = popen(command, "r");
    while (fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        if (last) snprintf(last, size, "%s/deep/%s", cache, line);
        count++;
    }
    pclose(list);
    return count;
}

static void compile(const char *text, const char *option, char *cubin)
{
    static const attn_cuda_text header = { "there.h", "" };
    const char *options[] = { option };
    attn_cuda_program program = { { "try.cu", text }, &header, 1, options, 1 };
    void *data;
    size_t size;
    assert_ok(attn_cuda_compile(&program, &data, &size));
    strcpy(cubin, data);
    free(data);
}

static void compiled_kernels_are_kept(void **state)
{
    (void)state;
    char path[400], cubin[200];
    setenv("ATTN_CACHE_DIR", strcat(strcpy(path, cache), "/deep"), 1);
    compile("#include \"there.h\"", "-DA", cubin);
    assert_string_equal(cubin, "fake cubin -DA");
    assert_int_equal(files_in_cache(path, sizeof path), 1);
    compile("#include \"there.h\"", "-DA", cubin);
    assert_int_equal(files_in_cache(NULL, 0), 1);

    /* What is kept is what comes back: here, something else. */
    FILE *file = fopen(path, "r+");
    fseek(file, -4, SEEK_END);
    fputc('X', file);
    fclose(file);
    compile("#include \"there.h\"", "-DA", cubin); /* damaged: compiled anew */
    assert_string_equal(cubin, "fake cubin -DA");
    assert_int_equal(truncate(path, 40), 0);
    compile("#include \"there.h\"", "-DA", cubin);
    assert_string_equal(cubin, "fake cubin -DA");

    compile("#include \"there.h\"", "-DB", cubin);
    compile("#include \"there.h\" ", "-DA", cubin);
    assert_int_equal(files_in_cache(NULL, 0), 3);
    setenv("ATTN_CACHE_DIR", "/proc/nowhere", 1);
    compile("#include \"there.h\"", "-DC", cubin);
    setenv("ATTN_CACHE_DIR", strcat(strcpy(path, cache), "/deep"), 1);
}

static void caches_are_read_back(void **state)
{
    (void)state;
    size_t size;
    attn_hash key = attn_hash_more(attn_hash_start(), "key", 3);
    attn_cache_write(key, "something", 10);
    char *data = attn_cache_read(key, &size);
    assert_non_null(data);
    assert_int_equal(size, 10);
    assert_string_equal(data, "something");
    free(data);
    assert_null(attn_cache_read(attn_hash_more(key, "", 1), &size));
}

/* FNV-1a's published values. */
static void the_hash_is_fnv(void **state)
{
    (void)state;
    attn_hash hash = attn_hash_more(attn_hash_start(), "foobar", 6);
    assert_true(hash.high == 0x343e1662793c64bfu && hash.low == 0x6f0d3597ba446f18u);
}

static void refused_sources_are_quoted(void **state)
{
    (void)state;
    attn_cuda_program program = { { "try.cu", "#include \"missing.h\"" }, NULL, 0, NULL, 0 };
    void *data;
    size_t size;
    assert_int_equal(attn_cuda_compile(&program, &data, &size), ATTN_DEVICE_FAILED);
    assert_string_equal(attn_error(), "NVRTC 13.0 refuses try.cu: the fake compiler refuses");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_kernels_are_kept),
        cmocka_unit_test(caches_are_read_back),
        cmocka_unit_test(the_hash_is_fnv),
        cmocka_unit_test(refused_sources_are_quoted),
    };
    /* Loaded by its path, it is what "libnvrtc.so.13" names from then on. */
    if (!mkdtemp(cache) || !dlopen(FAKE_NVRTC, RTLD_NOW)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command) != 0 ? 1 : failed;
}
