#define _POSIX_C_SOURCE 200809L
#include "device/clock.h"

#include <stdlib.h>
#include <time.h>

double attn_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double attn_median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, compare_doubles);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}
