/* Stands before drumline's profiler plugin (SWITCHED_PLUGIN), for tests/gpu/light.py: `switch_events(0)` makes NCCL report
 * nothing, as without a plugin, `switch_events(1)` what drumline wants. So both are measured in one process. NCCL reads the
 * mask that `init` got at every operation. Interface 5 only. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*init_call)(void **, uint64_t, int *, const char *, int, int, int, void *);
struct profiler { const char *name; init_call init; void *start, *stop, *state, *finalize; };

static struct profiler *theirs;
static int *mask, wanted;

static int init(void **context, uint64_t id, int *events, const char *name, int nodes, int ranks, int rank, void *log) {
  int result = theirs->init(context, id, events, name, nodes, ranks, rank, log);
  mask = events;
  wanted = *events;
  return result;
}

struct profiler ncclProfiler_v5;

__attribute__((constructor)) static void load(void) {
  void *library = dlopen(getenv("SWITCHED_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  theirs = library ? dlsym(library, "ncclProfiler_v5") : NULL;
  if (!theirs) return;
  ncclProfiler_v5 = *theirs;
  ncclProfiler_v5.init = init;
}

int switch_events(int on) {
  if (!mask) return -1;
  __atomic_store_n(mask, on ? wanted : 0, __ATOMIC_SEQ_CST);
  return wanted;
}
