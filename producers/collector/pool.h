/* Buffers of the shared pool, as callbacks.c lends them and takes them back. */
#ifndef DRUMLINE_POOL_H
#define DRUMLINE_POOL_H
#include <stddef.h>
#include <stdint.h>

enum { MOST_BUFFERS = 128 }; /* MAX_BUFFERS */

/* Return the number of a free buffer, which is lent from now on, or -1 without one. */
int pool_lend(void);
uint8_t *pool_buffer(unsigned number);
size_t pool_buffer_bytes(void);
/* Take back a lent buffer with so many valid bytes for the decoder; without any it is free again. */
void pool_return(unsigned number, size_t valid);
/* A launch has no record, as no buffer was free. */
void pool_count_lost_launch(void);
#endif
