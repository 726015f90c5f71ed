/* In which steps NCCL measures when the GPU ran each operation (timed_steps.c). All functions may be called from any
 * thread; none waits. */
#ifndef DRUMLINE_TIMED_STEPS_H
#define DRUMLINE_TIMED_STEPS_H
#include <stdbool.h>
#include <stdint.h>

/* Count a call of an operation, by which the job's pace is known. */
void timed_steps_call(void);
/* Recording goes on after a pause, which tells nothing of the job's pace. */
void timed_steps_resume(uint64_t paused_ns);
/* Begin a step, -1 = none. */
void timed_steps_begin(int64_t step, uint64_t now);
/* True while operations are called without the GPU's times. */
bool is_untimed(void);
/* True where calls follow each other so closely that a part of the steps is measured. */
bool is_dense(void);
/* Measure all operations of this process, as its environment states. */
void timed_steps_all(void);
/* Forget what was estimated: the child of a fork calls it. */
void forget_timed_steps(void);
#endif
