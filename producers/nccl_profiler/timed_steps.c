/* Chooses the steps whose operations NCCL measures. The GPU's times of one operation wake NCCL's proxy thread, which
 * takes the calling thread about 30 us (docs/results/gpu-sessions.md). Where a job calls so often that this is more than
 * 1 % of the time of short steps, only each fourth span of steps is measured; all calls are recorded.
 *
 * Ranks that call equally often measure the same steps: they have the same numbers, and steps that take equally long. A
 * span holds a whole window of the straggler stage wherever that begins. */
#include "timed_steps.h"

#include <stdatomic.h>

#include "plugin.h"
#include "ring_writer.h"

enum { SPAN_STEPS = 40, SPANS = 4, ESTIMATED_STEPS = 80 };
/* Time between calls below which measuring them all costs more than 1 %; ns. Twice that ends it. */
static const uint64_t DENSE_NS = 3000000;
/* Longest step of a job that is measured in part; ns. */
static const uint64_t SHORT_NS = 100000000;
/* Longest time without measured steps, that of all spans left out in a row at the longest step: a job that becomes slow
 * meanwhile is measured from then on to the end of the next span. Ranks may differ by the step in which it passes. */
#define LEFT_OUT_NS ((SPANS - 1) * SPAN_STEPS * SHORT_NS)

static _Atomic bool is_thinned, is_left_out, wants_all, is_set_to_all;
/* The last mark, the calls so far, and the steps since the last estimate: dense ones, and those that are far from it. */
static _Atomic uint64_t marked_ns, calls_made, marked_calls, dense, sparse;
/* When the spans that are left out began. */
static _Atomic uint64_t left_out_ns;
static _Atomic bool is_overdue;

/* Count the step that ends; its time may hold a wait for something else, so most steps decide, not their mean. */
static void count_step(uint64_t now) {
  uint64_t made = atomic_load(&calls_made), calls = made - atomic_exchange(&marked_calls, made);
  uint64_t begin = atomic_exchange(&marked_ns, now), took = now - begin;
  if (!begin) return;
  if (took < calls * DENSE_NS && took < SHORT_NS) atomic_fetch_add(&dense, 1);
  else if (took > 2 * calls * DENSE_NS || took > 2 * SHORT_NS) atomic_fetch_add(&sparse, 1);
}

static void decide(void) {
  uint64_t most = ESTIMATED_STEPS / 2;
  uint64_t were_dense = atomic_exchange(&dense, 0), were_sparse = atomic_exchange(&sparse, 0);
  if (were_dense > most) atomic_store(&is_thinned, true);
  else if (were_sparse > most) atomic_store(&is_thinned, false);
}

/* Return whether the step lies in a span that is left out, and has not been for too long. */
static bool is_beyond_a_measured_span(int64_t step, uint64_t now) {
  if (step < 0 || step / SPAN_STEPS % SPANS == 0) {
    atomic_store(&is_overdue, false);
    return false;
  }
  if (atomic_load(&is_left_out) && now - atomic_load(&left_out_ns) > LEFT_OUT_NS) atomic_store(&is_overdue, true);
  return !atomic_load(&is_overdue);
}

/* Return whether the agent asks for all steps: a rank of the job may be late (producers/control). */
static bool is_requested(uint64_t now) {
  uint8_t *base = ring();
  return base && atomic_load_explicit(&words(base)[TIMES_REQUESTED], memory_order_relaxed) > now;
}

void timed_steps_resume(uint64_t paused_ns) {
  atomic_store(&marked_ns, 0);
  atomic_fetch_add(&left_out_ns, paused_ns);
}

void timed_steps_call(void) { atomic_fetch_add_explicit(&calls_made, 1, memory_order_relaxed); }

void timed_steps_begin(int64_t step, uint64_t now) {
  count_step(now);
  if (step >= 0 && step % ESTIMATED_STEPS == 0) decide();
  bool is_dense = atomic_load(&is_thinned) && !atomic_load(&wants_all) && !atomic_load(&is_set_to_all);
  bool left_out = is_beyond_a_measured_span(step, now) && is_dense && !is_requested(now);
  if (left_out && !is_untimed()) atomic_store(&left_out_ns, now);
  if (atomic_exchange(&is_left_out, left_out) != left_out) refresh_mask();
}

bool is_untimed(void) { return atomic_load_explicit(&is_left_out, memory_order_relaxed); }

bool is_dense(void) { return atomic_load_explicit(&is_thinned, memory_order_relaxed); }

void forget_timed_steps(void) {
  atomic_store(&marked_ns, 0);
  atomic_store(&calls_made, 0);
  atomic_store(&marked_calls, 0);
  atomic_store(&is_overdue, false);
  atomic_store(&is_thinned, false);
  atomic_store(&is_left_out, false);
}

void timed_steps_all(void) { atomic_store(&is_set_to_all, true); }

/* Measure all operations from now on, or again what the job's pace allows, from the next step. A CUDA graph keeps what
 * was chosen when it was captured, and a deep window compares its kernels with all steps. */
EXPORT void drumline_time_all(int on) {
  atomic_store(&wants_all, on != 0);
  if (on && atomic_exchange(&is_left_out, false)) refresh_mask();
}
