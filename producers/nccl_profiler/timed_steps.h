/* In which steps NCCL measures when the GPU ran each operation (timed_steps.c). All functions may be called from any
 * thread; none waits. */
#ifndef DRUMLINE_TIMED_STEPS_H
#define DRUMLINE_TIMED_STEPS_H
#include <stdbool.h>
#include <stdint.h>

/* Begin a step, -1 = none. `records`: that the process has written so far. */
void timed_steps_begin(int64_t step, uint64_t records, uint64_t now);
/* True while operations are called without the GPU's times. */
bool is_untimed(void);
/* Measure all operations of this process, as its environment states. */
void timed_steps_all(void);
/* Forget what was estimated: the child of a fork calls it. */
void forget_timed_steps(void);
#endif
