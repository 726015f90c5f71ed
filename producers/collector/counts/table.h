/* Counts of what one process launches, in memory that its decoder reads; producers/ipc/count_table.py has the same numbers.
 *
 *   byte 0        header: 64-bit words (enum count_word)
 *   ENTRIES_AT    MOST_ENTRIES entries: a kernel with its launch configuration, or a kind of copy
 *   GRAPHS_AT     MOST_GRAPHS executable graphs with the number of their replays
 *   NODES_AT      MOST_NODES parts of graphs: how often a replay adds to an entry
 *   NAMES_AT      NAMES_BYTES of kernel names, each ended by a zero byte; offset 0 is no name
 *
 * All counts only grow, so the decoder publishes differences and nothing is handed over: what was counted before a kill
 * is read after it. A replay adds one to its graph, and the decoder multiplies. Where a graph's nodes change or it ends,
 * its replays are added to the entries (`settle`): SETTLING is odd meanwhile, and a reader reads again. */
#ifndef DRUMLINE_COUNT_TABLE_H
#define DRUMLINE_COUNT_TABLE_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_ENTRIES = 8192, MOST_GRAPHS = 8192, MOST_NODES = 65536, NAMES_BYTES = 2 << 20, LONGEST_NAME = 16384 };
enum { ENTRY_BYTES = 64, GRAPH_BYTES = 32, NODE_BYTES = 16 };
enum { ENTRIES_AT = 4096, GRAPHS_AT = ENTRIES_AT + MOST_ENTRIES * ENTRY_BYTES,
       NODES_AT = GRAPHS_AT + MOST_GRAPHS * GRAPH_BYTES, NAMES_AT = NODES_AT + MOST_NODES * NODE_BYTES };

enum count_word {
  SETTLING = 0,     /* odd while replays move from a graph to entries */
  ENTRIES_USED = 1,
  NODES_USED = 2,
  NAMES_USED = 3,   /* bytes */
  NAMES_DENIED = 4, /* kernels without a name: there was no room, or CUDA gave none */
  GRAPHS_DENIED = 5, /* graphs whose nodes were not noted */
  BODIES = 6,       /* conditional nodes of graphs, whose kernels are not counted */
};

/* The first entries count what has none of its own. */
enum { OTHER_KERNELS = 0, OTHER_COPIES = 1, UNKNOWN_GRAPHS = 2, FIRST_ENTRY = 16 };
/* Kinds: of copies as CUPTI numbers them, and drumline's own. */
enum { HTOD = 1, DTOH = 2, HTOA = 3, ATOH = 4, ATOA = 5, ATOD = 6, DTOA = 7, DTOD = 8, HTOH = 9, PTOP = 10,
       MEMSET = 64, KERNEL = 128, GRAPH = 129 };
enum entry_state { EMPTY = 0, CLAIMED = 1, READY = 2 };

struct shape { /* all 0: several, once the table is nearly full */
  uint32_t grid[3], shared;
  uint16_t block[3], unused;
};

struct entry {
  uint64_t function; /* CUfunction or CUkernel; 0 = none */
  union {
    struct shape shape;                                  /* of a kernel */
    struct { _Atomic uint64_t bytes, replayed_bytes; };  /* of a copy */
  };
  uint32_t name; /* offset in the names */
  _Atomic uint32_t generation; /* of modules, when the name was last compared */
  uint16_t kind;
  _Atomic uint16_t state;
  uint32_t unused;
  _Atomic uint64_t launches, replayed; /* by themselves; by graphs that have been settled */
};

struct graph {
  _Atomic uint64_t exec; /* CUgraphExec; 0 = the place is free */
  _Atomic uint64_t replays;
  uint32_t first, count, room; /* of its nodes; a place keeps its room */
  uint32_t other;              /* kernels of a replay that no node stands for */
};

struct node {
  uint32_t entry, count;
  uint64_t bytes;
};
_Static_assert(sizeof(struct entry) == ENTRY_BYTES, "entry");
_Static_assert(sizeof(struct graph) == GRAPH_BYTES, "graph");
_Static_assert(sizeof(struct node) == NODE_BYTES, "node");

/* Functions of CUDA's driver that are called, in the order in which the collector passes them; NULL = it has none. */
struct driver {
  int (*function_name)(const char **name, void *function);
  int (*kernel_name)(const char **name, void *kernel);
  int (*is_capturing)(void *stream, int *status);
  int (*pointer_attribute)(void *data, int attribute, uint64_t pointer);
  int (*graph_nodes)(void *graph, void **nodes, size_t *count);
  int (*node_type)(void *node, int *type);
  int (*kernel_params)(void *node, void *params);
  int (*copy_params)(void *node, void *params);
  int (*memset_params)(void *node, void *params);
  int (*child_graph)(void *node, void **graph);
};
extern struct driver driver;

/* Use a table: all zero, or one that this process has used. */
void table_open(uint8_t *memory);
/* A kernel as a call names it. `symbol`: its name, or NULL. `read_name`: reads the name where there is no symbol, or NULL:
 * a handle that is launched may be a CUfunction or a CUkernel, and nobody says which. */
struct kernel {
  uint64_t function;
  struct shape shape;
  const char *symbol;
  int (*read_name)(const char **name, void *function);
};
/* Return the entry of a kernel, which is added if it is new. Never NULL. */
struct entry *kernel_entry(const struct kernel *kernel);
/* Return the entry of a kind of copy. */
struct entry *copy_entry(unsigned kind);
/* Return a shape as CUDA states it: grid, block, bytes of dynamic shared memory. */
struct shape shape_of(const uint32_t *seven);
uint32_t entry_number(const struct entry *entry);
struct entry *entry_at(uint32_t number);
/* Functions may have other names from here on: a module was unloaded, or nobody looked for a while. */
void names_changed(void);
uint8_t *table(void);
_Atomic uint64_t *count_words(void);

void graphs_open(void);
/* Note the nodes of a graph under its executable form: they are new, or may differ from those noted. */
void graph_made(uint64_t exec, void *graph);
void graph_ended(uint64_t exec);
void graph_replayed(uint64_t exec);
/* Forget all graphs: nobody looked for a while. */
void graphs_forgotten(void);

/* Return the kind of a copy between pointers or arrays, by CUDA's memory types (CUmemorytype). */
unsigned copy_kind(unsigned from, uint64_t from_pointer, unsigned to, uint64_t to_pointer);
/* Return bytes and kind of a copy of three dimensions (CUDA_MEMCPY3D). */
uint64_t copy_3d(const uint64_t *words, unsigned *kind);
#endif
