/* A fake NCCL: loads the real plugin and calls it as NCCL does, from several threads.
 *
 *   fake_nccl PLUGIN VERSION SCENARIO
 *
 * It prints nothing, and exits with 0 if each call of the plugin gave success. The tests read the ring. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_interface.h"

static int version;
static profiler *plugin;
static int mask;
static int (*record)(int on);
static void (*time_all)(int on);
static void (*record_transfers)(int);
static int (*mark)(int kind, int64_t number, const char *name, uint64_t count);
static uint64_t (*captured_calls)(void);

#define CHECK(expression) \
  do if (!(expression)) { fprintf(stderr, "line %d: %s\n", __LINE__, #expression); _exit(1); } while (0)

struct comm { void *context; uint64_t id; int rank; uint64_t sequence[2]; };
struct operation { /* as NCCL's tasks have it; `mask`: of the events that were asked for at the call */
  int mask; bool is_p2p; int function, channels, peer; uint64_t sequence; size_t count; void *api_call, *handle;
};

static const char *const FUNCTIONS[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};

static void log_nothing(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

/* The plugin's clock: scenarios stop it, and move it on instead of waiting. Sanitizers have their own clock_gettime. */
static int64_t clock_ahead_ms;
static struct timespec stopped_clock;
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = 0;
  if (stopped_clock.tv_sec) *now = stopped_clock;
  else failed = (int)syscall(SYS_clock_gettime, clock, now);
  now->tv_sec += clock_ahead_ms / 1000;
  now->tv_nsec += clock_ahead_ms % 1000 * 1000000;
  if (now->tv_nsec >= 1000000000) now->tv_sec++, now->tv_nsec -= 1000000000;
  return failed;
}
#endif

/* --- as in src/plugin/profiler.cc --- */

static void *library;

static void load(const char *path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  mark = dlsym(library, "drumline_mark");
  record = dlsym(library, "drumline_record");
  time_all = dlsym(library, "drumline_time_all");
  record_transfers = dlsym(library, "drumline_record_transfers");
  captured_calls = dlsym(library, "drumline_captured");
  char symbol[] = "ncclProfiler_v0";
  for (int newest = version; newest >= 1 && !plugin; newest--) { /* this NCCL takes older plugins too */
    symbol[sizeof symbol - 2] = (char)('0' + newest);
    plugin = dlsym(library, symbol);
    version = newest;
  }
}

static struct comm create(uint64_t id, int rank, int ranks, const char *name) {
  struct comm comm = {.id = id, .rank = rank};
  if (!plugin) return comm;
  int result;
  if (version <= 3) result = ((init_v1)plugin->init)(&comm.context, &mask);
  else if (version == 4) result = ((init_v4)plugin->init)(&comm.context, &mask, name, id, 2, ranks, rank, log_nothing);
  else result = ((init_v5)plugin->init)(&comm.context, id, &mask, name, 2, ranks, rank, log_nothing);
  CHECK(result == 0);
  return comm;
}

static void destroy(struct comm *comm) {
  if (plugin && comm->context) CHECK(plugin->finalize(comm->context) == 0);
}

/* Start an event of a kind without members that matter here. */
static void *start_other(struct comm *comm, uint64_t kind, void *parent) {
  descriptor_v7 wide = {.type = kind, .parentObj = parent};
  descriptor_v4 narrow = {.type = (uint8_t)kind, .parentObj = parent};
  void *handle = (void *)0x1234567;
  if (kind == PROXY_OP) wide.proxyOp.pid = narrow.proxyOp.pid = getpid() + 1; /* PXN */
  CHECK(plugin->startEvent(comm->context, &handle, version >= 5 ? (void *)&wide : (void *)&narrow) == 0);
  return handle;
}

/* Call NCCL's API; return the handle of the call. Version 4 has no such event. */
static void *start_api_call(struct comm *comm, const struct operation *op, bool captured) {
  if (version <= 4 || !(op->mask & (COLL | P2P | KERNEL_CH))) return NULL;
  void *handle = NULL, *group = start_other(comm, GROUP_API, NULL);
  descriptor_v7 call = {.type = op->is_p2p ? P2P_API : COLL_API, .parentObj = group};
  if (op->is_p2p) call.p2pApi.graphCaptured = captured, call.p2pApi.userTag = 9;
  else call.collApi.graphCaptured = captured, call.collApi.userTag = 9;
  CHECK(plugin->startEvent(comm->context, &handle, &call) == 0);
  if (handle) CHECK(plugin->stopEvent(handle) == 0);
  if (group) CHECK(plugin->stopEvent(group) == 0);
  return handle;
}

#define FILL(D, FUNCTION, DATATYPE, ALGO, PROTO, CHANNELS) \
  do { \
    D.type = op->is_p2p ? P2P : COLL; D.parentObj = version <= 4 ? group : op->api_call; D.rank = comm->rank; \
    if (op->is_p2p) { \
      D.p2p.func = FUNCTION; D.p2p.datatype = DATATYPE; D.p2p.count = op->count; D.p2p.peer = op->peer; \
    } else { \
      D.coll.seqNumber = op->sequence; D.coll.func = FUNCTION; D.coll.datatype = DATATYPE; D.coll.count = op->count; \
      D.coll.root = op->peer; D.coll.nWarps = 9; D.coll.algo = ALGO; D.coll.proto = PROTO; \
      D.coll.CHANNELS = (uint8_t)op->channels; \
    } \
  } while (0)
#define FILL_COMM(D) do { if (op->is_p2p) D.p2p.commHash = comm->id; else D.coll.commHash = comm->id; } while (0)

