/* NCCL's profiler plugin of the light tier: one record of 96 bytes for each operation, in a file that outlives the
 * process (ring.h).
 *
 * NCCL calls it from the job's threads, from host functions of CUDA streams and from its proxy threads. There is no
 * thread here, no lock, and no allocation after `init`. Whatever fails, NCCL gets success: without a file, or with a
 * full one, the job runs as without drumline. NCCL closes the library with the last communicator; it stays loaded
 * (-z nodelete), as threads may still be in it. */
#include <pthread.h>
#include <string.h>

#include "abi.h"
#include "caller.h"
#include "chain.h"
#include "operations.h"
#include "plugin.h"
#include "ring_writer.h"
#include "timed_steps.h"
#include "transfers.h"

/* --- handles: numbers, not pointers, so that any handle can be looked at --- */

/* Bits: 8 that no pointer has | 12 that tell processes apart | 41 of a number | 3 of its kind. A late event of an
 * operation whose record is in use again is recognised by its number and touches nothing; so is a handle of another
 * process, which proxy threads of NCCL pass on (PXN). */
enum handle_kind {
  OF_CONTEXT, OF_GROUP, OF_API_CALL, OF_OPERATION, OF_CHANNEL, OF_DRIFTED_CHANNEL, OF_PROXY_OPERATION, OF_PROXY_STEP,
  OF_THEIRS, OF_OTHER_PROCESS /* in no handle of ours */
};
enum { MARK = 0xd1, NONCE_MASK = (1 << 12) - 1, CHANNEL_BITS = 6 };
#define NUMBER_MASK ((1ull << NUMBER_BITS) - 1)
_Static_assert(MAX_COMMS <= 1 << INDEX_BITS, "index of a communicator");

struct handle { enum handle_kind kind; uint64_t number; };

static uint64_t pack(enum handle_kind kind, uint64_t number) {
  return (uint64_t)MARK << 56 | (ring_nonce() & NONCE_MASK) << 44 | (number & NUMBER_MASK) << 3 | kind;
}

static struct handle unpack(const void *opaque) {
  uint64_t bits = (uint64_t)opaque;
  if (bits >> 56 != MARK) return (struct handle){OF_THEIRS, 0}; /* a pointer of a chained plugin, or NULL */
  if ((bits >> 44 & NONCE_MASK) != (ring_nonce() & NONCE_MASK)) return (struct handle){OF_OTHER_PROCESS, 0};
  return (struct handle){bits & 7, bits >> 3 & NUMBER_MASK};
}

static void count(enum header word) {
  uint8_t *base = ring();
  if (base) atomic_fetch_add_explicit(&words(base)[word], 1, memory_order_relaxed);
}

/* --- a chained plugin --- */

static _Atomic(const struct profiler_v1 *) chained[NEWEST + 1]; /* their struct by version; `init` of it is not used */
static int their_mask;               /* may change at any time: they keep the pointer */
static _Atomic(int *) mask_of_nccl;  /* and NCCL reads this one */
static _Atomic int our_mask;
static pthread_mutex_t switching = PTHREAD_MUTEX_INITIALIZER; /* NCCL's calls never take it */
static _Atomic uint64_t plans; /* groups of operations that are one kernel; numbered from 1 */

struct theirs { const void *profiler; void *context; int *mask; result failed; };

/* `caller`: where `init` returns to. The first one decides for the process whose clock the GPU's times are of. */
static struct theirs prepare_theirs(int version, int *mask, const void *caller) {
  uint8_t *base = ring_open();
  if (base && !atomic_load(&words(base)[INTERFACE])) atomic_store(&words(base)[GPU_TICKS], is_of_rccl(caller));
  struct theirs theirs = {chain_struct(version), NULL, base ? &their_mask : mask, 0};
  atomic_store(&chained[version], (const struct profiler_v1 *)theirs.profiler);
  return theirs;
}

static bool is_paused(void) {
  uint8_t *base = ring();
  return base && atomic_load(&words(base)[PAUSED]);
}

