/* The clock that everything here measures with. */
#ifndef DEVICE_CLOCK_H
#define DEVICE_CLOCK_H

/* Seconds on the monotonic clock. */
double attn_seconds(void);

#endif