/* Start the events of one kernel's operations. */
static void launch(struct comm *comm, struct operation *ops, int count) {
  if (!plugin || !(ops->mask & (COLL | P2P | KERNEL_CH))) return;
  void *group = start_other(comm, GROUP, NULL);
  for (struct operation *op = ops; op < ops + count; op++) {
    const char *function = FUNCTIONS[op->function];
    op->handle = NULL;
    if (!group && version <= 4) continue; /* NCCL 2.27 and before */
    descriptor_v1 d1 = {0}; descriptor_v2 d2 = {0}; descriptor_v3 d3 = {0}; descriptor_v4 d4 = {0}; descriptor_v5 d5 = {0}; descriptor_v7 d7 = {0};
    void *const descriptors[] = {&d1, &d2, &d3, &d4, &d5, &d5, &d7};
    switch (version) {
    case 1: FILL(d1, (uint8_t)op->function, 7, 1, 2, nMaxChannels); FILL_COMM(d1); break;
    case 2: FILL(d2, function, "ncclFloat32", "RING", "SIMPLE", nMaxChannels); FILL_COMM(d2); break;
    case 3: FILL(d3, function, "ncclFloat32", "RING", "SIMPLE", nMaxChannels); FILL_COMM(d3); break;
    case 4: FILL(d4, function, "ncclFloat32", "RING", "SIMPLE", nChannels); d4.p2p.nChannels = op->is_p2p ? 77 : d4.p2p.nChannels; break;
    case 5: case 6:
      FILL(d5, function, "ncclFloat32", "RING", "SIMPLE", nChannels);
      if (op->is_p2p) d5.p2p.nChannels = (uint8_t)op->channels, d5.p2p.parentGroup = group;
      else d5.coll.parentGroup = group;
      break;
    default:
      FILL(d7, function, "ncclFloat32", "RING", "SIMPLE", nChannels);
      if (op->is_p2p) d7.p2p.nChannels = (uint8_t)op->channels, d7.p2p.parentGroup = group, d7.p2p.userTag = 9;
      else d7.coll.parentGroup = group, d7.coll.kernelVariant = "ring", d7.coll.isSymColl = true, d7.coll.userTag = 9;
    }
    CHECK(plugin->startEvent(comm->context, &op->handle, descriptors[version - 1]) == 0);
  }
  for (struct operation *op = ops; op < ops + count; op++) if (op->handle) CHECK(plugin->stopEvent(op->handle) == 0);
  if (group) CHECK(plugin->stopEvent(group) == 0);
}

static void *start_channel(struct comm *comm, void *parent, int channel, uint64_t gpu_ns) {
  if (version <= 3) return NULL;
  descriptor_v4 d4 = {.type = KERNEL_CH, .parentObj = parent}; descriptor_v7 d5 = {.type = KERNEL_CH, .parentObj = parent};
  d4.kernelCh.channelId = d5.kernelCh.channelId = (uint8_t)channel;
  d4.kernelCh.pTimer = d5.kernelCh.pTimer = gpu_ns;
  void *handle = (void *)0x1234567; /* what was there before: NCCL uses the memory again */
  CHECK(plugin->startEvent(comm->context, &handle, version >= 5 ? (void *)&d5 : (void *)&d4) == 0);
  return handle;
}

static void stop_channel(void *handle, uint64_t gpu_ns) {
  if (!handle) return;
  state_args args = {.kernelCh.pTimer = gpu_ns};
  CHECK(plugin->recordEventState(handle, KERNEL_CH_STOP, &args) == 0);
  CHECK(plugin->stopEvent(handle) == 0);
}

/* Run all channels of an operation on the GPU: from 1000 * sequence + channel to 500 + channel later; GPU_BEGIN_NS on. */
static void run_channels(struct comm *comm, const struct operation *op) {
  void *handles[64];
  if (!(op->mask & KERNEL_CH)) return;
  const uint64_t begin = getenv("GPU_BEGIN_NS") ? strtoull(getenv("GPU_BEGIN_NS"), NULL, 10) : 0;
  const uint64_t start = begin + 1000 * op->sequence;
  for (int i = 0; i < op->channels; i++) handles[i] = start_channel(comm, op->handle, i, start + (uint64_t)i);
  for (int i = 0; i < op->channels; i++) stop_channel(handles[i], start + 500 + (uint64_t)i);
}

/* --- the proxy thread, as in src/proxy.cc and src/transport/net.cc --- */

enum { STEPS = 8 }; /* transfers of an operation that are under way at most */
struct proxy { struct comm *comm; const struct operation *op; void *handle, *steps[STEPS]; bool is_send; };

/* Take up what an operation sends to a peer, or receives from it, on one channel. */
static struct proxy start_proxy(struct comm *comm, const struct operation *op, int channel, int peer, bool is_send) {
  struct proxy proxy = {.comm = comm, .op = op, .is_send = is_send};
  if (!(op->mask & (PROXY_OP | PROXY_STEP))) return proxy;
  proxy_op about = {.pid = getpid(), .channelId = (uint8_t)channel, .peer = peer, .nSteps = 4, .chunkSize = 1 << 19, .isSend = is_send};
  descriptor_v4 d4 = {.type = PROXY_OP, .parentObj = op->handle, .rank = comm->rank, .proxyOp = about};
  descriptor_v7 d5 = {.type = PROXY_OP, .parentObj = op->handle, .rank = comm->rank, .proxyOp = about};
  CHECK(plugin->startEvent(comm->context, &proxy.handle, version >= 5 ? (void *)&d5 : (void *)&d4) == 0);
  state_args none = {0};
  if (proxy.handle) CHECK(plugin->recordEventState(proxy.handle, PROXY_OP_IN_PROGRESS, &none) == 0);
  return proxy;
}

/* Begin a transfer; NCCL calls this again where the network took no buffer. */
static void start_step(struct proxy *proxy, int step) {
  if (!(proxy->op->mask & PROXY_STEP)) return;
  descriptor_v4 d4 = {.type = PROXY_STEP, .parentObj = proxy->handle, .proxyStep.step = step};
  descriptor_v7 d5 = {.type = PROXY_STEP, .parentObj = proxy->handle, .proxyStep.step = step};
  CHECK(plugin->startEvent(proxy->comm->context, &proxy->steps[step % STEPS], version >= 5 ? (void *)&d5 : (void *)&d4) == 0);
}