static int wanted_mask(void) {
  int ours = atomic_load(&our_mask) & ~(is_untimed() ? KIND_KERNEL_CHANNEL : 0);
  if (transfers_paused()) ours &= ~(KIND_PROXY_OP | KIND_PROXY_STEP);
  return __atomic_load_n(&their_mask, __ATOMIC_SEQ_CST) | (is_paused() ? 0 : ours);
}

/* Give NCCL the events that the chained plugin asks for now, and ours. Of several threads that do, the last one looks
 * again after all has changed. */
void refresh_mask(void) {
  int *mask = atomic_load(&mask_of_nccl), wanted;
  while (mask && __atomic_load_n(mask, __ATOMIC_SEQ_CST) != (wanted = wanted_mask()))
    __atomic_store_n(mask, wanted, __ATOMIC_SEQ_CST);
}

/* Switch the recording of this process's operations off or on, from any thread, also before NCCL is there. While it is
 * off NCCL works as without this plugin: it looks at the mask at each call of its API. Operations that have begun go
 * on. Return 0 if it is as asked; it stays on where there is no ring, or none with room to tell the agent of it. */
EXPORT int drumline_record(int on) {
  uint8_t *base = ring_open();
  if (!base) return -1;
  pthread_mutex_lock(&switching);
  static uint64_t paused_at;
  uint64_t paused = !on;
  int failed = 0;
  if (atomic_load(&words(base)[PAUSED]) != paused) { /* what is not recorded lies between the two marks */
    failed = paused && drumline_mark(RECORD, 0, NULL, 0);
    if (!failed) {
      atomic_store(&words(base)[PAUSED], paused);
      refresh_mask();
    }
    if (paused) paused_at = now_ns();
    else timed_steps_resume(now_ns() - paused_at);
    if (!paused) drumline_mark(RECORD, 1, NULL, 0); /* in a full ring the next mark of a step tells it */
  }
  pthread_mutex_unlock(&switching);
  return failed;
}

static void *their_handle(const void *opaque) {
  struct handle handle = unpack(opaque);
  switch (handle.kind) {
  case OF_THEIRS: return (void *)opaque;
  case OF_GROUP: return chain_theirs(GROUPS, handle.number, (uint64_t)opaque);
  case OF_API_CALL: return chain_theirs(API_CALLS, handle.number, (uint64_t)opaque);
  case OF_OPERATION: return chain_theirs(OPERATIONS, handle.number, (uint64_t)opaque);
  case OF_CHANNEL:
  case OF_DRIFTED_CHANNEL: return chain_theirs(CHANNELS, handle.number, (uint64_t)opaque);
  case OF_PROXY_OPERATION: return chain_theirs(PROXY_OPERATIONS, handle.number, (uint64_t)opaque);
  case OF_PROXY_STEP: return chain_theirs(PROXY_STEPS, handle.number, (uint64_t)opaque);
  default: return NULL;
  }
}

static void keep_theirs(uint64_t ours, void *theirs) {
  struct handle handle = unpack((void *)ours);
  switch (handle.kind) {
  case OF_GROUP: chain_keep(GROUPS, handle.number, ours, theirs); break;
  case OF_API_CALL: chain_keep(API_CALLS, handle.number, ours, theirs); break;
  case OF_CHANNEL:
  case OF_DRIFTED_CHANNEL: chain_keep(CHANNELS, handle.number, ours, theirs); break;
  case OF_PROXY_OPERATION: chain_keep(PROXY_OPERATIONS, handle.number, ours, theirs); break;
  case OF_PROXY_STEP: chain_keep(PROXY_STEPS, handle.number, ours, theirs); break;
  default: chain_keep(OPERATIONS, handle.number, ours, theirs);
  }
}

/* Return where the group of an operation lies in its descriptor. */
static void **group_of(struct descriptor *event, uint64_t kind, int version) {
  if (version <= 4) return &event->parent;
  return kind == KIND_COLL ? &event->coll4.parent_group : &event->p2p4.parent_group;
}

