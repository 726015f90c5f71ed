/* CUPTI's callback for calls of CUDA's driver: which of them launch, copy, or make graphs, and what they state.
 *
 * Only calls of the driver are looked at: the runtime makes them too, so each launch is one call, whoever made it. A
 * call counts once it has succeeded, and not while its stream is captured into a graph: nothing runs then. Numbers and
 * parameters are those of CUPTI's and CUDA's headers; both only ever append. */
#include "../launches.h"
#include "table.h"

#define EXPORT __attribute__((visibility("default")))
enum { DRIVER_API = 1, ENTER = 0, EXIT = 1, PER_THREAD_STREAM = 2, CAPTURE_ACTIVE = 1, CAPTURE_ERRORS = 900 };
enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

struct call { /* CUpti_CallbackData */
  int site;
  const char *function;
  const void *params;
  const int *result;
  const char *symbol;
  void *context;
  uint32_t context_uid;
  void *shared; /* a word of the call, of which nothing is known where its begin was not reported */
  uint32_t correlation;
};

enum action { NONE, LAUNCH, LAUNCH_EX, LAUNCH_MANY, REPLAY, GRAPH_MADE, GRAPH_UPDATED, GRAPH_ENDED, UNLOADED,
              CAPTURE_BEGAN, CAPTURE_ENDED, COPY, COPY_ANY, COPY_ARRAY, COPY_2D, COPY_3D, COPY_PEER, COPY_BATCH, FILL, FILL_2D };
enum { PTSZ = 1 }; /* stream 0 is the thread's own */
enum { SYNC = 255 };

/* Where a call's parameters lie, in words of eight bytes. `stream`: SYNC = it has none. `at`: of its bytes, or of its
 * pointer to a description. `detail`: kind of copy, or bytes of an element. */
