/* Compiles where the plugin reads each member where NCCL has it. The numbers are those of NCCL's public headers
 * (src/include/plugin/profiler/profiler_v1.h to v7.h, 2.29 and, for 7, 2.31), on 64-bit machines. */
#include "abi.h"
#include "nccl_interface.h"

/* Member of the plugin's descriptor, member of a version's, offset in both. */
#define AT(V, OURS, THEIRS, OFFSET) \
  _Static_assert(offsetof(struct descriptor, OURS) == OFFSET, #OURS); \
  _Static_assert(offsetof(descriptor_v##V, THEIRS) == OFFSET, #V " " #THEIRS)
#define EVENT(V) AT(V, type, type, 0); AT(V, parent, parentObj, 8); AT(V, rank, rank, 16)
EVENT(1); EVENT(2); EVENT(3); EVENT(4); EVENT(5); EVENT(6); EVENT(7);

AT(1, coll1.comm_hash, coll.commHash, 32); AT(1, coll1.sequence, coll.seqNumber, 40); AT(1, coll1.func, coll.func, 48);
AT(1, coll1.count, coll.count, 72); AT(1, coll1.root, coll.root, 80); AT(1, coll1.datatype, coll.datatype, 84);
AT(1, coll1.algo, coll.algo, 106); AT(1, coll1.proto, coll.proto, 107);
AT(1, p2p1.comm_hash, p2p.commHash, 32); AT(1, p2p1.func, p2p.func, 40); AT(1, p2p1.datatype, p2p.datatype, 56);
AT(1, p2p1.count, p2p.count, 64); AT(1, p2p1.peer, p2p.peer, 72);

#define OLD(V, C, ALGO, PROTO) \
  AT(V, C.comm_hash, coll.commHash, 32); AT(V, C.sequence, coll.seqNumber, 40); AT(V, C.func, coll.func, 48); \
  AT(V, C.count, coll.count, 72); AT(V, C.root, coll.root, 80); AT(V, C.datatype, coll.datatype, 88); \
  AT(V, C.algo, coll.algo, ALGO); AT(V, C.proto, coll.proto, PROTO); \
  AT(V, p2p2.comm_hash, p2p.commHash, 32); AT(V, p2p2.func, p2p.func, 40); AT(V, p2p2.datatype, p2p.datatype, 56); \
  AT(V, p2p2.count, p2p.count, 64); AT(V, p2p2.peer, p2p.peer, 72)
OLD(2, coll2, 112, 120); OLD(3, coll3, 104, 112);

#define NEW(V) \
  AT(V, coll4.sequence, coll.seqNumber, 24); AT(V, coll4.func, coll.func, 32); AT(V, coll4.count, coll.count, 56); \
  AT(V, coll4.root, coll.root, 64); AT(V, coll4.datatype, coll.datatype, 72); \
  AT(V, coll4.channels, coll.nChannels, 80); AT(V, coll4.algo, coll.algo, 88); AT(V, coll4.proto, coll.proto, 96); \
  AT(V, p2p4.func, p2p.func, 24); AT(V, p2p4.datatype, p2p.datatype, 40); AT(V, p2p4.count, p2p.count, 48); \
  AT(V, p2p4.peer, p2p.peer, 56); AT(V, p2p4.channels, p2p.nChannels, 60); \
  AT(V, proxy_op.pid, proxyOp.pid, 24); AT(V, proxy_op.channel, proxyOp.channelId, 28); \
  AT(V, proxy_op.peer, proxyOp.peer, 32); AT(V, proxy_op.steps, proxyOp.nSteps, 36); \
  AT(V, proxy_op.chunk, proxyOp.chunkSize, 40); AT(V, proxy_op.is_send, proxyOp.isSend, 44); \
  AT(V, proxy_step.step, proxyStep.step, 24); \
  AT(V, kernel.channel, kernelCh.channelId, 24); AT(V, kernel.gpu_ns, kernelCh.pTimer, 32)
NEW(4); NEW(5); NEW(6); NEW(7);

#define CALLS(V) \
  AT(V, coll4.parent_group, coll.parentGroup, 104); AT(V, p2p4.parent_group, p2p.parentGroup, 64); \
  AT(V, coll_api.captured, collApi.graphCaptured, 64); AT(V, p2p_api.captured, p2pApi.graphCaptured, 56)
CALLS(5); CALLS(6); CALLS(7);

#define COPIES(V) \
  AT(V, copies.sequence, ceColl.seqNumber, 24); AT(V, copies.func, ceColl.func, 32); AT(V, copies.count, ceColl.count, 56); \
  AT(V, copies.root, ceColl.root, 64); AT(V, copies.datatype, ceColl.datatype, 72)
COPIES(6); COPIES(7);

/* What is not read, but lies behind it. */
_Static_assert(offsetof(descriptor_v7, coll.kernelVariant) == 112 && offsetof(descriptor_v7, coll.isSymColl) == 120 &&
               offsetof(descriptor_v7, coll.userTag) == 128 && offsetof(descriptor_v7, p2p.userTag) == 72 &&
               offsetof(descriptor_v7, collApi.userTag) == 72 && offsetof(descriptor_v7, p2pApi.userTag) == 64 &&
               offsetof(descriptor_v7, kernelPhase.phaseId) == 25 && offsetof(descriptor_v7, kernelPhase.pTimer) == 40, "7");
_Static_assert(offsetof(union state_arguments, proxy_step.bytes) == offsetof(state_args, proxyStep.transSize) &&
               offsetof(union state_arguments, kernel.gpu_ns) == offsetof(state_args, kernelCh.pTimer), "states");
_Static_assert(sizeof(struct profiler_v1) == 48 && sizeof(struct profiler_v4) == 48 && sizeof(struct profiler_v5) == 48 &&
               sizeof(profiler) == 48, "exported structs");
_Static_assert(KIND_GROUP == GROUP && KIND_COLL == COLL && KIND_P2P == P2P && KIND_PROXY_OP == PROXY_OP &&
               KIND_PROXY_STEP == PROXY_STEP && KIND_KERNEL_CHANNEL == KERNEL_CH && KIND_GROUP_API == GROUP_API &&
               KIND_COLL_API == COLL_API && KIND_P2P_API == P2P_API && KIND_KERNEL_PHASE == KERNEL_PHASE, "kinds");
_Static_assert((int)STATE_SEND_GPU_WAIT == SEND_GPU_WAIT && (int)STATE_SEND_PEER_WAIT == SEND_PEER_WAIT &&
               (int)STATE_SEND_WAIT == SEND_WAIT && (int)STATE_RECEIVE_WAIT == RECV_WAIT &&
               (int)STATE_RECEIVE_FLUSH_WAIT == RECV_FLUSH_WAIT && (int)STATE_RECEIVE_GPU_WAIT == RECV_GPU_WAIT &&
               (int)STATE_KERNEL_CHANNEL_STOP == KERNEL_CH_STOP, "states");
