/* Reads NCCL's descriptors of operations into records, of all versions of the interface. */
#include "operations.h"

#include <string.h>

/* In NCCL's own order of numbers, which version 1 uses. producers/rings/ring_file.py has the same lists. */
static const char *const FUNCTIONS[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
  "Send", "Recv", "AlltoAll", "Scatter", "Gather", "AllGatherV", "PutSignal", "Signal", "WaitSignal", NULL};
static const char *const DATATYPES[] = {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64",
  "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2", NULL};
static const char *const ALGORITHMS[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT",
  NULL};
static const char *const PROTOCOLS[] = {"LL", "LL128", "SIMPLE", NULL};

/* Return the place of a name in a list, from 1; 0 if it is not there. */
static uint8_t place(const char *const *list, const char *name) {
  for (uint8_t i = 0; name && list[i]; i++)
    if (!strcmp(list[i], name)) return (uint8_t)(i + 1);
  return 0;
}

/* Members that have the same names in all versions but 1. */
#define FILL_COLLECTIVE(c) do { \
    record->sequence = (c)->sequence; record->count = (c)->count; record->peer = (c)->root; \
    record->function = place(FUNCTIONS, (c)->func); record->datatype = place(DATATYPES, (c)->datatype); \
    record->algorithm = place(ALGORITHMS, (c)->algo); record->protocol = place(PROTOCOLS, (c)->proto); \
  } while (0)
#define FILL_POINT_TO_POINT(p) do { \
    record->count = (p)->count; record->peer = (p)->peer; \
    record->function = place(FUNCTIONS, (p)->func); record->datatype = place(DATATYPES, (p)->datatype); \
  } while (0)

static void fill_collective(struct record *record, const struct descriptor *event, int version) {
  const struct coll_v1 *first = &event->coll1;
  if (version >= 4) {
    FILL_COLLECTIVE(&event->coll4);
    record->channels = event->coll4.channels;
  } else if (version == 3) {
    FILL_COLLECTIVE(&event->coll3);
  } else if (version == 2) {
    FILL_COLLECTIVE(&event->coll2);
  } else {
    record->sequence = first->sequence; record->count = first->count; record->peer = first->root;
    record->function = (uint8_t)(first->func + 1); record->datatype = (uint8_t)(first->datatype + 1);
    record->algorithm = (uint8_t)(first->algo + 1); record->protocol = (uint8_t)(first->proto + 1);
  }
}

static void fill_point_to_point(struct record *record, const struct descriptor *event, int version) {
  const struct p2p_v1 *first = &event->p2p1;
  if (version >= 4) {
    FILL_POINT_TO_POINT(&event->p2p4);
    /* NCCL 2.28 and later give a plugin of version 4 no number of channels: what is there is not initialised. */
    if (version >= 5) record->channels = event->p2p4.channels;
  } else if (version >= 2) {
    FILL_POINT_TO_POINT(&event->p2p2);
  } else {
    record->count = first->count; record->peer = first->peer;
    record->function = (uint8_t)(first->func + 1); record->datatype = (uint8_t)(first->datatype + 1);
  }
}

static void fill_copies(struct record *record, const struct copies *copies) {
  record->sequence = copies->sequence; record->count = copies->count; record->peer = copies->root;
  record->function = place(FUNCTIONS, copies->func); record->datatype = place(DATATYPES, copies->datatype);
  record->protocol = COPY_ENGINES;
}

void fill_operation(struct record *record, const struct descriptor *event, uint64_t kind, int version) {
  record->kind = COLLECTIVE_OR_P2P;
  record->function = record->datatype = record->algorithm = record->protocol = record->channels = 0;
  record->sequence = 0;
  if (kind == KIND_COLL) fill_collective(record, event, version);
  else if (kind == KIND_COPY) fill_copies(record, &event->copies);
  else fill_point_to_point(record, event, version);
}
