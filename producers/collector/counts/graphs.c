/* Executable CUDA graphs: what each replay launches. Nodes are read once, when a graph is instantiated or updated; a
 * replay is one addition. Graphs are added and removed under a lock, which no launch and no replay takes. */
#include "table.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES = 32, DEEPEST = 8 };
/* CUgraphNodeType, CUmemorytype. */
enum { KERNEL_NODE = 0, COPY_NODE = 1, MEMSET_NODE = 2, CHILD_NODE = 4, CONDITIONAL_NODE = 13 };
enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };

/* CUDA_KERNEL_NODE_PARAMS and CUDA_MEMSET_NODE_PARAMS, with room for what later versions append. */
struct kernel_params {
  uint64_t function;
  uint32_t shape[7];
  uint64_t arguments, extra, kernel, context, room[8];
};
struct memset_params {
  uint64_t to, pitch;
  uint32_t value, element_bytes;
  uint64_t width, height, room[8];
};

struct list { /* of nodes; `kernels`: in all */
  struct node *nodes;
  size_t count, room;
  uint64_t kernels;
};

static pthread_mutex_t changing;

void graphs_open(void) {
  static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  changing = fresh;
}

static struct graph *graphs(void) { return (struct graph *)(table() + GRAPHS_AT); }
static struct node *all_nodes(void) { return (struct node *)(table() + NODES_AT); }

static struct graph *place(uint64_t exec, unsigned i) {
  return graphs() + ((exec >> 4) * 0x9e3779b97f4a7c15u % MOST_GRAPHS + i) % MOST_GRAPHS;
}

static struct graph *find(uint64_t exec) {
  for (unsigned i = 0; i < PROBES; i++)
    if (atomic_load_explicit(&place(exec, i)->exec, memory_order_acquire) == exec) return place(exec, i);
  return NULL;
}

static unsigned memory_type(unsigned type, uint64_t pointer) {
  unsigned found = HOST; /* pageable memory is none that CUDA knows */
  if (type != UNIFIED) return type;
  if (!driver.pointer_attribute || driver.pointer_attribute(&found, MEMORY_TYPE, pointer)) return HOST;
  return found;
}

/* Return whether two pointers are of one GPU, or of GPUs that are not known. */
static int is_within(uint64_t from, uint64_t to) {
  int of = 0, other = 0;
  if (!driver.pointer_attribute || driver.pointer_attribute(&of, DEVICE_ORDINAL, from)) return 1;
  return driver.pointer_attribute(&other, DEVICE_ORDINAL, to) || of == other;
}

unsigned copy_kind(unsigned from, uint64_t from_pointer, unsigned to, uint64_t to_pointer) {
  static const uint8_t kinds[4][4] = {
    [HOST] = {[HOST] = HTOH, [DEVICE] = HTOD, [ARRAY] = HTOA},
    [DEVICE] = {[HOST] = DTOH, [DEVICE] = DTOD, [ARRAY] = DTOA},
    [ARRAY] = {[HOST] = ATOH, [DEVICE] = ATOD, [ARRAY] = ATOA},
  };
  unsigned kind = kinds[memory_type(from, from_pointer) & 3][memory_type(to, to_pointer) & 3];
  return kind == DTOD && !is_within(from_pointer, to_pointer) ? PTOP : kind;
}

uint64_t copy_3d(const uint64_t *words, unsigned *kind) {
  *kind = copy_kind((unsigned)words[4], words[6], (unsigned)words[15], words[17]);
  return words[22] * (words[23] ? words[23] : 1) * (words[24] ? words[24] : 1);
}

static void add(struct list *list, const struct entry *entry, uint64_t bytes) {
  if (list->count == list->room) {
    size_t room = list->room ? 2 * list->room : 256;
    struct node *more = realloc(list->nodes, room * sizeof *more);
    if (!more) return; /* a kernel is then one of those that no node stands for */
    list->nodes = more, list->room = room;
  }
  list->nodes[list->count++] = (struct node){.entry = entry_number(entry), .count = 1, .bytes = bytes};
}

static void read_nodes(struct list *list, void *graph, int depth) {
  size_t count = 0;
  if (depth > DEEPEST || !driver.graph_nodes || !driver.node_type || driver.graph_nodes(graph, NULL, &count)) return;
  void **nodes = calloc(count ? count : 1, sizeof *nodes);
  if (!nodes || driver.graph_nodes(graph, nodes, &count)) count = 0;
  for (size_t i = 0; i < count; i++) {
    int type = -1;
    uint64_t words[40] = {0};
    void *child = NULL;
    unsigned kind;
    if (driver.node_type(nodes[i], &type)) continue;
    if (type == KERNEL_NODE) {
      struct kernel_params params = {0};
      list->kernels++;
      if (!driver.kernel_params || driver.kernel_params(nodes[i], &params)) continue;
      struct kernel kernel = {params.function, shape_of(params.shape), NULL, driver.function_name};
      if (!kernel.function) kernel.function = params.kernel, kernel.read_name = driver.kernel_name;
      add(list, kernel_entry(&kernel), 0);
    } else if (type == COPY_NODE && driver.copy_params && !driver.copy_params(nodes[i], words)) {
      uint64_t bytes = copy_3d(words, &kind);
      add(list, copy_entry(kind), bytes);
    } else if (type == MEMSET_NODE) {
      struct memset_params params = {0};
      if (driver.memset_params && !driver.memset_params(nodes[i], &params))
        add(list, copy_entry(MEMSET), params.width * params.element_bytes * (params.height ? params.height : 1));
    } else if (type == CHILD_NODE && driver.child_graph && !driver.child_graph(nodes[i], &child)) {
      read_nodes(list, child, depth + 1);
    } else if (type == CONDITIONAL_NODE) {
      atomic_fetch_add(&count_words()[BODIES], 1);
    }
  }
  free(nodes);
}