static void step_state(struct proxy *proxy, int step, int state, size_t size) {
  state_args args = {.proxyStep.transSize = size};
  if (proxy->handle && proxy->steps[step % STEPS])
    CHECK(plugin->recordEventState(proxy->steps[step % STEPS], state, &args) == 0);
}

static void stop_step(struct proxy *proxy, int step) {
  if (proxy->steps[step % STEPS]) CHECK(plugin->stopEvent(proxy->steps[step % STEPS]) == 0);
  proxy->steps[step % STEPS] = NULL;
}

static void stop_proxy(struct proxy *proxy) {
  if (proxy->handle) CHECK(plugin->stopEvent(proxy->handle) == 0);
}

/* Send or receive all of an operation on one channel: `count` transfers of `size`, of which the next begins before one ends. */
static void run_proxy(struct comm *comm, const struct operation *op, int channel, int peer, bool is_send, int count, size_t size) {
  struct proxy proxy = start_proxy(comm, op, channel, peer, is_send);
  for (int step = 0; step <= count; step++) {
    if (step < count) {
      start_step(&proxy, step);
      step_state(&proxy, step, is_send ? SEND_GPU_WAIT : RECV_WAIT, 0);
      if (is_send) step_state(&proxy, step, SEND_PEER_WAIT, 0);
      step_state(&proxy, step, is_send ? SEND_WAIT : RECV_FLUSH_WAIT, size);
      if (!is_send) step_state(&proxy, step, RECV_GPU_WAIT, size);
    }
    if (step) stop_step(&proxy, step - 1);
  }
  stop_proxy(&proxy);
}

static struct operation make(struct comm *comm, bool is_p2p) {
  uint64_t sequence = ++comm->sequence[is_p2p];
  return (struct operation){.mask = __atomic_load_n(&mask, __ATOMIC_RELAXED), .is_p2p = is_p2p, .function = is_p2p ? 6 : 4, .channels = 1 + (int)(sequence % 24),
                            .peer = is_p2p ? comm->rank + 1 : 0, .sequence = sequence, .count = 100 + sequence};
}

/* Call, launch and run one operation, in this thread. */
static struct operation do_one(struct comm *comm, bool is_p2p) {
  struct operation op = make(comm, is_p2p);
  op.api_call = start_api_call(comm, &op, false);
  launch(comm, &op, 1);
  run_channels(comm, &op);
  return op;
}

/* --- counts of works, as src/enqueue.cc, src/device/common.h and src/transport/profiler.cc of 2.28.9 have them --- */

enum { SLOTS = 64, CHANNELS = 32 };
static struct { uint64_t host, device; struct { uint64_t counter, started, stopped; } slots[SLOTS]; } works[CHANNELS];
static uint64_t gpu_now = 1000;

/* Run a kernel of 100 ns: `count` operations, each on channels from `first` of it on. The GPU counts all works, the host not
 * those of a copy to the rank itself, whose times it never reports. */
static void run_kernel(struct comm *comm, struct operation *ops, const int *first, int count) {
  launch(comm, ops, count);
  gpu_now += 1000;
  for (int i = 0; i < count; i++)
    for (int c = first[i]; c < first[i] + ops[i].channels; c++) {
      uint64_t work = ++works[c].device;
      works[c].slots[work % SLOTS].counter = work;
      works[c].slots[work % SLOTS].started = gpu_now;
      works[c].slots[work % SLOTS].stopped = gpu_now + 100;
    }
  for (int i = 0; i < count; i++) {
    if (ops[i].is_p2p && ops[i].peer == comm->rank) continue;
    for (int c = first[i]; c < first[i] + ops[i].channels; c++) {
      uint64_t work = ++works[c].host;
      CHECK(works[c].slots[work % SLOTS].counter >= work);
      void *handle = start_channel(comm, ops[i].handle, c, works[c].slots[work % SLOTS].started);
      stop_channel(handle, works[c].slots[work % SLOTS].stopped);
    }
  }
}

/* --- threads: API threads put operations into queues, proxy threads run them --- */

enum { THREADS = 4, PROXIES = 2, OPERATIONS = 300 };
static struct { struct comm *comm; struct operation op; _Atomic bool is_ready; } queues[THREADS][OPERATIONS];
static struct comm comms[THREADS];
static _Atomic bool is_racing;

static void *api_thread(void *argument) {
  long me = (long)argument;
  for (int i = 0; i < OPERATIONS; i++) {
    struct operation op = make(&comms[me], i % 3 == 2);
    op.api_call = start_api_call(&comms[me], &op, false);
    launch(&comms[me], &op, 1);
    queues[me][i].comm = &comms[me];
    queues[me][i].op = op;
    atomic_store(&queues[me][i].is_ready, true);
  }
  return NULL;
}

static void *proxy_thread(void *argument) {
  long me = (long)argument;
  for (int i = 0; i < OPERATIONS; i++)
    for (long thread = me; thread < THREADS; thread += PROXIES) {
      while (!atomic_load(&queues[thread][i].is_ready)) sched_yield();
      run_channels(queues[thread][i].comm, &queues[thread][i].op);
      for (int direction = 0; direction < 2; direction++)
        run_proxy(queues[thread][i].comm, &queues[thread][i].op, i % 3, 5 + direction, direction, 1 + i % 9, 1000);
    }
  return NULL;
}

static void *other_threads(void *argument) { /* steps, and with a race the end of communicators */
  (void)argument;
  for (int i = 0; i < 50; i++) {
    mark(2, i, NULL, 0);
    if (is_racing) record(i % 3 != 0);
    struct comm brief = create(1000 + i, 0, 2, "brief");
    do_one(&brief, false);
    destroy(&brief);
    if (is_racing && i >= 10 && i < 10 + THREADS) destroy(&comms[i - 10]);
  }
  return NULL;
}