/* Let a chained plugin start its event. Parent and group are theirs for the call only. */
static void *start_theirs(const struct profiler_v1 *plugin, void *context, struct descriptor *event, uint64_t kind,
                          int version) {
  void **group = version >= 5 && (kind == KIND_COLL || kind == KIND_P2P) ? group_of(event, kind, version) : NULL;
  void *parent = event->parent, *our_group = group ? *group : NULL, *theirs = NULL;
  event->parent = their_handle(parent);
  if (group) *group = their_handle(our_group);
  plugin->start(context, &theirs, event);
  event->parent = parent;
  if (group) *group = our_group;
  return theirs;
}

/* --- communicators --- */

/* Contexts are places in the file's table of communicators. A closed one is used again when the agent has read all
 * records that refer to it. `state`: generation << 2 | one of these. */
enum { UNUSED, CHANGING, OPEN, CLOSED };
struct comm { const char *name; uint64_t id; int nodes, ranks, rank; };
static struct context {
  _Atomic uint64_t state;
  _Atomic uint64_t closed_at;  /* records that were written when it was closed */
  _Atomic uint64_t closed_ns;
  _Atomic(void *) theirs;
  _Atomic bool is_forwarded;
  _Atomic uint64_t drifted;    /* bits of the channels whose events have the times of older operations */
} contexts[MAX_COMMS];

void forget_contexts(void) {
  static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  switching = unlocked; /* another thread may have held it at the fork */
  for (int i = 0; i < MAX_COMMS; i++) atomic_store(&contexts[i].state, UNUSED);
}

/* Take a place in the table; return its index, or MAX_COMMS. */
static uint32_t take_context(uint8_t *base) {
  uint64_t read = atomic_load(&words(base)[READ]);
  for (uint32_t pass = UNUSED; pass <= CLOSED; pass += CLOSED) /* first those that no record refers to */
    for (uint32_t i = 0; i < MAX_COMMS; i++) {
      uint64_t state = atomic_load(&contexts[i].state);
      if ((state & 3) != pass || (pass == CLOSED && read < atomic_load(&contexts[i].closed_at))) continue;
      if (!atomic_compare_exchange_strong(&contexts[i].state, &state, ((state >> 2) + 1) << 2 | CHANGING)) continue;
      if (pass == UNUSED) atomic_fetch_add(&words(base)[COMMS], 1);
      return i;
    }
  return MAX_COMMS;
}

static result open_context(void **opaque, int *mask, int version, const struct theirs *theirs, struct comm comm) {
  uint8_t *base = ring();
  bool is_forwarded = theirs->profiler && !theirs->failed;
  *opaque = is_forwarded ? theirs->context : NULL;
  if (!base) return 0; /* all is theirs, the mask too */
  atomic_store(&words(base)[INTERFACE], (uint64_t)version);
  atomic_store(&words(base)[CHAIN], (uint64_t)chain_state());
  atomic_store(&our_mask, KIND_COLL | KIND_P2P | (version >= 4 ? KIND_KERNEL_CHANNEL : 0) |
               (version >= 6 ? KIND_COPY : 0) | transfers_mask(version));
  atomic_store(&mask_of_nccl, mask);
  refresh_mask();
  uint32_t index = take_context(base);
  if (index == MAX_COMMS) {
    count(COMMS_DENIED);
    return 0;
  }
  struct context *context = &contexts[index];
  atomic_store(&context->theirs, theirs->context);
  atomic_store(&context->is_forwarded, is_forwarded);
  atomic_store(&context->drifted, 0);
  uint64_t generation = atomic_load(&context->state) >> 2;
  struct comm_entry *entry = &comm_table(base)[index];
  atomic_store(&entry->id, comm.id);
  entry->created_ns = now_ns();
  entry->closed_ns = 0;
  entry->generation = (uint32_t)generation;
  entry->rank = comm.rank;
  entry->ranks = comm.ranks;
  entry->nodes = comm.nodes;
  memset(entry->name, 0, sizeof entry->name);
  if (comm.name) memcpy(entry->name, comm.name, strnlen(comm.name, sizeof entry->name - 1));
  atomic_store(&context->state, generation << 2 | OPEN);
  *opaque = (void *)pack(OF_CONTEXT, generation << INDEX_BITS | index);
  return 0;
}

