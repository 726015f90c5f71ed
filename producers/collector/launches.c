/* Records when the host launched each kernel and copy, by CUPTI's callbacks for calls of the driver.
 *
 * A record is the one that CUPTI writes of a call (CUpti_ActivityAPI), in a buffer of the shared pool, so the decoder
 * reads both alike. CUPTI's own records cover all calls of runtime and driver, of which few launch, and cost far more
 * (docs/results/gpu-sessions.md, prices). The correlation id of the driver's call is that of the kernel,
 * also where the runtime made the call. Threads launch at once, so no lock is taken: a record's place is reserved in
 * one word, and a buffer is given back by whoever writes the last record that it has. */
#include "launches.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

#define EXPORT __attribute__((visibility("default")))
enum { DRIVER_CALL = 4 }; /* CUPTI_ACTIVITY_KIND_DRIVER */

struct record {
  uint32_t kind, call;
  uint64_t begin, end;
  uint32_t process, thread, correlation, result;
};
_Static_assert(sizeof(struct record) == 40, "record");

/* The open buffer's number, from 1, in the upper half, and its bytes that are reserved; 0 = none is open. */
static _Atomic uint64_t place;
static _Atomic uint32_t written[MOST_BUFFERS], closed[MOST_BUFFERS]; /* bytes; `closed`: of a buffer that gets no more */
static _Atomic int is_on;
/* The call that this thread is in. CUPTI offers a word of each call for that, whose address is any where callbacks were
 * switched on within the call (13.0.85). */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct { /* no allocation at a thread's first launch */
  uint64_t at; /* ns; 0 = none */
  uint32_t correlation;
} begun;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Give back a closed buffer once all that was reserved of it is written; only one caller does. */
static void settle(unsigned number) {
  uint32_t bytes = atomic_load(&closed[number]);
  if (bytes && atomic_load(&written[number]) == bytes && atomic_compare_exchange_strong(&closed[number], &bytes, 0))
    pool_return(number, bytes);
}

static void close_buffer(uint64_t taken) {
  if (!(taken >> 32)) return;
  unsigned number = (unsigned)(taken >> 32) - 1;
  atomic_store(&closed[number], (uint32_t)taken);
  settle(number);
}

static void write_record(unsigned number, uint32_t at, const struct record *record) {
  *(struct record *)(pool_buffer(number) + at) = *record;
  atomic_fetch_add(&written[number], (uint32_t)sizeof *record);
  settle(number);
}

static void add(const struct record *record) {
  uint64_t taken = atomic_load(&place);
  for (;;) {
    uint32_t at = (uint32_t)taken;
    if (taken >> 32 && at + sizeof *record <= pool_buffer_bytes()) {
      if (!atomic_compare_exchange_weak(&place, &taken, taken + sizeof *record)) continue;
      write_record((unsigned)(taken >> 32) - 1, at, record);
      return;
    }
    int number = pool_lend();
    if (number < 0) {
      uint64_t full = taken;
      if ((taken = atomic_load(&place)) != full) continue; /* another thread has the last one, for all */
      pool_count_lost_launch();
      return;
    }
    atomic_store(&written[number], 0);
    atomic_store(&closed[number], 0);
    if (atomic_compare_exchange_strong(&place, &taken, ((uint64_t)number + 1) << 32 | sizeof *record)) {
      close_buffer(taken);
      write_record((unsigned)number, 0, record);
      return;
    }
    pool_return((unsigned)number, 0); /* another thread was faster */
  }
}

void launch_begin(uint32_t correlation) {
  begun.at = atomic_load_explicit(&is_on, memory_order_relaxed) ? now_ns() : 0;
  begun.correlation = correlation;
}

void launch_end(uint32_t call, uint32_t correlation) {
  if (!begun.at || begun.correlation != correlation || !atomic_load_explicit(&is_on, memory_order_relaxed)) return;
  uint32_t process = (uint32_t)getpid(), thread = (uint32_t)pthread_self();
  add(&(struct record){DRIVER_CALL, call, begun.at, now_ns(), process, thread, correlation, 0});
  begun.at = 0;
}

/* Give the records that there are to the decoder. */
EXPORT void drumline_launches_flush(void) { close_buffer(atomic_exchange(&place, 0)); }

/* Record launches from now on, or no more. */
EXPORT void drumline_launches_run(int on) {
  atomic_store(&is_on, on);
  if (!on) drumline_launches_flush();
}
