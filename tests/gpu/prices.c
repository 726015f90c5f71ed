/* What each way of using CUPTI costs a launch: one library, one way (mode) a process. Built and driven by prices.py.
 *
 * CUPTI's headers come from its wheel; its functions are looked up in the libcupti that the process has mapped, so one
 * build runs with every version. A mode that a version lacks answers with a negative number or CUPTI's error. */
#define _GNU_SOURCE
#include <cuda.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <cupti_version.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MISSING = -1, UNKNOWN_MODE = -2, FLUSH_US = 250000, NODES = 100 };

static void *cupti, *cuda;
static CUpti_SubscriberHandle subscriber;
static _Atomic uint64_t buffers, bytes, drops, launches, records, kernels;
static size_t buffer_bytes = 1 << 20;
static atomic_int counting; /* also walk through the records of each buffer */
static size_t record_size;  /* of a kernel's user-defined record, as CUPTI hands it out */

static void *find(void *library, const char *name) {
  void *function = dlsym(library, name);
  if (!function) fprintf(stderr, "missing: %s\n", name);
  return function;
}

#define CUPTI(name, ...)                                                                                               \
  ({                                                                                                                   \
    __typeof__(&name) function_ = (__typeof__(&name))find(cupti, #name);                                               \
    function_ ? (int)function_(__VA_ARGS__) : MISSING;                                                                 \
  })
#define TRY(expression)                                                                                                \
  do {                                                                                                                 \
    int result_ = (expression);                                                                                        \
    if (result_) return fprintf(stderr, "%s: %d\n", #expression, result_), result_;                                    \
  } while (0)

static void request(uint8_t **buffer, size_t *size, size_t *most) {
  *size = buffer_bytes, *most = 0;
  if (posix_memalign((void **)buffer, 8, buffer_bytes)) *buffer = NULL, *size = 0;
}

/* Calls that launched, timed by callbacks: what a window with launches records of each. */
enum { TIMED = 1 << 20 };
static struct { uint64_t begin, end; uint32_t correlation, thread; } timed[TIMED];
static _Atomic uint64_t timed_calls, launched; /* `launched`: kernel records whose call is among them */

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void timed_callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info) {
  const CUpti_CallbackData *call = info;
  (void)data, (void)domain, (void)id;
  if (call->callbackSite == CUPTI_API_ENTER) {
    *call->correlationData = clock_ns(CLOCK_REALTIME);
    return;
  }
  uint32_t at = call->correlationId % TIMED;
  timed[at].begin = *call->correlationData, timed[at].end = clock_ns(CLOCK_REALTIME);
  timed[at].thread = (uint32_t)pthread_self(), timed[at].correlation = call->correlationId;
  atomic_fetch_add_explicit(&timed_calls, 1, memory_order_relaxed);
}

static void walk(uint8_t *buffer, size_t valid) {
  CUpti_Activity *record = NULL;
  while (!(subscriber && record_size ? CUPTI(cuptiActivityGetNextRecord_v2, subscriber, buffer, valid, &record)
                                     : CUPTI(cuptiActivityGetNextRecord, buffer, valid, &record))) {
    records++;
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && record->kind != CUPTI_ACTIVITY_KIND_KERNEL) continue;
    kernels++;
    uint32_t correlation = ((CUpti_ActivityKernel9 *)record)->correlationId;
    launched += timed_calls && timed[correlation % TIMED].correlation == correlation;
  }
}

static void returned(uint8_t *buffer, size_t valid) {
  buffers++;
  bytes += valid;
  if (counting) walk(buffer, valid);
  free(buffer);
}

static void complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  size_t lost = 0;
  (void)size;
  if (!CUPTI(cuptiActivityGetNumDroppedRecords, context, stream, &lost)) drops += lost;
  returned(buffer, valid);
}

static void request_v2(uint8_t **buffer, size_t *size, size_t *most, CUpti_BufferCallbackRequestInfo *info) {
  (void)info;
  request(buffer, size, most);
}

