/* NCCL's profiler interface, versions 1 to 7, as far as this plugin reads it: numbers, structs, exported symbols.
 *
 * Declared from NCCL's documented binary interface. NCCL 2.23 has version 1, 2.24 and 2.25 version 2, 2.26 version 3,
 * 2.27 version 4, 2.28 version 5, 2.29 and 2.30 version 6, 2.31 version 7; each also takes plugins of older versions. */
#ifndef DRUMLINE_NCCL_ABI_H
#define DRUMLINE_NCCL_ABI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { OLDEST = 1, NEWEST = 7 };

typedef int result; /* ncclResult_t; 0 = ncclSuccess */
typedef void (*nccl_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* Kinds of events, bits of the activation mask. No number changed between versions. */
enum {
  KIND_GROUP = 1 << 0, KIND_COLL = 1 << 1, KIND_P2P = 1 << 2, KIND_PROXY_OP = 1 << 3, KIND_PROXY_STEP = 1 << 4,
  KIND_PROXY_CONTROL = 1 << 5,
  KIND_KERNEL_CHANNEL = 1 << 6, KIND_NET = 1 << 7,                               /* from version 3 on */
  KIND_GROUP_API = 1 << 8, KIND_COLL_API = 1 << 9, KIND_P2P_API = 1 << 10, KIND_LAUNCH = 1 << 11, /* 5 */
  KIND_COPY = 1 << 12, KIND_COPY_SYNC = 1 << 13, KIND_COPY_BATCH = 1 << 14,                        /* 6: copy engines */
  KIND_KERNEL_PHASE = 1 << 15,                                                                     /* 7 */
};
/* States that are read, in versions 4 and later. 1 to 3 have neither waits for the peer nor the bytes of a step. */
enum {
  STATE_SEND_GPU_WAIT = 8, STATE_SEND_WAIT = 9, STATE_RECEIVE_WAIT = 10, STATE_RECEIVE_FLUSH_WAIT = 11,
  STATE_RECEIVE_GPU_WAIT = 12, /* of proxy steps */
  STATE_SEND_PEER_WAIT = 20, STATE_KERNEL_CHANNEL_STOP = 22,
};

/* Collectives. Version 1 has numbers where later versions have names. Identity of the communicator: here up to version
 * 3, from version 4 on an argument of `init`. */
struct coll_v1 {
  const char *name; uint64_t comm_hash, sequence; uint8_t func; const void *send; void *receive; size_t count; int root;
  uint8_t datatype; uint32_t op; size_t traffic; uint8_t most_channels, warps, algo, proto; int collnet, nvls;
};
struct coll_v2 {
  const char *name; uint64_t comm_hash, sequence; const char *func; const void *send; void *receive; size_t count;
  int root; const char *datatype; size_t traffic; uint8_t most_channels, warps; const char *algo, *proto;
};
struct coll_v3 {
  const char *name; uint64_t comm_hash, sequence; const char *func; const void *send; void *receive; size_t count;
  int root; const char *datatype; uint8_t most_channels, warps; const char *algo, *proto;
};
struct coll_v4 { /* from 5 on with parent_group behind it; 7 has more behind that, which is not read */
  uint64_t sequence; const char *func; const void *send; void *receive; size_t count; int root; const char *datatype;
  uint8_t channels, warps; const char *algo, *proto; void *parent_group;
};

struct copies { /* a collective by copy engines, from version 6 on; more lies behind it */
  uint64_t sequence; const char *func; const void *send; void *receive; size_t count; int root; const char *datatype;
};

/* Point-to-point operations. */
struct p2p_v1 {
  const char *name; uint64_t comm_hash; uint8_t func; void *buffer; uint8_t datatype; size_t count; int peer;
};
struct p2p_v2 { /* and 3 */
  const char *name; uint64_t comm_hash; const char *func; void *buffer; const char *datatype; size_t count; int peer;
};
struct p2p_v4 { /* likewise */
  const char *func; void *buffer; const char *datatype; size_t count; int peer; uint8_t channels; void *parent_group;
};

/* Calls of the API, from version 5 on. NCCL tells of them whenever collectives or point-to-point operations are asked
 * for. They are the parents of operations; of captured ones also at each replay. */
struct coll_api { const char *func; size_t count; const char *datatype; int root; void *stream; bool captured; };
struct p2p_api { const char *func; size_t count; const char *datatype; void *stream; bool captured; };

/* What a proxy thread does for an operation on one channel, and one transfer of it. */
struct proxy_op { pid_t pid; uint8_t channel; int peer, steps, chunk, is_send; };
struct proxy_step { int step; };
struct kernel_channel { uint8_t channel; uint64_t gpu_ns; }; /* version 3 has no time */

/* A descriptor. `type` is one byte up to version 4 and eight bytes from version 5 on; `parent` lies behind both. */
struct descriptor {
  union { uint8_t narrow; uint64_t wide; } type;
  void *parent;
  int rank;
  union {
    struct coll_v1 coll1; struct coll_v2 coll2; struct coll_v3 coll3; struct coll_v4 coll4;
    struct p2p_v1 p2p1; struct p2p_v2 p2p2; struct p2p_v4 p2p4;
    struct coll_api coll_api; struct p2p_api p2p_api; struct copies copies;
    struct proxy_op proxy_op; struct proxy_step proxy_step;
    struct kernel_channel kernel;
  };
};

union state_arguments { struct { uint64_t gpu_ns; } kernel; struct { size_t bytes; } proxy_step; }; /* as far as they are read */

typedef result (*start_event)(void *context, void **handle, struct descriptor *event);
typedef result (*stop_event)(void *handle);
typedef result (*record_state)(void *handle, int state, union state_arguments *arguments);
typedef result (*finalize_context)(void *context);

/* The exported structs, ncclProfiler_v1 to ncclProfiler_v7. Only `init` differs: 1 to 3 name no communicator, 4 and 5
 * order their arguments differently. */
struct profiler_v1 { /* and 2, 3 */
  const char *name;
  result (*init)(void **context, int *mask);
  start_event start; stop_event stop; record_state state; finalize_context finalize;
};
struct profiler_v4 {
  const char *name;
  result (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_id, int nodes, int ranks, int rank,
                 nccl_log log);
  start_event start; stop_event stop; record_state state; finalize_context finalize;
};
struct profiler_v5 { /* and later */
  const char *name;
  result (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks, int rank,
                 nccl_log log);
  start_event start; stop_event stop; record_state state; finalize_context finalize;
};
#endif
