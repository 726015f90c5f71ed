/* RCCL has NCCL's profiler interface, with times in ticks of AMD's wall clock instead of ns. What states which of the
 * two it is, is the file that the call of `init` comes from: no job on NVIDIA's GPUs runs code of librccl.so. Programs
 * that have RCCL linked into them count as NCCL's, as before. */
#define _GNU_SOURCE
#include "caller.h"

#include <dlfcn.h>
#include <string.h>

bool is_of_rccl(const void *address) {
  static const char RCCL[] = "librccl.so";
  Dl_info of;
  if (!dladdr(address, &of) || !of.dli_fname) return false;
  const char *name = strrchr(of.dli_fname, '/');
  name = name ? name + 1 : of.dli_fname;
  return !strncmp(name, RCCL, sizeof RCCL - 1) && strchr(".", name[sizeof RCCL - 1]);
}
