/* Runs each program that it is given once for every processor of processor.c and instruction set that it has. What a
 * program prints is shown if it fails. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "processor.h"

static int failed(const char *program)
{
    char command[4096];
    snprintf(command, sizeof command, "'%s' >every_processor.txt 2>&1 || { cat every_processor.txt; false; }", program);
    return system(command) != 0;
}

int main(int count, char **programs)
{
    int runs = 0, failures = 0;
    const char *processor;
    for (int p = 0; (processor = test_processor_name(p)); p++)
        for (int isa = ATTN_ISA_AUTO; isa <= (int)test_processor_best(p); isa++)
            for (int i = 1; i < count; i++) {
                const char *forced = attn_isa_name((attn_isa)isa);
                setenv("ATTN_TEST_PROCESSOR", processor, 1), setenv("ATTN_TEST_ISA", forced, 1);
                runs++;
                if (!failed(programs[i])) continue;
                printf("FAILED: ATTN_TEST_PROCESSOR=%s ATTN_TEST_ISA=%s %s\n", processor, forced, programs[i]);
                failures++;
            }
    printf("%d runs, %d failed\n", runs, failures);
    return failures || !runs;
}
