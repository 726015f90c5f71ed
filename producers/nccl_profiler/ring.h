/* The file that the NCCL operations of one process are written to. `producers/rings/ring_file.py` has the same numbers.
 *
 *   byte 0      header: 64-bit words (enum header); from byte 512 on the variables of the environment that name the job
 *   byte 4096   MAX_COMMS communicators
 *   behind it   CAPACITY records, a ring: position p lies in place p % CAPACITY
 *
 * All numbers are little-endian. The process writes through a shared mapping, so nothing is lost when it is killed.
 * The agent reads with pread, and writes two words, READ and TIMES_REQUESTED, with pwrite. A full ring drops records and counts them:
 * nobody waits. While the process lives it holds flock(LOCK_EX) on the file, by its mapping.
 *
 * A reader takes the record of position p when `number` is p + 1, and looks up its communicator afterwards: an entry is
 * filled before the first record that refers to it, and used again only when READ has passed the last one. It never
 * moves READ beyond WRITTEN. */
#ifndef DRUMLINE_RING_H
#define DRUMLINE_RING_H
#include <stdatomic.h>
#include <stdint.h>

enum { LAYOUT = 1, HEADER_BYTES = 4096, COMM_BYTES = 96, RECORD_BYTES = 96, MAX_COMMS = 1024 };
enum { COMM_NAME_BYTES = 56, MARK_NAME_BYTES = 32, NO_COMM = 0xffff };
#define RING_MAGIC 0x676e69725f6c6d64ull /* "dml_ring" */

enum header { /* words */
  MAGIC = 0,      /* written last: a file without it is not ready */
  VERSION = 1,    /* LAYOUT */
  PID = 2,        /* as the process sees itself: in a container, not the host's number */
  CREATED_NS = 3,
  CAPACITY = 4,   /* records in the ring, a power of two */
  WRITTEN = 5,    /* records claimed so far */
  READ = 6,       /* records that the agent has finished with */
  DROPPED = 7,    /* operations and marks that met a full ring */
  UNKNOWN = 8,    /* events without a known parent, of another process, or after the end of their communicator */
  COMMS = 9,      /* entries of the table that were ever used */
  COMMS_DENIED = 10, /* communicators that met a full table */
  INTERFACE = 11, /* version of NCCL's profiler interface in use; 0 = none yet */
  STEP = 12,      /* the step that the job is in, -1 = none; stamped on records */
  ENDED = 13,     /* 1 = the process came to its exit */
  CHAIN = 14,     /* enum chain_state: the plugin that the user set */
  CAPTURED = 15,  /* calls of NCCL's API that were captured into CUDA graphs so far */
  DENIED = 16,    /* operations of communicators that met a full table */
  ENVIRONMENT_LEFT_OUT = 17, /* variables for which there was no room */
  PAUSED = 18,    /* 1 = the job has switched the recording of its operations off (drumline_record) */
  UNTIMED_STEPS = 19, /* steps begun without the GPU's times (timed_steps.h) */
  TIMES_REQUESTED = 20, /* until then all steps have the GPU's times; ns, written by the agent */
  STARTED_NS = 21, /* start of the process by the kernel's clock ticks, 0 = not known */
  TRANSFERS_DROPPED = 22, /* chosen proxy operations for which there was no room (transfers.c) */
  GPU_TICKS = 23, /* 1 = RCCL loaded the plugin: gpu_start_ns and gpu_stop_ns are ticks of the GPU's clock (caller.c) */
  ENVIRONMENT = 64, /* byte 512: NAME=VALUE texts, each ended by a zero byte; an empty one is the last */
};

enum chain_state { CHAIN_NONE = 0, CHAIN_USED = 1, CHAIN_FAILED = 2 /* it can't be loaded, or is no profiler */ };

struct comm_entry {
  _Atomic uint64_t id;   /* NCCL's; of versions 1 to 3 known at the first operation, 0 before */
  uint64_t created_ns, closed_ns; /* closed_ns: 0 until finalized */
  uint32_t generation;   /* 1, 2, ... : rises when the entry is used again */
  int32_t rank, ranks, nodes; /* rank -1, ranks 0, nodes 0: not known (versions 1 to 3) */
  char name[COMM_NAME_BYTES]; /* given by the user, mostly empty */
};

