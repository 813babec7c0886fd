/* `attn kernels --support`: what each device computes, and whether a fast kernel does. */
#ifndef ATTN_CLI_SUPPORT_H
#define ATTN_CLI_SUPPORT_H

/* Prints docs/SUPPORT.md: the same on every machine and for every build with the CUDA backend. */
void attn_support_print(void);

#endif