static void complete_v2(uint8_t *buffer, size_t size, size_t valid, CUpti_BufferCallbackCompleteInfo *info) {
  (void)size;
  for (size_t i = 0; info && i < info->numRecordLayouts; i++) {
    CUpti_ActivityRecordLayout *layout = info->ppRecordLayouts[i];
    if (layout && !record_size) {
      record_size = layout->recordSize;
      for (size_t j = 0; j < layout->numFields; j++)
        fprintf(stderr, "layout %zu: field %d at %zu, %zu bytes\n", layout->recordSize, layout->pEntries[j].fieldId,
                layout->pEntries[j].offset, layout->pEntries[j].size);
    }
  }
  returned(buffer, valid);
}

static void *flush(void *unused) {
  for (;; usleep(FLUSH_US)) CUPTI(cuptiActivityFlushAll, 0);
  return unused;
}

/* Count launches by the address of the function that is launched, as the tier without records would. */
enum { SLOTS = 4096 };
static _Atomic uint64_t slots[SLOTS][2];

static void callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info) {
  const CUpti_CallbackData *call = info;
  (void)data, (void)domain, (void)id;
  if (call->callbackSite != CUPTI_API_ENTER) return;
  uint64_t key = *(const uint64_t *)call->functionParams; /* a launch's first parameter: its function or config */
  launches++;
  for (uint64_t i = key * 0x9E3779B97F4A7C15u >> 52, end = i + 8; i < end; i++) {
    uint64_t seen = atomic_load_explicit(&slots[i % SLOTS][0], memory_order_relaxed);
    if (!seen) atomic_store(&slots[i % SLOTS][0], seen = key);
    if (seen == key) {
      atomic_fetch_add_explicit(&slots[i % SLOTS][1], 1, memory_order_relaxed);
      return;
    }
  }
}

static void no_callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info) {
  (void)data, (void)domain, (void)id, (void)info;
}

static const int driver_launches[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
                                      CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch};
static const int runtime_launches[] = {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
                                       CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
                                       CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000};

static int callbacks(CUpti_CallbackFunc function, CUpti_CallbackDomain domain, const int *ids) {
  if (!subscriber) TRY(CUPTI(cuptiSubscribe, &subscriber, function, NULL));
  for (int i = 0; ids && i < 3; i++) TRY(CUPTI(cuptiEnableCallback, 1, subscriber, domain, (CUpti_CallbackId)ids[i]));
  return 0;
}

static int classic(const CUpti_ActivityKind *kinds, int count) {
  pthread_t thread;
  TRY(CUPTI(cuptiActivityRegisterCallbacks, request, complete));
  for (int i = 0; i < count; i++) TRY(CUPTI(cuptiActivityEnable, kinds[i]));
  return pthread_create(&thread, NULL, flush, NULL);
}
#define CLASSIC(...) classic((CUpti_ActivityKind[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static int set(CUpti_ActivityAttribute attribute, size_t size, void *value, int v2) {
  return v2 ? CUPTI(cuptiActivitySetAttribute_v2, subscriber, attribute, &size, value)
            : CUPTI(cuptiActivitySetAttribute, attribute, &size, value);
}

/* The facts that drumline publishes of a kernel; the shorter selections are its first ones. */
static int fields[] = {KERNEL_FIELD_KIND, KERNEL_FIELD_START, KERNEL_FIELD_END, KERNEL_FIELD_NAME,
  KERNEL_FIELD_DEVICE_ID, KERNEL_FIELD_STREAM_ID, KERNEL_FIELD_CORRELATION_ID, KERNEL_FIELD_GRAPH_NODE_ID,
  KERNEL_FIELD_GRID_X, KERNEL_FIELD_GRID_Y, KERNEL_FIELD_GRID_Z, KERNEL_FIELD_BLOCK_X, KERNEL_FIELD_BLOCK_Y,
  KERNEL_FIELD_BLOCK_Z, KERNEL_FIELD_REGISTERS_PER_THREAD, KERNEL_FIELD_STATIC_SHARED_MEMORY,
  KERNEL_FIELD_DYNAMIC_SHARED_MEMORY};

static int selected(CUpti_ActivityKind kind, const int *chosen, size_t count) {
  CUpti_ActivityConfig config = {.structSize = CUpti_ActivityConfig_STRUCT_SIZE};
  config.fieldSelection.structSize = sizeof config.fieldSelection;
  config.fieldSelection.numFields = count;
  config.fieldSelection.pFieldIds = (int *)chosen;
  return CUPTI(cuptiActivityEnable_v2, subscriber, kind, &config);
}