enum record_kind {
  COLLECTIVE_OR_P2P = 1,
  STEP_MARK = 2,    /* number >= 0: this step begins; -1: the step ends and none begins. count: source of the number */
  RANGE_BEGIN = 3,  /* number: id of the range */
  RANGE_END = 4,
  GRAPH_REPLAY = 5, /* number: id of the graph */
  RECORD = 6,       /* number: 1 = operations are recorded from before here on, 0 = until some time after */
  TRANSFERS = 7,    /* of one proxy operation, when it ends (transfers.c). function: enum transfers_direction; channels: its
                       channel; step: of the call; sequence: number of transfers; count: bytes; host_ns: its end */
};

/* `protocol` of a collective by copy engines: NCCL has its call alone, no times. */
enum { COPY_ENGINES = 4 };

enum transfers_direction { TRANSFERS_SENT = 1, TRANSFERS_RECEIVED = 2 };

enum mark_flags {
  MARK_PAUSED = 1,  /* recording is switched off */
  MARK_UNTIMED = 2, /* operations from here on, to the next step, have no times of the GPU (timed_steps.h) */
};

/* Parts of `progress`. A channel that drifted (plugin.c) is counted as such when it stops, and as nothing else: an
 * operation is over when as many started as stopped, and those with the drifted ones are all. */
#define PROGRESS_STARTED (1ull << 16)
#define PROGRESS_DRIFTED (1ull << 24 | 1ull << 8) /* twice: agents that know of none compare halves of 16 bits */
static inline uint64_t progress_stopped(uint64_t progress) { return progress & 0xff; }
static inline uint64_t progress_drifted(uint64_t progress) { return progress >> 24 & 0xff; }

struct record {
  _Atomic uint64_t number;   /* position + 1; written last */
  _Atomic uint64_t progress; /* low half of number << 32 | channels that drifted << 24 | started << 16 | drifted << 8 | stopped */
  uint8_t kind;
  /* place in the lists of operations.c, from 1; 0 = not known. `function` of a mark: enum mark_flags */
  uint8_t function, datatype, algorithm, protocol;
  uint8_t channels; /* that will start and stop; 0 = not known */
  uint16_t comm;    /* place in the table; NO_COMM for a mark */
  int32_t peer;     /* root of a collective, peer of a point-to-point operation */
  uint32_t generation; /* of the communicator's entry */
  int64_t step;     /* that the job was in at the call; -1 = none */
  uint64_t sequence; /* NCCL's, of collectives; of a mark its number */
  uint64_t count;   /* elements; of a mark its count */
  uint64_t host_ns; /* the call, CLOCK_REALTIME */
  union {
    struct {
      _Atomic uint64_t gpu_start_ns; /* least of the channels, the GPU's clock; 2^64-1 before the first */
      _Atomic uint64_t gpu_stop_ns;  /* greatest of the channels; 0 before the first */
      _Atomic uint64_t seen_ns;      /* CLOCK_REALTIME when NCCL told of the last channel's stop; 0 before */
      uint32_t captured; /* number of the API call that was captured into a CUDA graph (1, 2, ...); 0 = none was */
      uint32_t plan;     /* operations with one number (1, 2, ...) are one kernel; 0 = not known */
    };
    struct { /* of transfers, in 100 ns: sums of what they waited for */
      uint32_t gpu_wait, peer_wait, network, flush;
      uint32_t busy;         /* time in which one of the communicator, peer and direction was under way ... */
      uint32_t zero;
      uint64_t busy_from_ns; /* ... from here on, by a clock that counts such time alone */
    };
    char name[MARK_NAME_BYTES]; /* of a mark: UTF-8, filled up with zero bytes; of a step: sums (ipc/host_sums.py) */
  };
};
_Static_assert(sizeof(struct comm_entry) == COMM_BYTES, "communicator");
_Static_assert(sizeof(struct record) == RECORD_BYTES, "record");
#endif
