/* What plugin.c needs of the file (ring_writer.c). All functions may be called from any thread. */
#ifndef DRUMLINE_RING_WRITER_H
#define DRUMLINE_RING_WRITER_H
#include "ring.h"

#define EXPORT __attribute__((visibility("default")))

extern uint64_t ring_capacity;

static inline _Atomic uint64_t *words(uint8_t *base) { return (_Atomic uint64_t *)base; }
static inline struct comm_entry *comm_table(uint8_t *base) { return (struct comm_entry *)(base + HEADER_BYTES); }
static inline struct record *record_at(uint8_t *base, uint64_t position) {
  return (struct record *)(base + HEADER_BYTES + MAX_COMMS * COMM_BYTES) + (position & (ring_capacity - 1));
}

uint64_t now_ns(void); /* since the epoch */

/* Create the file if there is none yet; return its mapping, or NULL: no folder, no space, no permission. */
uint8_t *ring_open(void);
/* Return the mapping, or NULL without one. Never waits. */
uint8_t *ring(void);
/* Tells processes apart, in handles: another one after a fork. */
uint64_t ring_nonce(void);

/* Return the next record, with its progress and step, or NULL if the ring is full. `position`: its place. */
struct record *ring_claim(uint8_t *base, uint64_t *position);
/* Let the agent read the record. */
void ring_publish(struct record *record, uint64_t position);
/* Write a mark of the job into the ring; return 0 if it is there. */
EXPORT int drumline_mark(int kind, int64_t number, const char *name, uint64_t count);
#endif
