/* The profiler plugin that the user set: loads it (DRUMLINE_RINGS__CHAIN, from `drumline run`) and keeps its handles.
 *
 * NCCL passes our handles. Theirs are kept beside them, in tables of fixed size, allocated when the library is loaded.
 */
#define _GNU_SOURCE
#include "chain.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ring.h"

enum { SLOTS = 1 << 16 };
struct slot { _Atomic uint64_t ours; _Atomic(void *) theirs; };

static void *library;
static struct slot *tables[TABLES];
static _Atomic int state = CHAIN_NONE;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const void *symbol(int version) {
  char name[] = "ncclProfiler_v0";
  name[sizeof name - 2] = (char)('0' + version);
  return dlsym(library, name);
}

/* Open a library by NCCL's rule: a path or a file's name, or else the middle of a library's name; with any begin of
 * STATIC_PLUGIN what is linked into the program, or was loaded for all its libraries. */
static void *open_library(const char *name) {
  char whole[256];
  size_t length = strlen(name);
  if (!strncasecmp(name, "STATIC_PLUGIN", length)) return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
  void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  int is_file = strchr(name, '/') || (!strncmp(name, "lib", 3) && length > 3 && !strcmp(name + length - 3, ".so"));
  if (!opened && !is_file && snprintf(whole, sizeof whole, "libnccl-profiler-%s.so", name) < (int)sizeof whole)
    opened = dlopen(whole, RTLD_NOW | RTLD_LOCAL);
  return opened;
}

static void load(void) {
  const char *name = getenv("DRUMLINE_RINGS__CHAIN");
  if (!name || !*name || !strcasecmp(name, "none")) return;
  library = open_library(name);
  if (!library && !strcmp(name, "libnccl-profiler.so")) return; /* NCCL's default, which nobody has set */
  if (library && dlsym(library, "drumline_mark")) { /* this plugin, by any path: `drumline run` within another */
    library = NULL;
    return;
  }
  bool is_known = false, has_memory = true;
  for (int version = OLDEST; library && version <= NEWEST; version++) is_known |= symbol(version) != NULL;
  for (int i = 0; is_known && i < TABLES; i++) has_memory &= (tables[i] = calloc(SLOTS, sizeof *tables[i])) != NULL;
  atomic_store(&state, is_known && has_memory ? CHAIN_USED : CHAIN_FAILED);
}

int chain_state(void) { return atomic_load_explicit(&state, memory_order_acquire); }

bool chain_wanted(void) {
  pthread_once(&loaded, load);
  return chain_state() == CHAIN_USED;
}

const void *chain_struct(int version) { return chain_wanted() ? symbol(version) : NULL; }

void chain_keep(enum chain_table table, uint64_t number, uint64_t ours, void *theirs) {
  struct slot *slot = &tables[table][number & (SLOTS - 1)];
  atomic_store_explicit(&slot->ours, 0, memory_order_relaxed);
  atomic_store_explicit(&slot->theirs, theirs, memory_order_release);
  atomic_store_explicit(&slot->ours, ours, memory_order_release);
}

void *chain_theirs(enum chain_table table, uint64_t number, uint64_t ours) {
  if (chain_state() != CHAIN_USED) return NULL;
  struct slot *slot = &tables[table][number & (SLOTS - 1)];
  if (atomic_load_explicit(&slot->ours, memory_order_acquire) != ours) return NULL;
  void *theirs = atomic_load_explicit(&slot->theirs, memory_order_acquire);
  return atomic_load_explicit(&slot->ours, memory_order_relaxed) == ours ? theirs : NULL;
}

bool chain_wants(int mask, uint64_t kind) {
  /* NCCL tells of an event also when only its descendants are asked for. */
  enum { PROXY = KIND_PROXY_OP | KIND_PROXY_STEP | KIND_NET, COPIES = KIND_COPY | KIND_COPY_SYNC | KIND_COPY_BATCH,
         CHANNEL = KIND_KERNEL_CHANNEL | KIND_KERNEL_PHASE,
         OF_COLL = KIND_COLL | PROXY | CHANNEL, OF_P2P = KIND_P2P | PROXY | CHANNEL,
         OF_GROUP = KIND_GROUP | OF_COLL | OF_P2P };
  switch (kind) {
  case KIND_GROUP: return mask & OF_GROUP;
  case KIND_COLL: return mask & OF_COLL;
  case KIND_P2P: return mask & OF_P2P;
  case KIND_COLL_API: return mask & (KIND_COLL_API | OF_COLL | COPIES);
  case KIND_P2P_API: return mask & (KIND_P2P_API | OF_P2P);
  case KIND_GROUP_API: return mask & (KIND_GROUP_API | KIND_COLL_API | KIND_P2P_API | KIND_LAUNCH | OF_GROUP | COPIES);
  case KIND_PROXY_OP: return mask & PROXY;
  case KIND_KERNEL_CHANNEL: return mask & CHANNEL;
  case KIND_PROXY_STEP: return mask & (KIND_PROXY_STEP | KIND_NET);
  case KIND_COPY: return mask & COPIES;
  default: return mask & (int)kind;
  }
}
