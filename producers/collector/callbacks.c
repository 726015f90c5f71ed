/* The two functions that CUPTI calls inside the job, and a clock. They lend buffers of the shared pool and take them
 * back; the header's words are documented in producers/ipc/buffer_pool.py.
 *
 * They contain no Python, for two reasons seen on GPUs. CUPTI calls them while it holds a lock of its own: a callback
 * that waits for the GIL and a thread that holds the GIL inside a CUDA call would wait for each other for ever. And
 * CUPTI may call them after Python has ended. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "pool.h"

#define EXPORT __attribute__((visibility("default")))

enum { VERSION = 1, BUFFERS, BUFFER_BYTES, REQUESTED, COMPLETED, DENIED, CUPTI_DROPPED, CALLBACK_NS, CALLBACK_MAX_NS,
       FOREIGN, LAUNCHES_LOST = 14, RETURNED, DENIED_SEEN = 23, DENIED_FIRST_NS, DENIED_LAST_NS, STATE = 96,
       PER_BUFFER = 3, HEADER_BYTES = 4096 };
enum { FREE, LENT, DONE };
enum { LAYOUT = 5 }; /* LAYOUT_VERSION */

typedef int (*get_dropped)(void *context, uint32_t stream, size_t *records);

static _Atomic uint64_t *words;
static get_dropped dropped;
static atomic_int alive;

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void took(uint64_t begin) {
  uint64_t ns = clock_ns(CLOCK_MONOTONIC) - begin, longest = words[CALLBACK_MAX_NS];
  words[CALLBACK_NS] += ns;
  while (ns > longest && !atomic_compare_exchange_weak(&words[CALLBACK_MAX_NS], &longest, ns)) {}
}

/* Let CUPTI use a pool, and return the layout version that this file was built for. `pool`: its header; `function`:
 * cuptiActivityGetNumDroppedRecords. */
EXPORT int drumline_open(void *pool, void *function) {
  words = pool;
  dropped = (get_dropped)function;
  atomic_store(&alive, 1);
  return LAYOUT;
}

/* Give CUPTI no more buffers, and ignore those that it returns. */
EXPORT void drumline_close(void) { atomic_store(&alive, 0); }

size_t pool_buffer_bytes(void) { return words[BUFFER_BYTES]; }

uint8_t *pool_buffer(unsigned number) { return (uint8_t *)words + HEADER_BYTES + number * words[BUFFER_BYTES]; }

int pool_lend(void) {
  if (!atomic_load(&alive)) return -1;
  for (uint64_t i = 0, count = words[BUFFERS]; i < count; i++) {
    uint64_t expected = FREE;
    if (atomic_compare_exchange_strong(&words[STATE + PER_BUFFER * i], &expected, LENT)) {
      words[STATE + PER_BUFFER * i + 1] = clock_ns(CLOCK_REALTIME);
      return (int)i;
    }
  }
  return -1;
}

void pool_return(unsigned number, size_t valid) {
  _Atomic uint64_t *state = &words[STATE + PER_BUFFER * number];
  state[1] = valid;
  state[2] = words[RETURNED]++;
  atomic_store(state, valid ? DONE : FREE);
}

void pool_count_lost_launch(void) { words[LAUNCHES_LOST]++; }

/* Lend a free buffer (CUpti_BuffersCallbackRequestFunc). Without one CUPTI drops records, and counts them. */
EXPORT void drumline_request(uint8_t **buffer, size_t *size, size_t *most) {
  *buffer = NULL;
  *size = *most = 0;
  if (!atomic_load(&alive)) return;
  uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  words[REQUESTED]++;
  int number = pool_lend();
  if (number >= 0) {
    *buffer = pool_buffer((unsigned)number);
    *size = words[BUFFER_BYTES];
  } else {
    uint64_t now = clock_ns(CLOCK_REALTIME);
    if (words[DENIED] == words[DENIED_SEEN]) words[DENIED_FIRST_NS] = now;
    words[DENIED_LAST_NS] = now;
    words[DENIED]++;
  }
  took(begin);
}

/* Take back a buffer (CUpti_BuffersCallbackCompleteFunc). */
EXPORT void drumline_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)size;
  if (!atomic_load(&alive)) return;
  uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  uint64_t offset = (uint64_t)(buffer - ((uint8_t *)words + HEADER_BYTES)), i = offset / words[BUFFER_BYTES];
  size_t records = 0;
  /* Before the buffer's state: its reader must know already that records may be missing. */
  if (dropped && !dropped(context, stream, &records)) words[CUPTI_DROPPED] += records;
  if (offset % words[BUFFER_BYTES] || i >= words[BUFFERS]) {
    if (valid) words[FOREIGN]++; /* another profiler's, from before; its records are lost */
  } else {
    words[COMPLETED]++;
    pool_return((unsigned)i, valid);
  }
  took(begin);
}

/* Count dropped records that no returned buffer has reported. */
EXPORT void drumline_count_dropped(void) {
  size_t records = 0;
  if (atomic_load(&alive) && dropped && !dropped(NULL, 0, &records)) words[CUPTI_DROPPED] += records;
}

/* Return the time as CUPTI's default does (CUpti_TimestampCallbackFunc), to replace another profiler's clock. */
EXPORT uint64_t drumline_now(void) { return clock_ns(CLOCK_REALTIME); }
