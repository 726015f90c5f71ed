/* What the other files need of plugin.c. */
#ifndef DRUMLINE_PLUGIN_H
#define DRUMLINE_PLUGIN_H

/* Close all communicators; the child of a fork calls it. */
void forget_contexts(void);
/* Give NCCL the events that are wanted now. */
void refresh_mask(void);
#endif