/* Return the open context of a handle, or NULL. */
static struct context *context_of(struct handle handle) {
  struct context *context = &contexts[handle.number & (MAX_COMMS - 1)];
  uint64_t state = atomic_load_explicit(&context->state, memory_order_acquire);
  uint64_t wanted = ((handle.number >> INDEX_BITS) << 2 | OPEN) & NUMBER_MASK >> (INDEX_BITS - 2);
  return handle.kind == OF_CONTEXT && (state & NUMBER_MASK >> (INDEX_BITS - 2)) == wanted ? context : NULL;
}

bool is_open_context(uint64_t number) {
  return context_of((struct handle){OF_CONTEXT, number & ((1ull << 31) - 1)});
}

bool is_abandoned(uint64_t number, uint64_t before_ns) {
  const struct context *context = &contexts[number & (MAX_COMMS - 1)];
  return !is_open_context(number) && atomic_load_explicit(&context->closed_ns, memory_order_relaxed) < before_ns;
}

static result finalize(void *opaque, int version) {
  const struct profiler_v1 *plugin = atomic_load(&chained[version]);
  struct handle handle = unpack(opaque);
  void *theirs = handle.kind == OF_THEIRS ? opaque : NULL;
  struct context *context = context_of(handle);
  uint64_t state = context ? atomic_load(&context->state) : 0;
  uint8_t *base = ring();
  if (context && base && atomic_compare_exchange_strong(&context->state, &state, (state & ~3ull) | CHANGING)) {
    atomic_store(&context->closed_ns, comm_table(base)[context - contexts].closed_ns = now_ns());
    theirs = atomic_load(&context->is_forwarded) ? atomic_load(&context->theirs) : NULL;
    atomic_store(&context->closed_at, atomic_load(&words(base)[WRITTEN]));
    atomic_store(&context->state, (state & ~3ull) | CLOSED);
  } else if (handle.kind != OF_THEIRS) {
    count(UNKNOWN);
  }
  if (plugin && theirs) plugin->finalize(theirs);
  return 0;
}

/* --- operations and their channels --- */

/* Note the channels of a copy to the rank itself, which every all_to_all has. The GPU counts its works of a channel
 * with these copies, NCCL's host without them, and the host finds an operation's times by its own count
 * (src/transport/profiler.cc, incWorkCounter in src/enqueue.cc; 2.28.9). So from then on the events of these channels
 * have the times of older operations. The copy uses the first channels, from NCCL 2.28 on; those before spread it. */
static void note_drift(struct context *context, const struct descriptor *event, int version) {
  const struct comm_entry *entry = &comm_table(ring())[context - contexts];
  if (entry->rank < 0 || event->p2p4.peer != entry->rank) return;
  uint8_t channels = version >= 5 ? event->p2p4.channels : 64;
  atomic_fetch_or(&context->drifted, channels < 64 ? (1ull << channels) - 1 : ~0ull);
}

static uint64_t start_operation(uint64_t context, struct descriptor *event, uint64_t kind, int version) {
  uint8_t *base = ring();
  uint64_t position;
  timed_steps_call();
  struct record *record = base ? ring_claim(base, &position) : NULL;
  if (!record) return 0;
  record->comm = context & (MAX_COMMS - 1);
  record->generation = (uint32_t)(context >> INDEX_BITS);
  fill_operation(record, event, kind, version);
  struct comm_entry *entry = &comm_table(base)[record->comm];
  if (version <= 3) { /* the communicator is known from here */
    uint64_t unknown = 0, id = kind == KIND_COLL ? event->coll1.comm_hash : event->p2p1.comm_hash;
    if (atomic_compare_exchange_strong(&entry->id, &unknown, id)) entry->rank = event->rank;
  }
  struct handle call = unpack(event->parent), group = unpack(kind == KIND_COPY ? NULL : *group_of(event, kind, version));
  atomic_store_explicit(&record->gpu_start_ns, UINT64_MAX, memory_order_relaxed);
  atomic_store_explicit(&record->gpu_stop_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&record->seen_ns, 0, memory_order_relaxed);
  record->captured = call.kind == OF_API_CALL ? (uint32_t)call.number : 0;
  record->plan = group.kind == OF_GROUP ? (uint32_t)group.number : 0;
  record->host_ns = now_ns();
  ring_publish(record, position);
  return pack(OF_OPERATION, position);
}