struct kind_of_call {
  uint16_t id;
  uint8_t action, stream, flags, at, detail;
};
static const struct kind_of_call calls[] = {
  {307, LAUNCH, 5, 0, 0, 0}, {442, LAUNCH, 5, PTSZ, 0, 0}, {477, LAUNCH, 5, 0, 0, 0}, {478, LAUNCH, 5, PTSZ, 0, 0},
  {652, LAUNCH_EX, 0, 0, 0, 0}, {653, LAUNCH_EX, 0, PTSZ, 0, 0}, {480, LAUNCH_MANY, SYNC, 0, 0, 0},
  {514, REPLAY, 1, 0, 0, 0}, {515, REPLAY, 1, PTSZ, 0, 0},
  {513, GRAPH_MADE, SYNC, 0, 0, 0}, {578, GRAPH_MADE, SYNC, 0, 0, 0}, {643, GRAPH_MADE, SYNC, 0, 0, 0},
  {656, GRAPH_MADE, SYNC, 0, 0, 0}, {657, GRAPH_MADE, SYNC, 0, 0, 0},
  {561, GRAPH_UPDATED, SYNC, 0, 0, 0}, {696, GRAPH_UPDATED, SYNC, 0, 0, 0}, {516, GRAPH_ENDED, SYNC, 0, 0, 0},
  {22, UNLOADED, SYNC, 0, 0, 0}, {680, UNLOADED, SYNC, 0, 0, 0},
  {495, CAPTURE_BEGAN, SYNC, 0, 0, 0}, {496, CAPTURE_BEGAN, SYNC, 0, 0, 0}, {539, CAPTURE_BEGAN, SYNC, 0, 0, 0},
  {540, CAPTURE_BEGAN, SYNC, 0, 0, 0}, {720, CAPTURE_BEGAN, SYNC, 0, 0, 0}, {721, CAPTURE_BEGAN, SYNC, 0, 0, 0},
  {497, CAPTURE_ENDED, SYNC, 0, 0, 0}, {498, CAPTURE_ENDED, SYNC, 0, 0, 0},
  {276, COPY, SYNC, 0, 2, HTOD}, {277, COPY, 3, 0, 2, HTOD}, {278, COPY, SYNC, 0, 2, DTOH}, {279, COPY, 3, 0, 2, DTOH},
  {280, COPY, SYNC, 0, 2, DTOD}, {281, COPY, 3, 0, 2, DTOD}, {397, COPY, SYNC, 0, 2, HTOD}, {398, COPY, SYNC, 0, 2, DTOH},
  {399, COPY, SYNC, 0, 2, DTOD}, {421, COPY, 3, PTSZ, 2, HTOD}, {422, COPY, 3, PTSZ, 2, DTOH},
  {423, COPY, 3, PTSZ, 2, DTOD},
  {282, COPY, SYNC, 0, 3, ATOH}, {283, COPY, 4, 0, 3, ATOH}, {284, COPY, SYNC, 0, 3, ATOD}, {285, COPY, SYNC, 0, 3, DTOA},
  {286, COPY, SYNC, 0, 4, ATOA}, {292, COPY, SYNC, 0, 3, HTOA}, {293, COPY, 4, 0, 3, HTOA}, {400, COPY, SYNC, 0, 3, DTOA},
  {401, COPY, SYNC, 0, 3, ATOD}, {402, COPY, SYNC, 0, 3, HTOA}, {403, COPY, SYNC, 0, 3, ATOH},
  {404, COPY, SYNC, 0, 4, ATOA}, {419, COPY, 4, PTSZ, 3, HTOA}, {420, COPY, 4, PTSZ, 3, ATOH},
  {305, COPY_ANY, SYNC, 0, 2, 0}, {306, COPY_ANY, 3, 0, 2, 0}, {408, COPY_ANY, SYNC, 0, 2, 0},
  {418, COPY_ANY, 3, PTSZ, 2, 0}, {837, COPY_ANY, 4, 0, 2, 0}, {838, COPY_ANY, 4, PTSZ, 2, 0},
  {287, COPY_2D, SYNC, 0, 0, 0}, {288, COPY_2D, SYNC, 0, 0, 0}, {289, COPY_2D, 1, 0, 0, 0}, {405, COPY_2D, SYNC, 0, 0, 0},
  {406, COPY_2D, SYNC, 0, 0, 0}, {424, COPY_2D, 1, PTSZ, 0, 0},
  {290, COPY_3D, SYNC, 0, 0, 0}, {291, COPY_3D, 1, 0, 0, 0}, {407, COPY_3D, SYNC, 0, 0, 0}, {425, COPY_3D, 1, PTSZ, 0, 0},
  {320, COPY_3D, SYNC, 0, 0, PTOP}, {321, COPY_3D, 1, 0, 0, PTOP}, {410, COPY_3D, SYNC, 0, 0, PTOP},
  {427, COPY_3D, 1, PTSZ, 0, PTOP},
  {318, COPY, SYNC, 0, 4, PTOP}, {319, COPY, 5, 0, 4, PTOP}, {409, COPY, SYNC, 0, 4, PTOP}, {426, COPY, 5, PTSZ, 4, PTOP},
  {776, COPY_BATCH, 8, 0, 0, 0}, {777, COPY_BATCH, 8, PTSZ, 0, 0}, {796, COPY_BATCH, 7, 0, 0, 0},
  {797, COPY_BATCH, 7, PTSZ, 0, 0},
  {249, FILL, SYNC, 0, 2, 1}, {250, FILL, SYNC, 0, 2, 2}, {251, FILL, SYNC, 0, 2, 4}, {216, FILL, 3, 0, 2, 1},
  {218, FILL, 3, 0, 2, 2}, {220, FILL, 3, 0, 2, 4}, {411, FILL, SYNC, 0, 2, 1}, {412, FILL, SYNC, 0, 2, 2},
  {413, FILL, SYNC, 0, 2, 4}, {428, FILL, 3, PTSZ, 2, 1}, {429, FILL, 3, PTSZ, 2, 2}, {430, FILL, 3, PTSZ, 2, 4},
  {252, FILL_2D, SYNC, 0, 3, 1}, {253, FILL_2D, SYNC, 0, 3, 2}, {254, FILL_2D, SYNC, 0, 3, 4}, {222, FILL_2D, 5, 0, 3, 1},
  {224, FILL_2D, 5, 0, 3, 2}, {226, FILL_2D, 5, 0, 3, 4}, {414, FILL_2D, SYNC, 0, 3, 1}, {415, FILL_2D, SYNC, 0, 3, 2},
  {416, FILL_2D, SYNC, 0, 3, 4}, {431, FILL_2D, 5, PTSZ, 3, 1}, {432, FILL_2D, 5, PTSZ, 3, 2}, {433, FILL_2D, 5, PTSZ, 3, 4},
};
enum { CALLS = sizeof calls / sizeof *calls, MOST_IDS = 1024 };