static void run_threads(bool race) {
  pthread_t threads[THREADS + PROXIES + 1];
  atomic_store(&is_racing, race);
  for (int i = 0; i < THREADS; i++) comms[i] = create(10 + i, i, 8, i ? "tensor" : NULL);
  for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, api_thread, (void *)i);
  for (long i = 0; i < PROXIES; i++) pthread_create(&threads[THREADS + i], NULL, proxy_thread, (void *)i);
  pthread_create(&threads[THREADS + PROXIES], NULL, other_threads, NULL);
  for (int i = 0; i < THREADS + PROXIES + 1; i++) pthread_join(threads[i], NULL);
  if (!race) for (int i = 0; i < THREADS; i++) destroy(&comms[i]);
}

/* --- the agent's word --- */

static const char *ring_name(char *name, size_t size) {
  glob_t found;
  snprintf(name, size, "%s/%d-*.ring", getenv("DRUMLINE_RINGS__FOLDER"), (int)getpid());
  CHECK(!glob(name, 0, NULL, &found) && found.gl_pathc == 1);
  snprintf(name, size, "%s", found.gl_pathv[0]);
  globfree(&found);
  return name;
}

static void set_read(const uint64_t *position) { /* NULL: all */
  char name[4096];
  uint64_t written;
  int file = open(ring_name(name, sizeof name), O_RDWR);
  CHECK(pread(file, &written, 8, 5 * 8) == 8 && pwrite(file, position ? position : &written, 8, 6 * 8) == 8);
  close(file);
}

static void read_all(void) { set_read(NULL); }

static int number_of(const char *variable) {
  const char *value = getenv(variable);
  return value ? atoi(value) : 0;
}

/* Ask for all steps of the next ms as the agent does: word 20 of the ring's header. */
enum { TIMES_REQUESTED = 20 };
static void request(int ms) {
  char pattern[4096];
  snprintf(pattern, sizeof pattern, "%s/*.ring", getenv("DRUMLINE_RINGS__FOLDER"));
  glob_t rings;
  CHECK(glob(pattern, 0, NULL, &rings) == 0 && rings.gl_pathc == 1);
  int descriptor = open(rings.gl_pathv[0], O_WRONLY | O_CLOEXEC);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t until = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + (uint64_t)ms * 1000000u;
  CHECK(pwrite(descriptor, &until, sizeof until, TIMES_REQUESTED * 8) == sizeof until);
  close(descriptor);
  globfree(&rings);
}

/* --- scenarios --- */

static void one(void) { /* one of each kind */
  struct comm comm = create(42, 5, 8, "world");
  mark(2, 7, NULL, 1);
  do_one(&comm, false);
  do_one(&comm, true);
  destroy(&comm);
}

static void tick(int ms) { clock_ahead_ms += ms; }

static void transfers(void) { /* two channels send to rank 6, one receives from rank 4; the clock is ours */
  clock_gettime(CLOCK_REALTIME, &stopped_clock);
  struct comm comm = create(42, 5, 8, "world");
  mark(2, 7, NULL, 1);
  struct operation op = do_one(&comm, false);
  mark(2, 8, NULL, 1);
  struct proxy one = start_proxy(&comm, &op, 0, 6, true), two = start_proxy(&comm, &op, 1, 6, true);
  struct proxy received = start_proxy(&comm, &op, 0, 4, false), empty = start_proxy(&comm, &op, 2, 4, false);
  start_step(&one, 0);
  step_state(&one, 0, SEND_GPU_WAIT, 0);
  tick(2);
  for (int i = 0; i < 3; i++) { /* the receiver has no room */
    step_state(&one, 0, SEND_PEER_WAIT, 0);
    tick(1);
  }
  step_state(&one, 0, SEND_WAIT, 1000);
  start_step(&one, 1);
  step_state(&one, 1, SEND_GPU_WAIT, 1000);
  tick(1);
  step_state(&one, 1, SEND_PEER_WAIT, 1000);
  step_state(&one, 1, SEND_WAIT, 2000);
  start_step(&two, 0);
  step_state(&two, 0, SEND_GPU_WAIT, 0);
  step_state(&two, 0, SEND_PEER_WAIT, 0);
  step_state(&two, 0, SEND_WAIT, 500);
  tick(4);
  stop_step(&one, 0);
  tick(1);
  stop_step(&one, 1);
  tick(2);
  stop_step(&two, 0);
  tick(100); /* nothing is on the network, and NCCL ends the operations of all channels at once */
  stop_proxy(&one);
  stop_proxy(&two);
  start_step(&received, 0);
  tick(5);
  start_step(&received, 0); /* the network takes a buffer at the second attempt */
  step_state(&received, 0, RECV_WAIT, 0);
  tick(3);
  step_state(&received, 0, RECV_FLUSH_WAIT, 800);
  tick(1);
  step_state(&received, 0, RECV_GPU_WAIT, 800);
  tick(2);
  stop_step(&received, 0);
  stop_proxy(&received);
  stop_proxy(&empty);
  destroy(&comm);
}

/* COUNT operations in each of 100 steps, of which the plugin chooses some; a send to rank 1 of each. */
static void steps(void) { /* each handle of a transfer comes several times */
  struct comm comm = create(42, 5, 8, "world");
  struct operation op = do_one(&comm, false);
  run_proxy(&comm, &op, 0, 6, true, 4 * STEPS, 1000);
  destroy(&comm);
}

static void refilled(void) { /* the proxy thread comes while its operation's record is filled for another one */
  enum { FIRST = 4096 + 1024 * 96, PROGRESS = FIRST + 8 + 4, COMM = FIRST + 22 };
  struct comm comm = create(42, 5, 8, "world");
  struct operation op = do_one(&comm, false);
  const uint16_t none = 0xffff, comm_index = 0;
  const uint32_t first = 1, later = 65;
  char name[4096];
  int file = open(ring_name(name, sizeof name), O_RDWR);
  CHECK(pwrite(file, &none, sizeof none, COMM) == sizeof none);
  CHECK(!start_proxy(&comm, &op, 0, 6, true).handle);
  CHECK(pwrite(file, &comm_index, sizeof comm_index, COMM) == sizeof comm_index);
  CHECK(pwrite(file, &later, sizeof later, PROGRESS) == sizeof later);
  CHECK(!start_proxy(&comm, &op, 0, 6, true).handle);
  CHECK(pwrite(file, &first, sizeof first, PROGRESS) == sizeof first);
  CHECK(start_proxy(&comm, &op, 0, 6, true).handle);
  close(file);
}

