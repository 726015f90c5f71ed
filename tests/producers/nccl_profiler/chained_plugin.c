/* A profiler plugin as users have one. It keeps its events in memory, checks that it is given none but its own handles,
 * and writes a line for each call to the file CHAINED_LOG; without one it ends the process when a handle is not its own.
 *
 * -DVERSIONS='OFFER(5) OFFER(4)': the versions that it has. CHAINED_MASK: what it asks for. CHAINED_LATER: what it asks
 * for after the first operation. CHAINED_ONCE: a kind of which it takes the first event alone. CHAINED_STATELESS: it has no contexts. CHAINED_FAILS: init fails. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_interface.h"

struct event { char mark[8]; uint64_t kind; };
struct context { char mark[8]; };
static struct event events[1 << 17];
static struct context contexts[64];
static _Atomic int used, opened;
static int *mask_of_nccl;
static FILE *file;

static void write_line(const char *line) {
  if (strstr(line, "WRONG") && !file) abort();
  if (!file) return;
  fputs(line, file);
  fflush(file);
}

static const char *check(const void *handle) {
  if (!handle) return "none";
  long place = ((const char *)handle - (const char *)events) / (long)sizeof *events;
  return place >= 0 && place < used && handle == &events[place] ? "mine" : "WRONG";
}

static int is_mine(const void *context) {
  if (getenv("CHAINED_STATELESS")) return !context;
  return context >= (void *)contexts && context < (void *)(contexts + opened);
}

static int begin(void **context, int *mask, int version) {
  char line[32];
  if (!file && getenv("CHAINED_LOG")) file = fopen(getenv("CHAINED_LOG"), "a");
  snprintf(line, sizeof line, "init %d\n", version);
  write_line(line);
  if (getenv("CHAINED_FAILS")) return 3;
  __atomic_store_n(mask, atoi(getenv("CHAINED_MASK")), __ATOMIC_RELAXED);
  __atomic_store_n(&mask_of_nccl, mask, __ATOMIC_RELAXED);
  *context = getenv("CHAINED_STATELESS") ? NULL : &contexts[opened++];
  return 0;
}

static int start(void *context, void **handle, uint64_t kind, void *parent, void *group) {
  static _Atomic int taken;
  if (getenv("CHAINED_ONCE") && kind == (uint64_t)atoi(getenv("CHAINED_ONCE")) && taken++) {
    *handle = NULL;
    return 0;
  }
  struct event *event = &events[used++];
  event->kind = kind;
  *handle = event;
  char line[96];
  snprintf(line, sizeof line, "start %d context %s parent %s group %s\n", (int)kind, is_mine(context) ? "mine" : "WRONG",
           check(parent), check(group));
  write_line(line);
  const char *later = getenv("CHAINED_LATER");
  if (later && kind == COLL) __atomic_store_n(__atomic_load_n(&mask_of_nccl, __ATOMIC_RELAXED), atoi(later), __ATOMIC_RELAXED);
  return 1; /* NCCL gets success all the same */
}

static int stop(void *handle) {
  char line[32];
  snprintf(line, sizeof line, "stop %d %s\n", handle ? (int)((struct event *)handle)->kind : 0, check(handle));
  write_line(line);
  return 1;
}

static int state(void *handle, int number, state_args *args) {
  char line[64];
  snprintf(line, sizeof line, "state %d %s %d\n", number, check(handle), (int)args->kernelCh.pTimer);
  write_line(line);
  return 1;
}

static int finalize(void *context) {
  write_line(is_mine(context) ? "finalize mine\n" : "finalize WRONG\n");
  return 1;
}

#define INIT_OLD(V) static int begin_v##V(void **context, int *mask) { return begin(context, mask, V); }
INIT_OLD(1) INIT_OLD(2) INIT_OLD(3)
static int begin_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger log) {
  log(0, 0, name, nodes + ranks + rank + (int)id, "");
  return begin(context, mask, 4);
}
#define INIT_NEW(V) \
  static int begin_v##V(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger log) { \
    log(0, 0, name, nodes + ranks + rank + (int)id, ""); \
    return begin(context, mask, V); \
  }
INIT_NEW(5) INIT_NEW(6) INIT_NEW(7)

#define START(V) \
  static int start_v##V(void *context, void **handle, void *opaque) { \
    descriptor_v##V *d = opaque; \
    return start(context, handle, d->type, d->parentObj, GROUP_OF_##V); \
  }
#define GROUP_OF_1 NULL
#define GROUP_OF_2 NULL
#define GROUP_OF_3 NULL
#define GROUP_OF_4 NULL
#define GROUP_OF_5 (d->type == COLL ? d->coll.parentGroup : d->type == P2P ? d->p2p.parentGroup : NULL)
#define GROUP_OF_6 GROUP_OF_5
#define GROUP_OF_7 GROUP_OF_5
START(1) START(2) START(3) START(4) START(5) START(6) START(7)

#define OFFER(V) profiler ncclProfiler_v##V = {"chained", (void *)begin_v##V, start_v##V, stop, state, finalize};
VERSIONS