static uint8_t number_of[MOST_IDS]; /* of a call, from 1 */
static _Atomic int is_open, is_counting;
static _Atomic int captures; /* that are under way; none may be, then no stream is looked at */

/* Return 1 if what a call put on a stream does not run, as it is captured into a graph. */
static int is_captured(uint64_t stream, int flags) {
  int status = 0;
  if (!atomic_load_explicit(&captures, memory_order_relaxed) || !driver.is_capturing) return 0;
  if (!stream) stream = flags & PTSZ ? PER_THREAD_STREAM : 0;
  return stream && !driver.is_capturing((void *)stream, &status) && status == CAPTURE_ACTIVE;
}

static void count(struct entry *entry, int runs) {
  if (runs) atomic_fetch_add_explicit(&entry->launches, 1, memory_order_relaxed);
}

static void copied(unsigned kind, uint64_t bytes, int runs) {
  struct entry *entry = copy_entry(kind);
  if (!runs) return;
  atomic_fetch_add_explicit(&entry->bytes, bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&entry->launches, 1, memory_order_relaxed);
}

static void launched(uint64_t function, const uint32_t *dimensions, const char *symbol, int runs) {
  const struct kernel kernel = {function, shape_of(dimensions), symbol, NULL};
  count(kernel_entry(&kernel), runs); /* a captured one leaves its name for the graph */
}

/* A list of CUDA_LAUNCH_PARAMS, of seven words each: their functions are CUfunctions. */
static void launched_many(const uint64_t *list, uint32_t count_of, int runs) {
  for (const uint64_t *each = list; each < list + 7 * count_of; each += 7) {
    struct kernel kernel = {each[0], shape_of((const uint32_t *)(each + 1)), NULL, driver.function_name};
    count(kernel_entry(&kernel), runs);
  }
}

static void copied_2d(const uint64_t *words, int runs) {
  unsigned kind = copy_kind((unsigned)words[2], words[4], (unsigned)words[9], words[11]);
  copied(kind, words[14] * words[15], runs);
}

static void copied_batch(const uint64_t *words, int runs) {
  const uint64_t *to = (const uint64_t *)words[0], *from = (const uint64_t *)words[1];
  const uint64_t *sizes = (const uint64_t *)words[2];
  for (uint64_t i = 0; i < words[3]; i++) copied(copy_kind(UNIFIED, from[i], UNIFIED, to[i]), sizes[i], runs);
}

