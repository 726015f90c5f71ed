/* Clocks of the links between ranks (links.c). No function waits. */
#ifndef DRUMLINE_LINKS_H
#define DRUMLINE_LINKS_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A communicator's sends to one peer, or its receives from it. Its clock runs while one of them is on the network, or is
 * waited for: so the time in which the link was busy is known, whatever its channels do at once. */
struct link { _Atomic uint64_t key, busy_ns, since_ns, under_way; };

static inline uint64_t link_key(uint64_t context, int32_t peer, bool is_send) {
  return context << 33 | (uint64_t)(uint32_t)peer << 1 | is_send;
}

/* Return the link with this key, or NULL: there is no room. A communicator that was closed gives way. */
struct link *find_link(uint64_t key);
/* One more transfer is under way, or one less; return the link's clock. Nothing happens where the link is another's now. */
uint64_t link_begin(struct link *link, uint64_t key, uint64_t now);
uint64_t link_end(struct link *link, uint64_t key, uint64_t now);
/* All bits of the result depend on all of the value. */
uint64_t mixed(uint64_t value);
/* Forget all: the child of a fork calls it. */
void forget_links(void);
#endif