static void keep_least(_Atomic uint64_t *word, uint64_t value) {
  uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
  while (value < before && !atomic_compare_exchange_weak(word, &before, value)) {}
}

static void keep_greatest(_Atomic uint64_t *word, uint64_t value) {
  uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
  while (value > before && !atomic_compare_exchange_weak(word, &before, value)) {}
}

/* True if `progress` is that of the operation at `position`: the record is not in use again. */
static bool is_current(uint64_t progress, uint64_t position) {
  return (uint32_t)(progress >> 32) == (uint32_t)(position + 1);
}

/* Count a channel's start into its operation. Return the channel's handle, or 0 if the operation is not known. The
 * start of a drifted channel is not counted: it is no sign that the operation has begun. */
static uint64_t start_channel(const struct context *context, const struct descriptor *event) {
  struct handle parent = unpack(event->parent);
  if (parent.kind == OF_THEIRS) return 0; /* the ring had no room for the operation, which is counted */
  uint8_t *base = ring();
  if (!base || parent.kind != OF_OPERATION) {
    count(UNKNOWN);
    return 0;
  }
  struct record *record = record_at(base, parent.number);
  uint64_t channel = event->kernel.channel & ((1 << CHANNEL_BITS) - 1);
  bool has_drifted = atomic_load_explicit(&context->drifted, memory_order_relaxed) >> channel & 1;
  uint64_t before = atomic_load_explicit(&record->progress, memory_order_acquire);
  do {
    if (!is_current(before, parent.number)) {
      count(UNKNOWN);
      return 0;
    }
  } while (!has_drifted && !atomic_compare_exchange_weak(&record->progress, &before, before + PROGRESS_STARTED));
  if (!has_drifted) keep_least(&record->gpu_start_ns, event->kernel.gpu_ns);
  return pack(has_drifted ? OF_DRIFTED_CHANNEL : OF_CHANNEL, parent.number << CHANNEL_BITS | channel);
}

/* Count a channel's stop. Its progress is written last: who sees all channels stopped, sees their times. */
static void stop_channel(uint64_t position, bool has_drifted, uint64_t gpu_ns) {
  uint8_t *base = ring();
  struct record *record = base ? record_at(base, position) : NULL;
  uint64_t before = record ? atomic_load_explicit(&record->progress, memory_order_acquire) : 0, seen = 0;
  if (!has_drifted && record && is_current(before, position)) keep_greatest(&record->gpu_stop_ns, gpu_ns);
  do {
    if (!record || !is_current(before, position)) {
      count(UNKNOWN);
      return;
    }
    /* the last one, or any if their number is not known */
    if (!seen && progress_stopped(before) + progress_drifted(before) + 1 >= record->channels) {
      seen = now_ns();
      keep_greatest(&record->seen_ns, seen);
    }
  } while (!atomic_compare_exchange_weak(&record->progress, &before, before + (has_drifted ? PROGRESS_DRIFTED : 1)));
}

/* Number a call that is captured into a CUDA graph: it is the parent of its operation at each replay. */
static uint64_t start_api_call(const struct descriptor *event, uint64_t kind) {
  uint8_t *base = ring();
  bool captured = kind == KIND_COLL_API ? event->coll_api.captured : event->p2p_api.captured;
  return base && captured ? pack(OF_API_CALL, atomic_fetch_add(&words(base)[CAPTURED], 1) + 1) : 0;
}

