/* Reading a machine's text, given the machines that it may be based on. */
#ifndef ATTN_PLANNER_MACHINE_READ_H
#define ATTN_PLANNER_MACHINE_READ_H

#include "planner/machine.h"

attn_status attn_machine_read(const char *where, const char *text, size_t length,
                              const attn_machine *(*find)(const char *name), attn_machine *machine);

#endif
