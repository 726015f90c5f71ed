/* Which library loaded the plugin. */
#ifndef DRUMLINE_CALLER_H
#define DRUMLINE_CALLER_H
#include <stdbool.h>

/* Return whether code at an address is RCCL's: of a file named librccl.so, with or without a version. */
bool is_of_rccl(const void *address);
#endif
