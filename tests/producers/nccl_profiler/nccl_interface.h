/* NCCL's profiler interface as NCCL has it, declared apart from the plugin's abi.h: a fault there shows in the tests. */
#ifndef NCCL_INTERFACE_H
#define NCCL_INTERFACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, PROXY_CTRL = 32, KERNEL_CH = 64, NET = 128, GROUP_API = 256, COLL_API = 512, P2P_API = 1024,
       KERNEL_LAUNCH = 1 << 11, CE_COLL = 1 << 12, CE_SYNC = 1 << 13, CE_BATCH = 1 << 14, KERNEL_PHASE = 1 << 15 };
enum { KERNEL_CH_STOP = 22, KERNEL_PHASE_STOP = 31, PROXY_CTRL_IDLE = 13, CE_COLL_COMPLETE = 26, NET_UPDATE = 21, SEND_GPU_WAIT = 8, SEND_WAIT = 9, RECV_WAIT = 10, RECV_FLUSH_WAIT = 11, RECV_GPU_WAIT = 12,
       PROXY_OP_IN_PROGRESS = 19,
       SEND_PEER_WAIT = 20 };
typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

typedef struct { pid_t pid; uint8_t channelId; int peer, nSteps, chunkSize, isSend; } proxy_op;

typedef struct {
  uint8_t type; void *parentObj; int rank;
  union {
    struct { const char *name; uint64_t commHash, seqNumber; uint8_t func; void const *sendBuff; void *recvBuff; size_t count;
             int root; uint8_t datatype; uint32_t op; size_t trafficBytes; uint8_t nMaxChannels, nWarps, algo, proto;
             int isCollnet, isNvls; } coll;
    struct { const char *name; uint64_t commHash; uint8_t func; void *buff; uint8_t datatype; size_t count; int peer; } p2p;
    proxy_op proxyOp;
  };
} descriptor_v1;

typedef struct {
  uint8_t type; void *parentObj; int rank;
  union {
    struct { const char *name; uint64_t commHash, seqNumber; const char *func; void const *sendBuff; void *recvBuff;
             size_t count; int root; const char *datatype; size_t trafficBytes; uint8_t nMaxChannels, nWarps;
             const char *algo, *proto; } coll;
    struct { const char *name; uint64_t commHash; const char *func; void *buff; const char *datatype; size_t count;
             int peer; } p2p;
    proxy_op proxyOp;
  };
} descriptor_v2;

typedef struct {
  uint8_t type; void *parentObj; int rank;
  union {
    struct { const char *name; uint64_t commHash, seqNumber; const char *func; void const *sendBuff; void *recvBuff;
             size_t count; int root; const char *datatype; uint8_t nMaxChannels, nWarps; const char *algo, *proto; } coll;
    struct { const char *name; uint64_t commHash; const char *func; void *buff; const char *datatype; size_t count;
             int peer; } p2p;
    proxy_op proxyOp;
    struct { uint8_t channelId; } kernelCh;
  };
} descriptor_v3;

typedef struct {
  uint8_t type; void *parentObj; int rank;
  union {
    struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root;
             const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; } coll;
    struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; } p2p;
    proxy_op proxyOp;
    struct { int step; } proxyStep;
    struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
  };
} descriptor_v4;

typedef struct { /* version 6 adds members of copy engines to the union, which is larger already */
  uint64_t type; void *parentObj; int rank;
  union {
    struct { bool graphCaptured; int groupDepth; } groupApi;
    struct { const char *func; size_t count; const char *datatype; int root; void *stream; bool graphCaptured; } collApi;
    struct { const char *func; size_t count; const char *datatype; void *stream; bool graphCaptured; } p2pApi;
    struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root;
             const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; void *parentGroup; } coll;
    struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels;
             void *parentGroup; } p2p;
    proxy_op proxyOp;
    struct { int step; } proxyStep;
    struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
    struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root;
             const char *datatype, *syncStrategy; bool intraBatchSync; uint32_t batchSize, numBatches, ceSeqNum;
             void *stream; } ceColl; /* version 6 */
  };
} descriptor_v5;
typedef descriptor_v5 descriptor_v6;

typedef struct {
  uint64_t type; void *parentObj; int rank;
  union {
    struct { bool graphCaptured; int groupDepth; } groupApi;
    struct { const char *func; size_t count; const char *datatype; int root; void *stream; bool graphCaptured; uint64_t userTag; } collApi;
    struct { const char *func; size_t count; const char *datatype; void *stream; bool graphCaptured; uint64_t userTag; } p2pApi;
    struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root;
             const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; void *parentGroup;
             const char *kernelVariant; bool isSymColl; uint64_t userTag; } coll;
    struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels;
             void *parentGroup; uint64_t userTag; } p2p;
    proxy_op proxyOp;
    struct { int step; } proxyStep;
    struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
    struct { uint64_t seqNumber; const char *func; void const *sendBuff; void *recvBuff; size_t count; int root;
             const char *datatype, *syncStrategy; bool intraBatchSync; uint32_t batchSize, numBatches, ceSeqNum;
             void *stream; uint64_t userTag; } ceColl;
    struct { uint8_t channelId, phaseId; const char *phaseName; uint64_t pTimer; } kernelPhase;
  };
} descriptor_v7;

typedef union {
  struct { size_t transSize; int steps; } proxyOp; /* up to version 3 */
  struct { size_t transSize; } proxyStep;          /* from version 4 on */
  struct { int appendedProxyOps; } proxyCtrl;
  struct { uint64_t pTimer; } kernelCh;
} state_args;

/* All versions have these members behind `init`, with a descriptor of their version. */
#define CALLBACKS \
  int (*startEvent)(void *context, void **handle, void *descriptor); \
  int (*stopEvent)(void *handle); \
  int (*recordEventState)(void *handle, int state, state_args *args); \
  int (*finalize)(void *context)
typedef struct { const char *name; void *init; CALLBACKS; } profiler;
typedef int (*init_v1)(void **context, int *mask); /* and 2, 3 */
typedef int (*init_v4)(void **, int *, const char *name, uint64_t id, int nodes, int ranks, int rank, logger);
typedef int (*init_v5)(void **, uint64_t id, int *, const char *name, int nodes, int ranks, int rank, logger); /* and later */
#endif
