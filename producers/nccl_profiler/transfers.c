/* Where the time of an operation goes on the network: one record for each proxy operation that is chosen.
 *
 * NCCL gives its proxy thread a proxy operation for each channel and peer; it moves the data in transfers (proxy steps), of
 * which up to 8 are under way. Their states (NCCL 2.27 to 2.30, src/transport/net.cc; interfaces 4 to 7):
 *
 *   send      SEND_GPU_WAIT   the buffer is the GPU's, to be filled
 *             SEND_PEER_WAIT  the data is there: NCCL offers it to the network, which takes it when the receiver has room.
 *                             Told again at each attempt. InfiniBand takes none without the receiver's credit, sockets
 *                             take all: over sockets a late receiver shows as a long time on the network.
 *             SEND_WAIT       the network has it
 *             stop            the network states that it is sent
 *   receive   RECEIVE_WAIT    the buffer is the network's: time from here on is the sender's and the network's, and NCCL
 *                             cannot tell them apart
 *             RECEIVE_FLUSH   the data is there, and made visible to the GPU
 *             RECEIVE_GPU     the GPU may have it
 *             stop            the GPU has consumed it
 *
 * The times are the proxy thread's, which polls: each is late by one round of its loop. All is accumulated in a place of a
 * pool and written when the operation ends, without lock or allocation. */
#define _GNU_SOURCE
#include "transfers.h"

#include <string.h>
#include <time.h>

#include "links.h"
#include "plugin.h"
#include "ring_writer.h"
#include "timed_steps.h"

/* Operations of which one is recorded, by a hash that all ranks compute alike: of dense calls fewer. The second is a
 * multiple of the first, so ranks that see their pace differently record the same ones in part. */
enum { SPARSE_SHARE = 8, DENSE_SHARE = 64 };
/* Part of the ring beyond which transfers find no room: operations need the rest. */
enum { RING_SHARE = 4 };
/* Numbers of operations and transfers: generation of the place, place, transfer modulo those under way (NCCL_STEPS). */
enum { PLACE_BITS = 11, PLACES = 1 << PLACE_BITS, UNDER_WAY_BITS = 3, UNDER_WAY = 1 << UNDER_WAY_BITS };
/* Places that are looked at before one is given up. */
enum { MOST_TRIED = 64 };

/* Time after which what a closed communicator left under way is given up: NCCL was aborted; ns. */
static const uint64_t ABANDONED_NS = 10000000000;
/* Unit of a record's times; ns. */
enum { UNIT_NS = 100 };

enum phase { NONE, GPU_WAIT, PEER_WAIT, NETWORK, FLUSH, PHASES };
enum setting { AUTO, ALL, OFF };
enum { FREE, TAKEN, IN_USE };

static struct operation {
  _Atomic uint64_t state;   /* generation << 2 | one of FREE, TAKEN, IN_USE */
  _Atomic uint64_t context; /* number of its communicator's; known once it is in use */
  struct link *link;
  uint64_t key; /* of the link */
  bool is_send, was_busy;
  uint8_t channel;
  int32_t peer;
  int64_t step;
  uint64_t busy_from_ns, busy_to_ns; /* of the link's clock */
  uint64_t bytes, transfers, spent_ns[PHASES];
  struct { enum phase phase; uint64_t since_ns; } under_way[UNDER_WAY];
} operations[PLACES];

static _Atomic uint32_t next_place;
static _Atomic int setting;

void transfers_all(void) { atomic_store(&setting, ALL); }
void transfers_off(void) { atomic_store(&setting, OFF); }

static _Atomic bool is_paused;
bool transfers_paused(void) { return atomic_load_explicit(&is_paused, memory_order_relaxed); }

/* Record transfers as ever from now on, or none: what they cost is measured in one process. Those under way go on. */
EXPORT void drumline_record_transfers(int on) {
  if (atomic_exchange(&is_paused, !on) == !!on) refresh_mask();
}

int transfers_mask(int version) {
  return version >= 4 && atomic_load_explicit(&setting, memory_order_relaxed) != OFF ? KIND_PROXY_OP | KIND_PROXY_STEP : 0;
}

void forget_transfers(void) {
  if (!atomic_exchange(&next_place, 0)) return; /* of places that were never used a child needs no memory */
  for (int i = 0; i < PLACES; i++) atomic_store(&operations[i].state, atomic_load(&operations[i].state) & ~3ull);
}

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Return whether the operation is one of those that all ranks record: collectives by NCCL's number of them, sends and
 * receives, which have none, by their step, or in a job without marks by the second of their call. */
