/* A thread switches CUPTI's records off and on while another one launches: at times CUPTI has no kernel of that context
 * from then on, whatever is switched on later, without an error. With one kind of the GPU's left on, it has all.
 *
 *     cc -o missing_kernels tests/gpu/missing_kernels.c -ldl -lpthread
 *     ./missing_kernels .../libcupti.so.13 alone|kept|last|late
 *
 * kept: CUPTI_ACTIVITY_KIND_MEMCPY2, of which there are none. last: the same, but it is switched on after the others, which
 * is too late with 13.4 and 13.5. late: it alone, until records are switched on for the first time, beside launches.
 *
 * Prints "all" where each kernel launched since was recorded, five times in a row, "none" or "some" where not. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KERNEL = 10, KEPT = 22, TURNS = 5 };
static const int KINDS[] = {KERNEL, 1, 2, 12, 13}; /* as recorder.py */
static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\nret;\n}\n";
static int (*on)(int), (*off)(int), (*callbacks)(void *, void *), (*flush)(uint32_t);
static int (*next)(uint8_t *, size_t, void **);
static atomic_long recorded, launched;
static atomic_int stop, hold, held;
static const char *found = "all";
static int late;

static void request(uint8_t **buffer, size_t *size, size_t *most) {
  *buffer = aligned_alloc(4096, 1 << 20);
  *size = 1 << 20;
  *most = 0;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size;
  for (void *record = NULL; !next(buffer, valid, &record);) recorded += *(int *)record == KERNEL;
  free(buffer);
}

static void all_on(void) {
  callbacks((void *)request, (void *)complete);
  for (int i = 0; i < 5; i++) on(KINDS[i]);
}

static void pause_launches(int wanted) {
  for (hold = wanted; held != wanted;) usleep(20);
}

static void *toggle(void *nothing) {
  while (!launched) usleep(10);
  for (int turn = 0; turn < TURNS && !strcmp(found, "all"); turn++) {
    usleep(2000 + rand() % 20000);
    if (turn || !late) for (int i = 4; i >= 0; i--) off(KINDS[i]);
    flush(0);
    all_on();
    pause_launches(1);
    flush(1);
    long before = launched;
    recorded = 0;
    pause_launches(0);
    usleep(15000);
    pause_launches(1);
    flush(1);
    if (recorded != launched - before) found = recorded ? "some" : "none";
    pause_launches(0);
  }
  stop = 1;
  return nothing;
}

int main(int count, char **words) {
  void *cupti = count > 2 ? dlopen(words[1], RTLD_NOW) : NULL, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  void *context, *module, *kernel;
  if (!cupti || !cuda) return fprintf(stderr, "usage: missing_kernels LIBCUPTI alone|kept|last|late, with a CUDA driver\n"), 2;
  on = (int (*)(int))dlsym(cupti, "cuptiActivityEnable");
  off = (int (*)(int))dlsym(cupti, "cuptiActivityDisable");
  callbacks = (int (*)(void *, void *))dlsym(cupti, "cuptiActivityRegisterCallbacks");
  flush = (int (*)(uint32_t))dlsym(cupti, "cuptiActivityFlushAll");
  next = (int (*)(uint8_t *, size_t, void **))dlsym(cupti, "cuptiActivityGetNextRecord");
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
      dlsym(cuda, "cuLaunchKernel");
  int (*wait)(void) = (int (*)(void))dlsym(cuda, "cuCtxSynchronize");
  ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
  srand(getpid());
  late = !strcmp(words[2], "late");
  callbacks((void *)request, (void *)complete);
  int last = !strcmp(words[2], "last");
  if (strcmp(words[2], "alone") && !last) on(KEPT);
  if (!late) all_on();
  if (last) on(KEPT);
  int failed = ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
  failed = failed || ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
  failed = failed || ((int (*)(void **, const void *))dlsym(cuda, "cuModuleLoadData"))(&module, PTX);
  failed = failed || ((int (*)(void **, void *, const char *))dlsym(cuda, "cuModuleGetFunction"))(&kernel, module, "empty");
  if (failed) return fprintf(stderr, "CUDA returned %d\n", failed), 2;
  pthread_t thread;
  pthread_create(&thread, NULL, toggle, NULL);
  while (!stop) {
    for (int i = 0; i < 50; i++, launched++)
      if (launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) return fprintf(stderr, "a launch failed\n"), 2;
    wait();
    if (hold) {
      held = 1;
      while (hold && !stop) usleep(20);
      held = 0;
    }
    usleep(rand() % 1000);
  }
  pthread_join(thread, NULL);
  puts(found);
  fflush(stdout);
  _exit(0); /* without a last flush */
}