static const int graph_fields[] = {GRAPH_TRACE_FIELD_KIND, GRAPH_TRACE_FIELD_START, GRAPH_TRACE_FIELD_END,
  GRAPH_TRACE_FIELD_DEVICE_ID, GRAPH_TRACE_FIELD_STREAM_ID, GRAPH_TRACE_FIELD_CORRELATION_ID,
  GRAPH_TRACE_FIELD_GRAPH_ID};

static int user_defined(const int *chosen, size_t count, int several, int graphs) {
  pthread_t thread;
  uint8_t on = 1;
  CUpti_SubscriberParams params = {.structSize = CUpti_SubscriberParams_STRUCT_SIZE, .subscriberName = "prices",
                                   .allowMultipleSubscribers = (uint8_t)several};
  TRY(CUPTI(cuptiSubscribe_v2, &subscriber, no_callback, NULL, &params));
  TRY(set(CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS, sizeof on, &on, 1));
  TRY(CUPTI(cuptiActivityRegisterCallbacks_v2, subscriber, request_v2, complete_v2));
  if (graphs)
    TRY(selected(CUPTI_ACTIVITY_KIND_GRAPH_TRACE, graph_fields, sizeof graph_fields / sizeof *graph_fields));
  TRY(selected(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, chosen, count));
  return pthread_create(&thread, NULL, flush, NULL);
}

/* Begin a mode; 0, CUPTI's error, or a negative number. Called once, before the first launch that is timed. */
int price_begin(const char *mode, const char *library) {
  const CUpti_ActivityKind kernel = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  const int all = sizeof fields / sizeof *fields;
  uint8_t off = 0;
  int every[KERNEL_FIELD_MAX];
  cupti = dlopen(library, RTLD_NOW), cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cupti || !cuda) return MISSING;
  for (int i = 0; i < KERNEL_FIELD_MAX; i++) every[i] = i;
#define MODE(name) if (!strcmp(mode, name))
  MODE("plain") return 0;
  MODE("subscriber") return callbacks(no_callback, 0, NULL);
  MODE("driver callbacks") return callbacks(callback, CUPTI_CB_DOMAIN_DRIVER_API, driver_launches);
  MODE("runtime callbacks") return callbacks(callback, CUPTI_CB_DOMAIN_RUNTIME_API, runtime_launches);
  MODE("kernels") return CLASSIC(kernel);
  MODE("kernels, serial") return CLASSIC(CUPTI_ACTIVITY_KIND_KERNEL);
  MODE("kernels, buffers of 64 KB") return buffer_bytes = 1 << 16, CLASSIC(kernel);
  MODE("kernels, buffers of 8 MB") return buffer_bytes = 1 << 23, CLASSIC(kernel);
  MODE("kernels, one buffer of all threads") {
    TRY(set(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, sizeof off, &off, 0));
    return CLASSIC(kernel);
  }
  MODE("kernels, graphs whole") return CLASSIC(CUPTI_ACTIVITY_KIND_GRAPH_TRACE, kernel);
  MODE("copies") return CLASSIC(CUPTI_ACTIVITY_KIND_MEMCPY);
  MODE("markers") return CLASSIC(CUPTI_ACTIVITY_KIND_MARKER);
  MODE("runtime calls") return CLASSIC(CUPTI_ACTIVITY_KIND_RUNTIME);
  MODE("as recorded today")
    return CLASSIC(CUPTI_ACTIVITY_KIND_MEMCPY2, kernel, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MARKER);
  MODE("kernels and calls") return CLASSIC(kernel, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME);
  MODE("kernels and driver calls") return CLASSIC(kernel, CUPTI_ACTIVITY_KIND_DRIVER);
  MODE("kernels and runtime calls") return CLASSIC(kernel, CUPTI_ACTIVITY_KIND_RUNTIME);
  MODE("kernels and timed driver launches") {
    TRY(callbacks(timed_callback, CUPTI_CB_DOMAIN_DRIVER_API, driver_launches));
    return CLASSIC(kernel);
  }
  MODE("kernels and timed runtime launches") {
    TRY(callbacks(timed_callback, CUPTI_CB_DOMAIN_RUNTIME_API, runtime_launches));
    return CLASSIC(kernel);
  }
  MODE("kernels and timed launches of both") {
    TRY(callbacks(timed_callback, CUPTI_CB_DOMAIN_DRIVER_API, driver_launches));
    TRY(callbacks(timed_callback, CUPTI_CB_DOMAIN_RUNTIME_API, runtime_launches));
    return CLASSIC(kernel);
  }
  MODE("hardware times") {
    TRY(CUPTI(cuptiActivityEnableHWTrace, 1));
    return CLASSIC(kernel);
  }
  MODE("4 fields") return user_defined(fields, 4, 0, 0);
  MODE("8 fields") return user_defined(fields, 8, 0, 0);
  MODE("17 fields") return user_defined(fields, (size_t)all, 0, 0);
  MODE("17 fields, several subscribers") return user_defined(fields, (size_t)all, 1, 0);
  MODE("17 fields, graphs whole") return user_defined(fields, (size_t)all, 0, 1);
  MODE("all fields") return user_defined(every, KERNEL_FIELD_MAX, 0, 0);
  MODE("no times") { /* name and correlation */
    static const int two[] = {KERNEL_FIELD_KIND, KERNEL_FIELD_NAME, KERNEL_FIELD_CORRELATION_ID};
    return user_defined(two, 3, 0, 0);
  }
  return UNKNOWN_MODE;
}