static void counted(const struct kind_of_call *kind, const struct call *call) {
  const uint64_t *words = call->params;
  const uint64_t *stated = (const uint64_t *)words[0];
  uint64_t stream = kind->stream == SYNC ? 0 : words[kind->stream];
  if (kind->action == LAUNCH_EX) stream = stated[4];
  int runs = !is_captured(stream, kind->flags);
  unsigned found = kind->detail;
  uint64_t bytes;
  switch (kind->action) {
    case LAUNCH: launched(words[0], (const uint32_t *)(words + 1), call->symbol, runs); break;
    case LAUNCH_EX: launched(words[1], (const uint32_t *)stated, call->symbol, runs); break;
    case LAUNCH_MANY: launched_many(stated, (uint32_t)words[1], runs); break;
    case REPLAY: if (runs) graph_replayed(words[0]); break;
    case COPY:
      if (found == DTOD) found = copy_kind(DEVICE, words[1], DEVICE, words[0]);
      copied(found, words[kind->at], runs);
      break;
    case COPY_ANY: copied(copy_kind(UNIFIED, words[1], UNIFIED, words[0]), words[kind->at], runs); break;
    case COPY_2D: copied_2d(stated, runs); break;
    case COPY_3D:
      bytes = copy_3d(stated, &found);
      copied(kind->detail ? kind->detail : found, bytes, runs);
      break;
    case COPY_BATCH: copied_batch(words, runs); break;
    case FILL: copied(MEMSET, words[kind->at] * kind->detail, runs); break;
    case FILL_2D: copied(MEMSET, words[kind->at] * words[kind->at + 1] * kind->detail, runs); break;
    default: break;
  }
}

/* Return 1 for a call that launches kernels or copies. */
static int puts_work(enum action action) { return (action >= LAUNCH && action <= REPLAY) || action >= COPY; }

/* Take a call of the driver (CUpti_CallbackFunc). */
EXPORT void drumline_called(void *unused, int domain, uint32_t id, const void *data) {
  const struct call *call = data;
  (void)unused;
  if (domain != DRIVER_API || id >= MOST_IDS || !number_of[id] || !atomic_load(&is_open)) return;
  const struct kind_of_call *kind = &calls[number_of[id] - 1];
  if (call->site == ENTER) { /* a handle is used again as soon as its call returns */
    if (kind->action == GRAPH_ENDED) graph_ended(*(const uint64_t *)call->params);
    if (kind->action == UNLOADED) names_changed();
    if (puts_work(kind->action)) launch_begin(call->correlation);
    return;
  }
  int result = call->result ? *call->result : 0;
  if (kind->action == CAPTURE_ENDED && (!result || result / 100 * 100 == CAPTURE_ERRORS)) atomic_fetch_sub(&captures, 1);
  if (result) return;
  const uint64_t *words = call->params;
  if (kind->action == CAPTURE_BEGAN) atomic_fetch_add(&captures, 1);
  else if (kind->action == UNLOADED) names_changed();
  else if (kind->action == GRAPH_MADE) graph_made(*(const uint64_t *)words[0], (void *)words[1]);
  else if (kind->action == GRAPH_UPDATED) graph_made(words[0], (void *)words[1]);
  else if (atomic_load_explicit(&is_counting, memory_order_relaxed)) counted(kind, call);
  if (puts_work(kind->action)) launch_end(id, call->correlation);
}

/* Look at calls from now on. */
EXPORT void drumline_calls_open(void) {
  for (unsigned i = 0; i < CALLS; i++) number_of[calls[i].id] = (uint8_t)(i + 1);
  atomic_store(&is_open, 1);
}

/* Count into a table of zeros, or one that this process has used; `functions`: enum of struct driver. Calls that make
 * graphs or unload modules may be reported from then on. */
EXPORT void drumline_counts_open(uint8_t *memory, const struct driver *functions) {
  driver = *functions;
  table_open(memory);
  graphs_open();
  atomic_store(&captures, 0);
}

/* Count launches from now on (1), or follow graphs and names only (0). */
EXPORT void drumline_counts_run(int on) { atomic_store(&is_counting, on); }

/* Forget what may change while no call is seen. */
EXPORT void drumline_counts_forget(void) {
  names_changed();
  graphs_forgotten();
  atomic_store(&captures, 0);
}

/* Ignore all calls from now on. */
EXPORT void drumline_calls_close(void) { atomic_store(&is_open, 0); }

/* Write the numbers of the calls that are looked at (CUPTI's cbids), or of those among them that launch kernels or
 * copies; return how many there are. */
EXPORT int drumline_counts_calls(uint32_t *ids, int most, int launches) {
  int count = 0;
  for (int i = 0; i < CALLS && count < most; i++)
    if (!launches || puts_work(calls[i].action)) ids[count++] = calls[i].id;
  return count;
}
