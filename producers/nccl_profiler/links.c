/* The links of this process's communicators, in a table of fixed size. The transfers of one come from one thread. */
#include "links.h"

#include <stddef.h>

#include "plugin.h"

/* Links, and places that are looked at for one: an all_to_all of a thousand ranks has two thousand. */
enum { LINKS = 1 << 14, MOST_PROBED = 8 };
static struct link links[LINKS];
static _Atomic bool is_used;

uint64_t mixed(uint64_t value) { /* the finalizer of MurmurHash3 */
  value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
  value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
  return value ^ value >> 33;
}

void forget_links(void) {
  if (!atomic_exchange(&is_used, false)) return; /* a table that was never used: a child needs no memory for it */
  for (int i = 0; i < LINKS; i++) atomic_store(&links[i].key, 0);
}

struct link *find_link(uint64_t key) {
  uint64_t place = mixed(key);
  for (int pass = 0; pass < 2; pass++) /* first those that are nobody's */
    for (uint64_t i = 0; i < MOST_PROBED; i++) {
      struct link *link = &links[(place + i) % LINKS];
      uint64_t holder = atomic_load_explicit(&link->key, memory_order_acquire);
      if (holder == key) return link;
      if (holder && !(pass && !is_open_context(holder >> 33))) continue;
      atomic_store_explicit(&is_used, true, memory_order_relaxed);
      if (atomic_compare_exchange_strong(&link->key, &holder, key)) {
        atomic_store(&link->under_way, 0);
        return link;
      }
      if (holder == key) return link;
    }
  return NULL;
}

static uint64_t clock_of(const struct link *link, uint64_t now) {
  uint64_t busy = atomic_load_explicit(&link->busy_ns, memory_order_relaxed);
  uint64_t since = atomic_load_explicit(&link->since_ns, memory_order_relaxed);
  bool runs = atomic_load_explicit(&link->under_way, memory_order_relaxed) && now > since;
  return busy + (runs ? now - since : 0);
}

uint64_t link_begin(struct link *link, uint64_t key, uint64_t now) {
  if (atomic_load_explicit(&link->key, memory_order_relaxed) != key) return 0;
  uint64_t clock = clock_of(link, now);
  if (!atomic_fetch_add_explicit(&link->under_way, 1, memory_order_relaxed))
    atomic_store_explicit(&link->since_ns, now, memory_order_relaxed);
  return clock;
}

uint64_t link_end(struct link *link, uint64_t key, uint64_t now) {
  if (atomic_load_explicit(&link->key, memory_order_relaxed) != key) return 0;
  uint64_t clock = clock_of(link, now);
  if (atomic_fetch_sub_explicit(&link->under_way, 1, memory_order_relaxed) == 1)
    atomic_store_explicit(&link->busy_ns, clock, memory_order_relaxed);
  return clock;
}
