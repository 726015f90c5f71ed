/* From NCCL's descriptors to records (operations.c). */
#ifndef DRUMLINE_OPERATIONS_H
#define DRUMLINE_OPERATIONS_H
#include "abi.h"
#include "ring.h"

/* Fill the record of an operation from its descriptor, of kind KIND_COLL, KIND_P2P or KIND_COPY: what it is, not when. */
void fill_operation(struct record *record, const struct descriptor *event, uint64_t kind, int version);
#endif