/* Start what the proxy thread does for an operation on one channel, or one transfer of it, if it is recorded. */
static uint64_t start_proxy(const struct descriptor *event, uint64_t kind) {
  struct handle parent = unpack(event->parent);
  uint64_t number = 0;
  if (kind == KIND_PROXY_OP && parent.kind == OF_OPERATION) {
    number = transfers_start(parent.number, event);
    return number ? pack(OF_PROXY_OPERATION, number) : 0;
  }
  if (kind == KIND_PROXY_STEP && parent.kind == OF_PROXY_OPERATION) number = transfer_start(parent.number, event);
  return number ? pack(OF_PROXY_STEP, number) : 0;
}

/* --- what NCCL calls --- */

static result start(void *opaque, void **result_handle, struct descriptor *event, int version) {
  const struct profiler_v1 *plugin = atomic_load_explicit(&chained[version], memory_order_relaxed);
  uint64_t kind = version >= 5 ? event->type.wide : event->type.narrow, ours = 0;
  void *theirs = NULL, *their_context = NULL;
  struct handle handle = unpack(opaque);
  struct context *context = context_of(handle);
  bool is_forwarded = plugin && handle.kind == OF_THEIRS && (opaque || !ring()); /* theirs may need no context */
  bool is_proxy = kind == KIND_PROXY_OP || kind == KIND_PROXY_STEP;
  /* channels and proxy operations are of operations that began before */
  bool is_new = kind != KIND_KERNEL_CHANNEL && !is_proxy && !is_paused();
  *result_handle = NULL; /* always: NCCL keeps handles in memory that it uses again */
  if (kind == KIND_PROXY_STEP && !event->parent && !plugin) return 0; /* of an operation that is not recorded: most are */
  if (context) {
    is_forwarded = plugin && atomic_load_explicit(&context->is_forwarded, memory_order_relaxed);
    their_context = atomic_load_explicit(&context->theirs, memory_order_relaxed);
  } else if (handle.kind == OF_THEIRS) {
    their_context = opaque;
    if (is_new && (kind == KIND_COLL || kind == KIND_P2P)) count(DENIED);
  } else {
    if (kind != KIND_PROXY_STEP) count(UNKNOWN); /* steps are those of the operation */
    is_forwarded = plugin && handle.kind == OF_OTHER_PROCESS; /* they tell by the event's pid, not by a context */
  }
  if (is_forwarded && ring()) {
    refresh_mask();
    is_forwarded = chain_wants(__atomic_load_n(&their_mask, __ATOMIC_RELAXED), kind);
  }
  if (is_forwarded) theirs = start_theirs(plugin, their_context, event, kind, version);
  if (context && kind == KIND_P2P && version >= 4 && ring()) note_drift(context, event, version);
  if (context && kind == KIND_KERNEL_CHANNEL && version >= 4) ours = start_channel(context, event);
  else if (context && is_proxy && version >= 4) ours = start_proxy(event, kind);
  else if (!context || !is_new) ours = 0;
  else if (kind == KIND_COLL || kind == KIND_P2P) ours = start_operation(handle.number, event, kind, version);
  /* Of one that is captured into a graph there is no event at a replay. */
  else if (kind == KIND_COPY && unpack(event->parent).kind != OF_API_CALL)
    ours = start_operation(handle.number, event, kind, version);
  else if (kind == KIND_COLL_API || kind == KIND_P2P_API) ours = start_api_call(event, kind);
  /* A kernel. NCCL 2.27 and before tells of no operation whose group has no handle. */
  else if (kind == KIND_GROUP) ours = pack(OF_GROUP, atomic_fetch_add(&plans, 1) + 1);
  /* a step's handle comes again 8 steps later: then theirs of before, which has ended, must not stay */
  if (ours && (theirs || (plugin && kind == KIND_PROXY_STEP))) keep_theirs(ours, theirs);
  *result_handle = ours ? (void *)ours : theirs;
  return 0;
}