static bool is_chosen(uint8_t *base, const struct record *parent, uint64_t comm_id) {
  if (atomic_load_explicit(&setting, memory_order_relaxed) == ALL) return true;
  uint64_t until = atomic_load_explicit(&words(base)[TIMES_REQUESTED], memory_order_relaxed);
  if (until && until > now_ns()) return true;
  uint64_t number = parent->sequence;
  if (!number) number = parent->step >= 0 ? (uint64_t)parent->step : parent->host_ns / 1000000000u;
  return mixed(number ^ mixed(comm_id + parent->function)) % (is_dense() ? DENSE_SHARE : SPARSE_SHARE) == 0;
}

/* The phase in which the link's clock runs. */
static enum phase busy_phase(const struct operation *operation) { return operation->is_send ? NETWORK : PEER_WAIT; }

static struct operation *place_of(uint64_t number) {
  struct operation *operation = &operations[number >> UNDER_WAY_BITS & (PLACES - 1)];
  const uint64_t mask = (1ull << (NUMBER_BITS - PLACE_BITS - UNDER_WAY_BITS)) - 1;
  uint64_t state = atomic_load_explicit(&operation->state, memory_order_relaxed);
  return (state & 3) == IN_USE && (state >> 2 & mask) == number >> (PLACE_BITS + UNDER_WAY_BITS) ? operation : NULL;
}

/* Take a place of the pool for an operation of a communicator; return its number, or 0: too many are under way. */
static uint64_t take_place(uint64_t context, uint64_t now) {
  uint32_t first = atomic_fetch_add_explicit(&next_place, 1, memory_order_relaxed);
  for (uint32_t i = first; i != first + MOST_TRIED; i++) {
    struct operation *operation = &operations[i % PLACES];
    uint64_t state = atomic_load_explicit(&operation->state, memory_order_acquire), generation = (state >> 2) + 1;
    bool usable = (state & 3) == FREE ||
                  ((state & 3) == IN_USE && is_abandoned(atomic_load(&operation->context), now - ABANDONED_NS));
    if (!usable || !atomic_compare_exchange_strong(&operation->state, &state, generation << 2 | TAKEN)) continue;
    atomic_store(&operation->context, context);
    atomic_store(&operation->state, generation << 2 | IN_USE);
    return (generation << PLACE_BITS | i % PLACES) << UNDER_WAY_BITS & ((1ull << NUMBER_BITS) - 1);
  }
  return 0;
}

/* True if the record is that of the operation at `parent`: the agent has not read it, so it is not in use again. While it
 * is refilled its number is the old one still, and its progress is not. */
static bool is_of(const struct record *record, uint64_t parent) {
  return atomic_load_explicit(&record->number, memory_order_acquire) == parent + 1 &&
         (uint32_t)(atomic_load_explicit(&record->progress, memory_order_acquire) >> 32) == (uint32_t)(parent + 1);
}

uint64_t transfers_start(uint64_t parent, const struct descriptor *event) {
  uint8_t *base = ring();
  struct record *record = base ? record_at(base, parent) : NULL;
  if (!record || !is_of(record, parent)) return 0;
  const uint32_t comm = *(volatile uint16_t *)&record->comm; /* read once: it may change */
  if (comm >= MAX_COMMS) return 0;
  uint64_t context = (uint64_t)record->generation << INDEX_BITS | comm;
  int64_t step = record->step;
  bool chosen = is_chosen(base, record, atomic_load_explicit(&comm_table(base)[comm].id, memory_order_relaxed));
  atomic_thread_fence(memory_order_acquire); /* what was read is older than the second look */
  if (!chosen || !is_of(record, parent)) return 0;
  uint64_t key = link_key(context, event->proxy_op.peer, event->proxy_op.is_send);
  struct link *link = find_link(key);
  uint64_t number = link ? take_place(context, now_ns()) : 0;
  if (!number) {
    atomic_fetch_add_explicit(&words(base)[TRANSFERS_DROPPED], 1, memory_order_relaxed);
    return 0;
  }
  struct operation *operation = place_of(number);
  operation->is_send = event->proxy_op.is_send;
  operation->channel = event->proxy_op.channel;
  operation->peer = event->proxy_op.peer;
  operation->step = step;
  operation->link = link;
  operation->key = key;
  operation->was_busy = false;
  operation->busy_from_ns = operation->busy_to_ns = operation->bytes = operation->transfers = 0;
  memset(operation->spent_ns, 0, sizeof operation->spent_ns);
  memset(operation->under_way, 0, sizeof operation->under_way);
  return number;
}