/* Switch kernel records off (`how` = 0) or end CUPTI (1). */
int price_end(int how) {
  if (how) return CUPTI(cuptiFinalize);
  return subscriber ? CUPTI(cuptiActivityDisable_v2, subscriber, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, NULL)
                    : CUPTI(cuptiActivityDisable, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

/* Flush and fill: buffers, bytes, drops, launches seen, records, kernel records, those of timed calls, timed calls, size
 * of a user-defined record. */
void price_counts(uint64_t *out) {
  if (cupti) CUPTI(cuptiActivityFlushAll, 0);
  uint64_t now[] = {buffers, bytes, drops, launches, records, kernels, launched, timed_calls, record_size};
  memcpy(out, now, sizeof now);
}

void price_count_records(int on) { counting = on; }

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry empty(.param .u64 a, .param .u32 b, .param .u32 c) { ret; }\n";
static CUfunction empty;
static CUgraphExec graph;
static CUstream stream;
static __typeof__(&cuLaunchKernel) launch;
static __typeof__(&cuGraphLaunch) replay;
static __typeof__(&cuStreamSynchronize) wait_for;

#define CUDA(name, symbol, ...) ((__typeof__(&name))find(cuda, symbol))(__VA_ARGS__)

/* Load an empty kernel and a graph of NODES of it into the current context. Call it after price_begin. */
int price_load(void) {
  CUmodule module;
  CUgraph made;
  uint64_t a = 0;
  uint32_t b = 0;
  void *arguments[] = {&a, &b, &b};
  CUDA_KERNEL_NODE_PARAMS node = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                                  .blockDimZ = 1, .kernelParams = arguments};
  launch = (__typeof__(launch))find(cuda, "cuLaunchKernel");
  replay = (__typeof__(replay))find(cuda, "cuGraphLaunch");
  wait_for = (__typeof__(wait_for))find(cuda, "cuStreamSynchronize");
  TRY((int)CUDA(cuStreamCreate, "cuStreamCreate", &stream, CU_STREAM_NON_BLOCKING));
  TRY((int)CUDA(cuModuleLoadData, "cuModuleLoadData", &module, ptx));
  TRY((int)CUDA(cuModuleGetFunction, "cuModuleGetFunction", &empty, module, "empty"));
  TRY((int)CUDA(cuGraphCreate, "cuGraphCreate", &made, 0));
  node.func = empty;
  CUgraphNode last, next;
  for (int i = 0; i < NODES; i++, last = next)
    TRY((int)CUDA(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2", &next, made, i ? &last : NULL, i ? 1 : 0, &node));
  return (int)CUDA(cuGraphInstantiate, "cuGraphInstantiateWithFlags", &graph, made, 0);
}

/* Return the mean time of one of `count` launches, or replays of the graph, with the wait at the end; ns. */
double price_launches(int count, int replays) {
  uint64_t a = 0;
  uint32_t b = 0;
  void *arguments[] = {&a, &b, &b};
  uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < count; i++) {
    if (replays) replay(graph, stream);
    else launch(empty, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
    if (i % 512 == 511) wait_for(stream);
  }
  wait_for(stream);
  return (double)(clock_ns(CLOCK_MONOTONIC) - begin) / count;
}
