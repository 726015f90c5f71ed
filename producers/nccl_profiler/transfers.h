/* What NCCL's proxy threads move over the network for an operation (transfers.c). No function waits.
 *
 * The events of one proxy operation come from one thread; those of several from several threads. */
#ifndef DRUMLINE_TRANSFERS_H
#define DRUMLINE_TRANSFERS_H
#include <stdbool.h>

#include "abi.h"
#include "ring.h"

/* Return the events that are needed, bits of the activation mask; 0 where the setting is "off". */
int transfers_mask(int version);
/* Return the number of a proxy operation that is recorded, or 0: not chosen, of an unknown operation, or no room. `parent`:
 * the place of its operation in the ring. */
uint64_t transfers_start(uint64_t parent, const struct descriptor *event);
/* Begin a transfer, event->step of the operation with this number. Return the transfer's number. */
uint64_t transfer_start(uint64_t number, const struct descriptor *event);
/* A transfer comes to a state of NCCL's. */
void transfer_state(uint64_t number, int state, const union state_arguments *arguments);
/* A transfer ends. */
void transfer_stop(uint64_t number);
/* The operation with this number ends: write its record. */
void transfers_stop(uint64_t number);
/* Record those of all operations, or none, as the environment of the process states. */
void transfers_all(void);
void transfers_off(void);
/* Return whether the job records none for a while. */
bool transfers_paused(void);
/* Forget what is under way: the child of a fork calls it. */
void forget_transfers(void);
#endif
