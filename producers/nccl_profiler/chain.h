/* The profiler plugin that the user set, behind this one (chain.c). */
#ifndef DRUMLINE_CHAIN_H
#define DRUMLINE_CHAIN_H
#include "abi.h"

/* Return the user's struct of `version`, or NULL. Loads their library when NCCL first looks for a symbol. */
const void *chain_struct(int version);
/* True if the user has a plugin: this one then offers NCCL the versions that theirs offers, and no other. */
bool chain_wanted(void);
/* State for the header: enum chain_state. */
int chain_state(void);

/* Keep their handle beside ours (a number that no other handle has); find it again, or NULL if it was not kept or is
 * too old. Only with a chained plugin. `table`: handles of one table never displace those of another. */
enum chain_table { GROUPS, OPERATIONS, API_CALLS, CHANNELS, PROXY_OPERATIONS, PROXY_STEPS, TABLES };
void chain_keep(enum chain_table table, uint64_t number, uint64_t ours, void *theirs);
void *chain_theirs(enum chain_table table, uint64_t number, uint64_t ours);

/* True if NCCL would tell a plugin with this activation mask of an event of `kind`. */
bool chain_wants(int mask, uint64_t kind);
#endif
