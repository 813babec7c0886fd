/* The clock that everything here measures with. */
#ifndef DEVICE_CLOCK_H
#define DEVICE_CLOCK_H

/* Seconds on the monotonic clock. */
double attn_seconds(void);

/* Sorts them; of an even number the mean of the two in the middle. */
double attn_median(double *seconds, int count);

#endif