static result stop(void *handle, int version) {
  const struct profiler_v1 *plugin = atomic_load_explicit(&chained[version], memory_order_relaxed);
  void *theirs = plugin ? their_handle(handle) : NULL;
  struct handle ours = unpack(handle);
  if (ours.kind == OF_PROXY_STEP) transfer_stop(ours.number);
  else if (ours.kind == OF_PROXY_OPERATION) transfers_stop(ours.number);
  if (theirs) plugin->stop(theirs);
  return 0;
}

static result record_event_state(void *opaque, int state, union state_arguments *arguments, int version) {
  const struct profiler_v1 *plugin = atomic_load_explicit(&chained[version], memory_order_relaxed);
  void *theirs = plugin ? their_handle(opaque) : NULL;
  struct handle handle = unpack(opaque);
  bool has_drifted = handle.kind == OF_DRIFTED_CHANNEL;
  if ((handle.kind == OF_CHANNEL || has_drifted) && state == STATE_KERNEL_CHANNEL_STOP && arguments)
    stop_channel(handle.number >> CHANNEL_BITS, has_drifted, arguments->kernel.gpu_ns);
  else if (handle.kind == OF_PROXY_STEP) transfer_state(handle.number, state, arguments);
  else if (handle.kind == OF_OTHER_PROCESS) count(UNKNOWN);
  if (theirs) plugin->state(theirs, state, arguments);
  return 0;
}

/* --- the seven interfaces --- */

#define INIT_OLD(V) \
  static result init_v##V(void **context, int *mask) { \
    struct theirs theirs = prepare_theirs(V, mask, __builtin_return_address(0)); \
    const struct profiler_v1 *next = theirs.profiler; \
    if (next) theirs.failed = next->init(&theirs.context, theirs.mask); \
    return open_context(context, mask, V, &theirs, (struct comm){.rank = -1}); \
  }
INIT_OLD(1) INIT_OLD(2) INIT_OLD(3)

static result init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                      nccl_log log) {
  struct theirs theirs = prepare_theirs(4, mask, __builtin_return_address(0));
  const struct profiler_v4 *next = theirs.profiler;
  if (next) theirs.failed = next->init(&theirs.context, theirs.mask, name, id, nodes, ranks, rank, log);
  return open_context(context, mask, 4, &theirs, (struct comm){name, id, nodes, ranks, rank});
}

#define INIT_NEW(V) \
  static result init_v##V(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, \
                          nccl_log log) { \
    struct theirs theirs = prepare_theirs(V, mask, __builtin_return_address(0)); \
    const struct profiler_v5 *next = theirs.profiler; \
    if (next) theirs.failed = next->init(&theirs.context, id, theirs.mask, name, nodes, ranks, rank, log); \
    return open_context(context, mask, V, &theirs, (struct comm){name, id, nodes, ranks, rank}); \
  }
INIT_NEW(5) INIT_NEW(6) INIT_NEW(7)

/* NCCL looks each symbol up, newest first. With a chained plugin only the versions that it has are there: a resolver
 * may answer NULL, which NCCL takes as "no such version". */
typedef void symbol(void); /* only functions have resolvers */
#define OFFER(V, STRUCT) \
  static result start_v##V(void *context, void **handle, struct descriptor *event) { \
    return start(context, handle, event, V); \
  } \
  static result stop_v##V(void *handle) { return stop(handle, V); } \
  static result state_v##V(void *handle, int state, union state_arguments *arguments) { \
    return record_event_state(handle, state, arguments, V); \
  } \
  static result finalize_v##V(void *context) { return finalize(context, V); } \
  static struct STRUCT profiler_##V = {"drumline", init_v##V, start_v##V, stop_v##V, state_v##V, finalize_v##V}; \
  static symbol *resolve_v##V(void) { \
    return chain_wanted() && !chain_struct(V) ? NULL : (symbol *)(void *)&profiler_##V; \
  } \
  EXPORT symbol ncclProfiler_v##V __attribute__((ifunc("resolve_v" #V)));
OFFER(1, profiler_v1) OFFER(2, profiler_v1) OFFER(3, profiler_v1)
OFFER(4, profiler_v4) OFFER(5, profiler_v5) OFFER(6, profiler_v5) OFFER(7, profiler_v5)