/* Go to the next phase of transfer `i`. */
static void enter(struct operation *operation, uint64_t i, enum phase phase) {
  uint64_t now = monotonic_ns(), since = operation->under_way[i].since_ns;
  enum phase before = operation->under_way[i].phase, busy = busy_phase(operation);
  if (before != NONE && now > since) operation->spent_ns[before] += now - since;
  if (before == busy) operation->busy_to_ns = link_end(operation->link, operation->key, now);
  if (phase == busy) {
    uint64_t clock = link_begin(operation->link, operation->key, now);
    if (!operation->was_busy) operation->busy_from_ns = operation->busy_to_ns = clock;
    operation->was_busy = true;
  }
  operation->under_way[i].phase = phase;
  operation->under_way[i].since_ns = now;
}

uint64_t transfer_start(uint64_t number, const struct descriptor *event) {
  struct operation *operation = place_of(number);
  if (!operation) return 0;
  uint64_t i = (uint64_t)event->proxy_step.step & (UNDER_WAY - 1);
  if (operation->under_way[i].phase != NONE) enter(operation, i, NONE); /* it was not stopped */
  return number | i;
}

void transfer_state(uint64_t number, int state, const union state_arguments *arguments) {
  struct operation *operation = place_of(number);
  if (!operation) return;
  uint64_t i = number & (UNDER_WAY - 1);
  enum phase phase;
  switch (state) {
  case STATE_SEND_GPU_WAIT:
  case STATE_RECEIVE_GPU_WAIT: phase = GPU_WAIT; break;
  case STATE_SEND_PEER_WAIT:
  case STATE_RECEIVE_WAIT: phase = PEER_WAIT; break;
  case STATE_SEND_WAIT: phase = NETWORK; break;
  case STATE_RECEIVE_FLUSH_WAIT: phase = FLUSH; break;
  default: return;
  }
  if (operation->under_way[i].phase == phase) return; /* one more attempt to send it */
  enter(operation, i, phase);
  if ((phase == NETWORK || phase == FLUSH) && arguments) operation->bytes += arguments->proxy_step.bytes;
}

void transfer_stop(uint64_t number) {
  struct operation *operation = place_of(number);
  uint64_t i = number & (UNDER_WAY - 1);
  if (!operation || operation->under_way[i].phase == NONE) return;
  enter(operation, i, NONE);
  operation->transfers++;
}

static uint32_t units(uint64_t ns) { return ns / UNIT_NS < UINT32_MAX ? (uint32_t)(ns / UNIT_NS) : UINT32_MAX; }

static void write_record(uint8_t *base, const struct operation *operation) {
  _Atomic uint64_t *header = words(base);
  uint64_t position, unread = atomic_load(&header[WRITTEN]) - atomic_load(&header[READ]);
  struct record *record = unread < ring_capacity / RING_SHARE ? ring_claim(base, &position) : NULL;
  if (!record) {
    atomic_fetch_add_explicit(&header[TRANSFERS_DROPPED], 1, memory_order_relaxed);
    return;
  }
  uint64_t context = atomic_load(&operation->context);
  record->kind = TRANSFERS;
  record->function = operation->is_send ? TRANSFERS_SENT : TRANSFERS_RECEIVED;
  record->datatype = record->algorithm = record->protocol = 0;
  record->channels = operation->channel;
  record->comm = context & (MAX_COMMS - 1);
  record->generation = (uint32_t)(context >> INDEX_BITS);
  record->peer = operation->peer;
  record->step = operation->step;
  record->sequence = operation->transfers;
  record->count = operation->bytes;
  record->host_ns = now_ns();
  record->gpu_wait = units(operation->spent_ns[GPU_WAIT]);
  record->peer_wait = units(operation->spent_ns[PEER_WAIT]);
  record->network = units(operation->spent_ns[NETWORK]);
  record->flush = units(operation->spent_ns[FLUSH]);
  record->busy = units(operation->busy_to_ns > operation->busy_from_ns ? operation->busy_to_ns - operation->busy_from_ns : 0);
  record->zero = 0;
  record->busy_from_ns = operation->busy_from_ns;
  ring_publish(record, position);
}

void transfers_stop(uint64_t number) {
  uint8_t *base = ring();
  struct operation *operation = place_of(number);
  if (!operation) return;
  if (base && operation->transfers) write_record(base, operation);
  atomic_fetch_and_explicit(&operation->state, ~3ull, memory_order_release);
}
