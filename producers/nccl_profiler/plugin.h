/* What the other files need of plugin.c. */
#ifndef DRUMLINE_PLUGIN_H
#define DRUMLINE_PLUGIN_H

#include <stdbool.h>
#include <stdint.h>

/* Number of a communicator's context: generation << INDEX_BITS | place in the table. Bits of a number in a handle. */
enum { INDEX_BITS = 10, NUMBER_BITS = 41 };

/* Return whether the communicator of a context is open; whether it was closed before a time. `number`: 31 bits of it. */
bool is_open_context(uint64_t number);
bool is_abandoned(uint64_t number, uint64_t before_ns);
/* Close all communicators; the child of a fork calls it. */
void forget_contexts(void);
/* Give NCCL the events that are wanted now. */
void refresh_mask(void);
#endif
