/* Kernels compiled when running, by the compiler of fake_cuda/, and the cache on disk. */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>
#include <libgen.h>
#include <sys/wait.h>
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
    attn_cuda_program program = { { "try.cu", text }, &header, 1, { option }, 1 };
    void *data;
    size_t size;
    assert_ok(attn_cuda_compile(&program, &data, &size));
    strcpy(cubin, data);
    free(data);
}

/* In a process of its own, since the library is looked for once: what is found if the environment is `named`. */
static void finds(const char *named, int version, const char *error)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("ATTN_NVRTC", named, 1);
        int found = attn_cuda_nvrtc_version();
        if (found == version && strstr(attn_error(), error)) _exit(0);
        fprintf(stderr, "ATTN_NVRTC=%s: %d, \"%s\"\n", named, found, attn_error());
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void it_is_found_where_the_environment_says(void **state)
{
    char path[] = FAKE_NVRTC, *folder = dirname(path), long_path[5000];
    (void)state;
    finds(FAKE_NVRTC, 13000, "");
    finds(folder, 13000, "");
    finds("", 13000, ""); /* as if it were not set: the usual names */
    finds("/nowhere", 0, "ATTN_NVRTC, the path of libnvrtc or its folder: /nowhere: ");
    finds(cache, 0, "ATTN_NVRTC: the folder /tmp/attn-cache-");
    finds(FAKE_OTHER, 0, "has no nvrtcVersion");
    finds("/dev/null", 0, "ATTN_NVRTC, the path of libnvrtc or its folder: /dev/null: ");
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    finds(long_path, 0, "ATTN_NVRTC, the path of libnvrtc or its folder: xxx");
}

static void compile_in_child(const char *named)
{
    char cubin[200];
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("ATTN_NVRTC", named, 1);
        compile("#include \"there.h\"", "-DA", cubin);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Two releases may both say 13.0: the same program, compiled by another file, is another kernel. */
static void kernels_are_kept_by_compiler(void **state)
{
    char command[1000], copy[100], deep[100], path[] = FAKE_NVRTC;
    (void)state;
    snprintf(copy, sizeof copy, "%s/copy", cache);
    snprintf(deep, sizeof deep, "%s/deep", cache);
    setenv("ATTN_CACHE_DIR", deep, 1);
    snprintf(command, sizeof command, "mkdir %s && cp %s/libnvrtc*.so* %s", copy, dirname(path), copy);
    assert_int_equal(system(command), 0);
    compile_in_child(FAKE_NVRTC);
    assert_int_equal(files_in_cache(NULL, 0), 1);
    compile_in_child(copy);
    compile_in_child(copy);
    assert_int_equal(files_in_cache(NULL, 0), 2);
    snprintf(command, sizeof command, "rm -r %s", deep);
    assert_int_equal(system(command), 0);
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
    attn_hash other = attn_hash_more(key, "", 1);
    assert_null(attn_cache_read(other, &size));

    /* Another kernel's file under its name is none, and is written over. */
    char command[1000], path[400];
    const char *folder = getenv("ATTN_CACHE_DIR");
    snprintf(path, sizeof path, "%s/%016llx%016llx", folder, (unsigned long long)other.high,
             (unsigned long long)other.low);
    snprintf(command, sizeof command, "cp %s/%016llx%016llx %s", folder, (unsigned long long)key.high,
             (unsigned long long)key.low, path);
    assert_int_equal(system(command), 0);
    assert_null(attn_cache_read(other, &size));
    attn_cache_write(other, "another", 8);
    data = attn_cache_read(other, &size);
    assert_non_null(data);
    assert_string_equal(data, "another");
    free(data);
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
    attn_cuda_program program = { { "try.cu", "#include \"missing.h\"" }, NULL, 0, { NULL }, 0 };
    void *data;
    size_t size;
    assert_int_equal(attn_cuda_compile(&program, &data, &size), ATTN_DEVICE_FAILED);
    assert_string_equal(attn_error(), "NVRTC 13.0 refuses try.cu: the fake compiler refuses");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_where_the_environment_says), /* before this process looks itself */
        cmocka_unit_test(kernels_are_kept_by_compiler),
        cmocka_unit_test(compiled_kernels_are_kept),
        cmocka_unit_test(caches_are_read_back),
        cmocka_unit_test(the_hash_is_fnv),
        cmocka_unit_test(refused_sources_are_quoted),
    };
    unsetenv("ATTN_NVRTC");
    /* Loaded by its path, it is what "libnvrtc.so.13" names from then on. */
    if (!mkdtemp(cache) || !dlopen(FAKE_NVRTC, RTLD_NOW)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command) != 0 ? 1 : failed;
}