static void light_fork(void) { /* a data loader: it begins with some 40 page faults, without a write to unused tables */
  mark(2, 0, NULL, 1);
  pid_t child = fork();
  if (!child) {
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0 && used.ru_minflt < 150);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void chosen(void) {
  struct comm comm = create(42, number_of("RANK"), 2, NULL);
  for (int step = 0; step < 100; step++) {
    mark(2, step, NULL, 1);
    if (getenv("DENSE") && step == 90) request(60000);
    if (getenv("PAUSE") && step % 50 == 40) record_transfers(0);
    if (getenv("PAUSE") && step % 50 == 45) record_transfers(1);
    for (int i = 0; i < number_of("COUNT"); i++) {
      struct operation op = do_one(&comm, number_of("SENDS"));
      run_proxy(&comm, &op, 0, 1, true, 1, 1000 + (size_t)op.sequence);
    }
    if (!getenv("DENSE")) tick(1000);
    read_all();
  }
}

/* NCCL is aborted while 2,048 operations send; nothing ends. Then another communicator does. */
static void abandoned(void) {
  struct comm comm = create(42, 0, 2, NULL);
  struct operation op = do_one(&comm, false);
  for (int i = 0; i < 2048; i++) {
    struct proxy proxy = start_proxy(&comm, &op, 0, 1, true);
    CHECK(proxy.handle);
    start_step(&proxy, 0);
    step_state(&proxy, 0, SEND_GPU_WAIT, 0);
  }
  CHECK(!start_proxy(&comm, &op, 0, 1, true).handle);
  destroy(&comm);
  struct comm next = create(43, 0, 2, NULL);
  op = do_one(&next, false);
  CHECK(!start_proxy(&next, &op, 0, 1, true).handle);
  tick(11000);
  for (int i = 0; i < 3000; i++) {
    if (i % 10 == 0) read_all();
    run_proxy(&next, &op, 0, 1, true, 1, 1000);
  }
}

/* 20,000 communicators, one after the other, with one transfer of 1 ms each: more links than there are places. */
static void links(void) {
  clock_gettime(CLOCK_REALTIME, &stopped_clock);
  for (int i = 0; i < 20000; i++) {
    struct comm comm = create(1 + (uint64_t)i, 0, 2, NULL);
    struct operation op = do_one(&comm, false);
    struct proxy proxy = start_proxy(&comm, &op, 0, 1, true);
    start_step(&proxy, 0);
    step_state(&proxy, 0, SEND_WAIT, 1000);
    tick(1);
    stop_step(&proxy, 0);
    stop_proxy(&proxy);
    destroy(&comm);
    if (i % 50 == 0) read_all();
  }
}

/* A collective by copy engines, one that is captured into a CUDA graph, and one by a kernel. */
static void copies(void) {
  struct comm comm = create(42, 5, 8, NULL);
  for (int captured = 0; captured < 2; captured++) {
    struct operation op = make(&comm, false);
    descriptor_v6 event = {.type = CE_COLL, .parentObj = start_api_call(&comm, &op, captured), .rank = 5};
    event.ceColl.seqNumber = 77; event.ceColl.func = "AllGather"; event.ceColl.count = 900; event.ceColl.root = -1;
    event.ceColl.datatype = "ncclFloat32"; event.ceColl.syncStrategy = "MC"; event.ceColl.batchSize = 9;
    void *handle = NULL;
    if (op.mask & (CE_COLL | CE_SYNC | CE_BATCH)) CHECK(plugin->startEvent(comm.context, &handle, &event) == 0);
    if (handle) CHECK(plugin->stopEvent(handle) == 0);
  }
  do_one(&comm, false);
}

static void grouped(void) { /* two sends in one kernel, then an operation that is alone */
  struct comm comm = create(42, 5, 8, NULL);
  struct operation ops[2] = {make(&comm, true), make(&comm, true)};
  launch(&comm, ops, 2);
  do_one(&comm, false);
}

static void drift(void) { /* rank 5: 100 times an all_to_all, an AllReduce on 24 channels and one on 4 */
  struct comm comm = create(42, 5, 8, NULL);
  for (int i = 0; i < 100; i++) {
    struct operation ops[2] = {make(&comm, true), make(&comm, true)}, wide = make(&comm, false), narrow = make(&comm, false);
    ops[0].peer = 5, ops[1].peer = 3, ops[0].channels = ops[1].channels = 16;
    wide.channels = 24, narrow.channels = 4;
    run_kernel(&comm, ops, (int[]){0, 16}, 2);
    run_kernel(&comm, &wide, (int[]){0}, 1);
    run_kernel(&comm, &narrow, (int[]){0}, 1);
  }
}

static void full(void) { /* 100 operations into a ring of 64 */
  struct comm comm = create(42, 0, 2, NULL);
  for (int i = 0; i < 100; i++) do_one(&comm, false);
  read_all();
  for (int i = 0; i < 3; i++) do_one(&comm, false);
}

static void damaged(void) { /* somebody writes nonsense where the agent writes */
  struct comm comm = create(42, 0, 2, NULL);
  do_one(&comm, false);
  uint64_t beyond = 1ull << 40;
  set_read(&beyond);
  do_one(&comm, false);
}

static void unknown(void) { /* events of operations, communicators and processes that are not there */
  struct comm comm = create(42, 0, 2, NULL), closed = create(43, 0, 2, NULL);
  struct operation late = do_one(&comm, false), kept = make(&closed, false);
  launch(&closed, &kept, 1);
  void *channel = start_channel(&comm, late.handle, 0, 1), *orphan;
  for (int i = 0; i < 62; i++) do_one(&comm, false);
  read_all();
  do_one(&comm, false); /* the record of `late` is in use again */
  stop_channel(channel, 5);                                                 /* 1 */
  CHECK(!start_channel(&comm, late.handle, 1, 1));                          /* 2 */
  void *foreign = (void *)((uint64_t)late.handle ^ 1ull << 45);             /* of another process */
  CHECK(!start_channel(&comm, foreign, 1, 1));                              /* 3 */
  stop_channel(foreign, 1);                                                 /* 4 */
  struct comm elsewhere = {.context = (void *)((uint64_t)comm.context ^ 1ull << 45)};
  CHECK(!start_other(&elsewhere, PROXY_OP, foreign));                       /* 5 */
  destroy(&closed);
  CHECK(!start_channel(&closed, kept.handle, 0, 1));                        /* 6 */
  CHECK(!start_other(&closed, GROUP, NULL));                                /* 7 */
  CHECK(plugin->finalize(closed.context) == 0);                             /* 8 */
  orphan = start_channel(&comm, NULL, 0, 1); /* of an operation that was dropped, which is counted there */
  CHECK(!orphan);
  CHECK(plugin->stopEvent(NULL) == 0 && plugin->recordEventState(NULL, KERNEL_CH_STOP, NULL) == 0);
}

static void forked(void) {
  struct comm comm = create(42, 0, 2, NULL);
  struct operation op = do_one(&comm, false);
  pid_t child = fork();
  if (!child) {
    void *channel = start_channel(&comm, op.handle, 0, 1);
    stop_channel(channel, 9000000);
    do_one(&comm, false); /* nothing: the communicator is the parent's */
    struct comm mine = create(77, 1, 2, "child");
    do_one(&mine, false);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  do_one(&comm, false);
}

static void killed(void) {
  struct comm comm = create(42, 0, 2, NULL);
  for (int i = 0; i < 20; i++) do_one(&comm, false);
  kill(getpid(), SIGKILL);
}

static void churn(void) { /* more communicators than the table has, with an agent that reads */
  for (int i = 0; i < 2500; i++) {
    struct comm comm = create(1 + (uint64_t)i, 0, 2, NULL);
    do_one(&comm, false);
    if (i != 2499) destroy(&comm);
    if (i % 50 == 0) read_all();
  }
}

static void reopened(void) { /* NCCL closes the library with the last communicator */
  for (uint64_t i = 1; i <= 2; i++) {
    struct comm comm = create(i, 0, 2, NULL);
    do_one(&comm, false);
    destroy(&comm);
    Dl_info about;
    CHECK(dladdr(plugin->startEvent, &about));
    char *path = strdup(about.dli_fname);
    CHECK(!dlclose(library));
    plugin = NULL;
    load(path);
    free(path);
  }
}

static void many(void) { /* at once, and nobody reads */
  for (int i = 0; i < 1030; i++) {
    struct comm comm = create(1 + (uint64_t)i, 0, 2, NULL);
    if (i >= 1020) do_one(&comm, false);
  }
}

static void marks(void) {
  struct comm comm = create(42, 0, 2, NULL);
  do_one(&comm, false);
  for (int step = 3; step < 6; step++) {
    mark(2, step, NULL, 1);
    do_one(&comm, false);
    do_one(&comm, false);
  }
  mark(3, 11, "validation of the whole test set, which is long", 0);
  mark(4, 11, NULL, 0);
  mark(2, -1, NULL, 1);
  do_one(&comm, false);
}

static void paused(void) { /* off before NCCL is there, and between call, launch and run of operations */
  CHECK(!record(0) && !record(0));
  struct comm comm = create(42, 0, 2, NULL);
  mark(2, 1, NULL, 1);
  do_one(&comm, false);
  CHECK(!record(1) && !record(1));
  mark(2, 2, NULL, 1);
  do_one(&comm, false);
  struct operation called = make(&comm, false), launched = make(&comm, false);
  called.api_call = start_api_call(&comm, &called, true);
  launch(&comm, &launched, 1);
  CHECK(!record(0));
  launch(&comm, &called, 1);
  run_channels(&comm, &called);
  run_channels(&comm, &launched);
  mark(2, 3, NULL, 1);
  do_one(&comm, false);
  CHECK(!record(1));
  do_one(&comm, false);
}

/* Steps of CALLS operations each, PACE_US after the one before. All are measured in steps ALL_FROM to ALL_TO, and for
 * REQUESTED_MS from step REQUESTED_FROM on. */
static void pace(void) {
  const char *us = getenv("PACE_US"), *from = getenv("ALL_FROM"), *to = getenv("ALL_TO");
  int slow_from = number_of("SLOW_FROM"), slow_ms = number_of("SLOW_MS"), ranges = number_of("RANGES"), calls = number_of("CALLS");
  int pause_ms = number_of("PAUSE_MS");
  if (slow_ms || pause_ms || number_of("REQUESTED_MS")) clock_gettime(CLOCK_REALTIME, &stopped_clock);
  struct comm comm = create(42, 0, 2, NULL);
  for (int step = 0; step <= 400; step++) {
    if (from && step == atoi(from)) time_all(1);
    if (to && step == atoi(to)) time_all(0);
    if (number_of("REQUESTED_MS") && step == number_of("REQUESTED_FROM")) request(number_of("REQUESTED_MS"));
    mark(2, step == 370 ? -1 : step, NULL, 1);
    for (int i = 0; i < calls || i < 1; i++) do_one(&comm, false);
    for (int i = 0; i < ranges; i++) mark(i % 2 ? 4 : 3, i, "scope", 0);
    if (us) usleep((useconds_t)atoi(us));
    if (step >= slow_from) clock_ahead_ms += slow_ms;
    if (pause_ms && step % 5 == 4) {
      CHECK(record(0) == 0);
      clock_ahead_ms += pause_ms;
      CHECK(record(1) == 0);
    }
  }
}

static void graph(void) { /* three operations captured, then replayed twice; another one between */
  struct comm comm = create(42, 0, 2, NULL);
  do_one(&comm, false);
  uint64_t first = captured_calls();
  struct operation ops[3] = {make(&comm, false), make(&comm, false), make(&comm, true)};
  for (int i = 0; i < 3; i++) ops[i].api_call = start_api_call(&comm, &ops[i], true);
  uint64_t last = captured_calls();
  for (int replay = 0; replay < 2; replay++) {
    mark(5, 1, NULL, first << 32 | last);
    for (int i = 0; i < 3; i++) {
      launch(&comm, &ops[i], 1);
      run_channels(&comm, &ops[i]);
    }
    do_one(&comm, false);
  }
}

static void threads(void) { run_threads(false); }
static void race(void) { run_threads(true); }

static void chain(void) { /* each kind of event that a chained plugin may get */
  struct comm comm = create(42, 5, 8, "world");
  do_one(&comm, false);
  struct operation op = do_one(&comm, true);
  void *proxy = start_other(&comm, PROXY_OP, op.handle), *step = start_other(&comm, PROXY_STEP, proxy);
  void *net = version >= 3 ? start_other(&comm, NET, step) : NULL, *control = start_other(&comm, PROXY_CTRL, NULL);
  void *copies = version >= 6 ? start_other(&comm, CE_COLL, op.api_call) : NULL;
  void *sync = version >= 6 ? start_other(&comm, CE_SYNC, copies) : NULL, *batch = version >= 6 ? start_other(&comm, CE_BATCH, copies) : NULL;
  void *channel = version >= 7 ? start_channel(&comm, op.handle, 0, 3000) : NULL;
  void *phase = version >= 7 ? start_other(&comm, KERNEL_PHASE, channel) : NULL;
  void *kernel = version >= 5 ? start_other(&comm, KERNEL_LAUNCH, NULL) : NULL;
  const struct { void *handle; int state; } events[] = {
    {net, NET_UPDATE}, {step, SEND_WAIT}, {proxy, PROXY_OP_IN_PROGRESS}, {control, PROXY_CTRL_IDLE}, {sync, 0}, {batch, 0},
    {copies, CE_COLL_COMPLETE}, {phase, KERNEL_PHASE_STOP}, {kernel, 0}};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
    state_args args = {0};
    if (events[i].handle && events[i].state) CHECK(plugin->recordEventState(events[i].handle, events[i].state, &args) == 0);
    if (events[i].handle) CHECK(plugin->stopEvent(events[i].handle) == 0);
  }
  stop_channel(channel, 3500);
  destroy(&comm);
}

/* --- a rank of a job: ranks are synchronised by the clock alone --- */

static long from_environment(const char *name) {
  const char *value = getenv(name);
  CHECK(value);
  return atol(value);
}

static void wait_until(uint64_t ns) {
  struct timespec at = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}, now;
  while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL)) {}
  do clock_gettime(CLOCK_REALTIME, &now); /* a coarse timer may be early */
  while ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec < ns);
}

