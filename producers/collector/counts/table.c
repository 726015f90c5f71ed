/* The table of counts: finds and adds entries. The path of a launch takes no lock; the first launch of a kernel in a new
 * shape takes one, for as long as a name is copied. */
#include "table.h"
#include <pthread.h>
#include <string.h>

enum { PROBES = 16, NAME_PLACES = 16384 };
#define FULL (MOST_ENTRIES / 8 * 7) /* from here on a kernel has one entry for all shapes that are new */

struct driver driver;
static uint8_t *memory;
static struct entry *entries;
static _Atomic uint32_t generation;
static pthread_mutex_t naming;
static uint32_t places[NAME_PLACES]; /* offsets of names by their hash */

uint8_t *table(void) { return memory; }
_Atomic uint64_t *count_words(void) { return (_Atomic uint64_t *)memory; }
struct entry *entry_at(uint32_t number) { return entries + number; }
uint32_t entry_number(const struct entry *entry) { return (uint32_t)(entry - entries); }
void names_changed(void) { atomic_fetch_add(&generation, 1); }

void table_open(uint8_t *given) {
  static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  naming = fresh; /* a fork may have copied it locked */
  memset(places, 0, sizeof places);
  memory = given;
  entries = (struct entry *)(memory + ENTRIES_AT);
  atomic_store(&generation, 1);
  if (!atomic_load(&count_words()[NAMES_USED])) atomic_store(&count_words()[NAMES_USED], 1);
  static const uint16_t kinds[] = {[OTHER_KERNELS] = KERNEL, [OTHER_COPIES] = 0, [UNKNOWN_GRAPHS] = GRAPH};
  for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    entries[i].kind = kinds[i];
    atomic_store(&entries[i].state, READY);
  }
}

struct shape shape_of(const uint32_t *seven) {
  return (struct shape){{seven[0], seven[1], seven[2]}, seven[6],
                        {(uint16_t)seven[3], (uint16_t)seven[4], (uint16_t)seven[5]}, 0};
}

static const char *name_of(const struct kernel *kernel) {
  const char *name = kernel->symbol;
  if (!name && kernel->read_name && kernel->read_name(&name, (void *)kernel->function)) name = NULL;
  return name;
}

/* Return the offset of a name, which is copied once; 0 without a name or room. */
static uint32_t name_offset(const char *name) {
  _Atomic uint64_t *words = count_words();
  size_t length = name ? strnlen(name, LONGEST_NAME) : 0;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3u;
  uint32_t offset = 0;
  pthread_mutex_lock(&naming);
  for (uint64_t i = hash; length && !offset && i < hash + PROBES; i++) {
    uint32_t *place = &places[i % NAME_PLACES];
    const char *there = (const char *)memory + NAMES_AT + *place;
    if (*place && !strncmp(there, name, length) && !there[length]) offset = *place;
    if (!*place) {
      uint64_t used = atomic_load(&words[NAMES_USED]);
      if (used + length + 1 > NAMES_BYTES) break;
      memcpy(memory + NAMES_AT + used, name, length); /* zero bytes follow */
      atomic_store(&words[NAMES_USED], used + length + 1);
      offset = *place = (uint32_t)used;
    }
  }
  if (!offset) atomic_fetch_add(&words[NAMES_DENIED], 1);
  pthread_mutex_unlock(&naming);
  return offset;
}

static int has_name(const struct entry *entry, const char *name) {
  const char *there = (const char *)memory + NAMES_AT + entry->name;
  return entry->name && name && !strncmp(there, name, LONGEST_NAME);
}

static struct entry *find(const struct kernel *kernel, int only_if_room) {
  uint64_t parts[3], hash = kernel->function;
  memcpy(parts, &kernel->shape, sizeof parts);
  for (int i = 0; i < 3; i++) hash = (hash ^ parts[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  uint32_t now = atomic_load_explicit(&generation, memory_order_relaxed);
  for (unsigned i = 0; i < PROBES; i++) {
    struct entry *entry = entries + FIRST_ENTRY + (hash + i) % (MOST_ENTRIES - FIRST_ENTRY);
    uint16_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
    if (state == READY && entry->function == kernel->function && !memcmp(&entry->shape, parts, sizeof parts)) {
      int may_name = !entry->name && (kernel->symbol || kernel->read_name);
      if (atomic_load_explicit(&entry->generation, memory_order_relaxed) == now && !may_name) return entry;
      if (has_name(entry, name_of(kernel))) {
        atomic_store_explicit(&entry->generation, now, memory_order_relaxed);
        return entry;
      }
    }
    if (state != EMPTY) continue;
    _Atomic uint64_t *used = &count_words()[ENTRIES_USED];
    if (only_if_room && atomic_load(used) >= FULL) return NULL;
    if (!atomic_compare_exchange_strong(&entry->state, &state, CLAIMED)) continue; /* at worst there are two */
    atomic_fetch_add(used, 1);
    entry->function = kernel->function;
    entry->shape = kernel->shape;
    entry->name = name_offset(name_of(kernel));
    entry->kind = KERNEL;
    atomic_store(&entry->generation, now);
    atomic_store_explicit(&entry->state, READY, memory_order_release);
    return entry;
  }
  return NULL;
}

struct entry *kernel_entry(const struct kernel *kernel) {
  struct entry *entry = find(kernel, 1);
  if (!entry) {
    struct kernel any = {kernel->function, {{0}, 0, {0}, 0}, kernel->symbol, kernel->read_name};
    entry = find(&any, 0);
  }
  return entry ? entry : entries + OTHER_KERNELS;
}

/* Kinds of copies have the places behind the first three. */
struct entry *copy_entry(unsigned kind) {
  struct entry *entry = entries + (kind == MEMSET ? 3 : kind && kind <= PTOP ? 3 + kind : OTHER_COPIES);
  if (atomic_load_explicit(&entry->state, memory_order_relaxed) != READY) {
    entry->kind = (uint16_t)kind;
    atomic_store_explicit(&entry->state, READY, memory_order_release);
  }
  return entry;
}