static int by_entry(const void *left, const void *right) {
  uint32_t a = ((const struct node *)left)->entry, b = ((const struct node *)right)->entry;
  return (a > b) - (a < b);
}

/* Make one node of those with the same entry. */
static void merge(struct list *list) {
  size_t kept = 0;
  if (list->count) qsort(list->nodes, list->count, sizeof *list->nodes, by_entry);
  for (size_t i = 0; i < list->count; i++) {
    struct node *last = kept ? &list->nodes[kept - 1] : NULL;
    if (last && last->entry == list->nodes[i].entry) last->count++, last->bytes += list->nodes[i].bytes;
    else list->nodes[kept++] = list->nodes[i];
  }
  list->count = kept;
}

/* Add a graph's replays so far to the entries. `changing` is held. */
static void settle(struct graph *graph) {
  uint64_t replays = atomic_load(&graph->replays);
  if (!replays) return;
  atomic_fetch_add(&count_words()[SETTLING], 1);
  atomic_fetch_sub(&graph->replays, replays);
  for (uint32_t i = 0; i < graph->count; i++) {
    struct node *node = all_nodes() + graph->first + i;
    struct entry *entry = entry_at(node->entry);
    atomic_fetch_add(&entry->replayed, replays * node->count);
    if (entry->kind < KERNEL) atomic_fetch_add(&entry->replayed_bytes, replays * node->bytes);
  }
  atomic_fetch_add(&entry_at(OTHER_KERNELS)->replayed, replays * graph->other);
  atomic_fetch_add(&count_words()[SETTLING], 1);
}

/* Return whether a place has room for nodes, which it gets if there is some. */
static int has_room(struct graph *graph, size_t count) {
  if (graph->room >= count) return 1;
  uint64_t room = 8, used = atomic_load(&count_words()[NODES_USED]);
  while (room < count) room *= 2;
  if (used + room > MOST_NODES) return 0;
  atomic_store(&count_words()[NODES_USED], used + room);
  graph->first = (uint32_t)used, graph->room = (uint32_t)room;
  return 1;
}

void graph_made(uint64_t exec, void *of) {
  struct list list = {0};
  read_nodes(&list, of, 0);
  merge(&list);
  uint64_t noted = 0;
  for (size_t i = 0; i < list.count; i++)
    if (entry_at(list.nodes[i].entry)->kind == KERNEL) noted += list.nodes[i].count;
  pthread_mutex_lock(&changing);
  struct graph *graph = find(exec);
  uint32_t other = (uint32_t)(list.kernels - noted);
  int is_same = graph && graph->count == list.count && graph->other == other &&
                (!list.count || !memcmp(all_nodes() + graph->first, list.nodes, list.count * sizeof *list.nodes));
  if (!is_same) {
    for (unsigned i = 0; !graph && i < PROBES; i++) /* one that was used before has room */
      if (!atomic_load(&place(exec, i)->exec)) graph = place(exec, i);
    if (graph) {
      settle(graph);
      atomic_fetch_add(&count_words()[SETTLING], 1);
      int fits = has_room(graph, list.count);
      graph->count = fits ? (uint32_t)list.count : 0;
      graph->other = fits ? other : (uint32_t)list.kernels;
      if (fits && list.count) memcpy(all_nodes() + graph->first, list.nodes, list.count * sizeof *list.nodes);
      atomic_store_explicit(&graph->exec, exec, memory_order_release);
      atomic_fetch_add(&count_words()[SETTLING], 1);
    }
    if (!graph || (list.count && !graph->count)) atomic_fetch_add(&count_words()[GRAPHS_DENIED], 1);
  }
  pthread_mutex_unlock(&changing);
  free(list.nodes);
}

static void end(struct graph *graph) {
  settle(graph);
  atomic_store(&graph->exec, 0);
}

void graph_ended(uint64_t exec) {
  pthread_mutex_lock(&changing);
  struct graph *graph = find(exec);
  if (graph) end(graph);
  pthread_mutex_unlock(&changing);
}

void graphs_forgotten(void) {
  pthread_mutex_lock(&changing);
  for (unsigned i = 0; i < MOST_GRAPHS; i++)
    if (atomic_load(&graphs()[i].exec)) end(graphs() + i);
  pthread_mutex_unlock(&changing);
}

void graph_replayed(uint64_t exec) {
  struct graph *graph = exec ? find(exec) : NULL;
  atomic_fetch_add_explicit(graph ? &graph->replays : &entry_at(UNKNOWN_GRAPHS)->launches, 1, memory_order_relaxed);
}