static uint64_t realtime(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Steps of 60 ms with two collectives, which end together on all ranks. LATE=host: this rank calls 20 ms late; gpu: its
 * GPU begins 20 ms late; without: neither. Its GPU's clock is 7 s behind. */
static void job(void) {
  enum { MS = 1000000, STEPS = 20 };
  const uint64_t begin = (uint64_t)from_environment("BEGIN_MS") * MS, behind = 7000ull * MS;
  const char *late = getenv("LATE");
  struct comm comm = create(4242, (int)from_environment("RANK"), (int)from_environment("WORLD_SIZE"), "world");
  for (int step = 0; step <= STEPS; step++) {
    const uint64_t at = begin + 60ull * MS * (uint64_t)step;
    wait_until(at);
    mark(2, step, NULL, 1);
    for (uint64_t i = 0; i < 2 && step < STEPS; i++) {
      const uint64_t due = at + (5 + 25 * i) * MS, ends = due + 21 * MS;
      wait_until(due + (late && !strcmp(late, "host") ? 20u * MS : 0));
      struct operation op = make(&comm, false);
      op.channels = 2;
      op.api_call = start_api_call(&comm, &op, false);
      launch(&comm, &op, 1);
      const uint64_t start = realtime() + MS / 10 + (late && !strcmp(late, "gpu") ? 20u * MS : 0);
      const uint64_t stop = start + MS / 10 > ends ? start + MS / 10 : ends; /* this machine held the rank up */
      wait_until(stop);
      for (int channel = 0; channel < op.channels; channel++)
        stop_channel(start_channel(&comm, op.handle, channel, start - behind), stop - behind);
    }
  }
  destroy(&comm);
}

/* Of a program that loads this file as a library: what rank 1 does instead of its call, HOW = "caller". */
void (*stalls)(void);

/* A rank of a job that hangs at step STEPS in the way HOW, if it is rank 1; the others go on to wait in NCCL. Steps of
 * 50 ms have one operation in each of two communicators, all ranks in both. The parent ends the process. */
static void hang(void) {
  enum { MS = 1000000 };
  const char *how = getenv("HOW");
  const uint64_t begin = (uint64_t)from_environment("BEGIN_MS") * MS;
  const int rank = (int)from_environment("RANK"), ranks = (int)from_environment("WORLD_SIZE");
  const int steps = (int)from_environment("STEPS"), to_blame = rank == 1;
#define HOW(NAME) (to_blame && !strcmp(how, NAME))
  struct comm comms[2] = {create(11, rank, ranks, "world"), create(22, rank, ranks, "data")};
  for (int step = 0; step <= steps; step++) {
    const uint64_t at = begin + 50ull * MS * (uint64_t)step;
    const bool hangs = step == steps;
    wait_until(at);
    mark(2, step, NULL, 1);
    if (hangs && HOW("stop")) raise(SIGSTOP);
    if (hangs && HOW("kill")) raise(SIGKILL);
    if (hangs && HOW("exit")) exit(0);
    if (hangs && HOW("sleep")) for (;;) pause();
    if (hangs && HOW("caller")) stalls();
    for (int i = 0; i < 2; i++) {
      struct comm *comm = &comms[hangs && HOW("order") ? 1 - i : i];
      struct operation op = make(comm, false);
      op.channels = 2;
      op.sequence = (uint64_t)step;
      if (hangs && HOW("operation")) op.function = 2; /* AllGather */
      if (hangs && HOW("size")) op.count *= 2;
      op.api_call = start_api_call(comm, &op, false);
      launch(comm, &op, 1);
      const uint64_t now = realtime();
      if (hangs && HOW("gpu")) for (;;) pause(); /* its GPU does not come to the operation */
      void *channels[2] = {start_channel(comm, op.handle, 0, now), start_channel(comm, op.handle, 1, now)};
      if (hangs) for (;;) pause(); /* it waits */
      wait_until(now + 2 * MS);
      for (int channel = 0; channel < 2; channel++) stop_channel(channels[channel], now + 2 * MS);
    }
  }
}

/* RCCL: times are ticks of 10 ns since the GPU began, and the stop of all channels but the first is 0. Steps of 100 ms
 * have an operation of 2 ms on three channels. */
static void ticks(void) {
  enum { MS = 1000000, TICK_NS = 10 };
  struct comm comm = create(42, 5, 8, NULL);
  const uint64_t begin = realtime(), since = begin - 3600ull * 1000 * MS; /* the GPU began an hour ago */
  for (int step = 0; step < 30; step++) {
    wait_until(begin + (uint64_t)step * 100 * MS);
    mark(2, step, NULL, 1);
    struct operation op = make(&comm, false);
    op.channels = 3;
    launch(&comm, &op, 1);
    void *channels[3];
    const uint64_t now = realtime();
    for (int i = 0; i < 3; i++) channels[i] = start_channel(&comm, op.handle, i, (now - since) / TICK_NS);
    wait_until(now + 2 * MS);
    for (int i = 0; i < 3; i++) stop_channel(channels[i], i ? 0 : (now - since + 2 * MS) / TICK_NS);
  }
  mark(2, 30, NULL, 1);
}

/* A stage of a pipeline, one of three: it receives from the one before it and sends to the one behind it, in so short
 * steps that NCCL does not measure the last ones. At step STEPS, rank 1 stops between the two; the others wait. */
static void pipeline(void) {
  const int rank = (int)from_environment("RANK"), ranks = (int)from_environment("WORLD_SIZE");
  const int steps = (int)from_environment("STEPS");
  struct comm comm = create(33, rank, ranks, "pipeline");
  for (int step = 0; step <= steps; step++) {
    mark(2, step, NULL, 1);
    for (int direction = -1; direction <= 1; direction += 2) { /* Recv, Send */
      const int peer = rank + direction;
      if (peer < 0 || peer >= ranks) continue;
      if (step == steps && rank == 1) for (;;) pause();
      struct operation op = make(&comm, true);
      op.function = direction < 0 ? 7 : 6;
      op.peer = peer;
      launch(&comm, &op, 1);
      if (step == steps) for (;;) pause(); /* it waits */
      run_channels(&comm, &op);
    }
  }
}

static uint64_t cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void bench(void) { /* prints nanoseconds of CPU a call, the best of 9 rounds */
  enum { ROUNDS = 9, COUNT = 4000, TRANSFERS = 100 };
  static struct operation ops[COUNT];
  struct comm comm = create(42, 0, 8, NULL);
  double best[6] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9};
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t times[7] = {cpu_ns()};
    for (int i = 0; i < COUNT; i++) {
      ops[i] = make(&comm, false);
      ops[i].channels = 24;
      ops[i].api_call = start_api_call(&comm, &ops[i], false);
      launch(&comm, &ops[i], 1);
    }
    times[1] = cpu_ns();
    for (int i = 0; i < COUNT; i++) run_channels(&comm, &ops[i]);
    times[2] = cpu_ns();
    for (int i = 0; i < COUNT; i++) mark(2, i, NULL, 0);
    times[3] = cpu_ns();
    for (int i = 0; i < COUNT; i++) { struct timespec now; clock_gettime(CLOCK_REALTIME, &now); }
    times[4] = cpu_ns();
    for (int i = 0; i < COUNT; i++) { /* the agent reads: else all are dropped */
      if (i % 64 == 0) read_all();
      run_proxy(&comm, &ops[i], 0, 1, true, TRANSFERS, 1 << 19);
    }
    times[5] = cpu_ns();
    for (int i = 0; i < COUNT; i++) { /* of an operation that is not chosen */
      struct operation other = ops[i];
      other.handle = NULL;
      run_proxy(&comm, &other, 0, 1, true, TRANSFERS, 1 << 19);
    }
    times[6] = cpu_ns();
    for (int i = 0; i < 6; i++) {
      double each = (double)(times[i + 1] - times[i]) / COUNT;
      if (each < best[i]) best[i] = each;
    }
    read_all();
  }
  printf("launch of a collective %.0f ns, its 24 channels %.0f ns (%.1f ns each), mark %.0f ns, clock %.0f ns, a transfer %.0f ns "
         "and one of an operation that is not chosen %.1f ns\n",
         best[0], best[1], best[1] / 24, best[2], best[3], best[4] / TRANSFERS, best[5] / TRANSFERS);
}

int main(int count, char **arguments) {
  static const struct { const char *name; void (*run)(void); } scenarios[] = {
    {"one", one}, {"transfers", transfers}, {"copies", copies}, {"abandoned", abandoned}, {"links", links}, {"chosen", chosen}, {"steps", steps}, {"refilled", refilled}, {"light_fork", light_fork},
    {"grouped", grouped}, {"ticks", ticks}, {"drift", drift}, {"full", full}, {"damaged", damaged}, {"unknown", unknown}, {"forked", forked}, {"killed", killed},
    {"churn", churn}, {"many", many}, {"reopened", reopened}, {"marks", marks}, {"paused", paused}, {"pace", pace}, {"graph", graph}, {"threads", threads}, {"race", race},
    {"chain", chain}, {"job", job}, {"hang", hang}, {"pipeline", pipeline}, {"bench", bench}};
  if (count != 4) return 3;
  version = atoi(arguments[2]);
  load(arguments[1]);
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
    if (!strcmp(scenarios[i].name, arguments[3])) return scenarios[i].run(), 0;
  return 2;
}
