/* Records of the calls that launch kernels and copies; see launches.c. */
#ifndef DRUMLINE_LAUNCHES_H
#define DRUMLINE_LAUNCHES_H
#include <stdint.h>

/* A call of the driver begins in this thread. */
void launch_begin(uint32_t correlation);
/* It has ended, and is recorded if its begin was seen. */
void launch_end(uint32_t call, uint32_t correlation);
#endif
