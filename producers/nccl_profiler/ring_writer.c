/* Creates the file of a process (ring.h) and claims records in it, for plugin.c and for the job's own marks. */
#define _GNU_SOURCE
#include "ring_writer.h"

#include "links.h"
#include "plugin.h"
#include "timed_steps.h"
#include "transfers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_RECORDS = 1 << 15, LEAST_RECORDS = 1 << 6, MOST_RECORDS = 1 << 20 };
enum { MOST_FILES = 1 << 14 }; /* that are counted; empty ones of another user keep nobody from recording */

static _Atomic(uint8_t *) mapping;
static _Atomic uint64_t nonce;
uint64_t ring_capacity = 1;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* As process_info.started_ns computes it: the rows of both tiers are of one process. */
static uint64_t process_started_ns(void) {
  FILE *file = fopen("/proc/self/stat", "re");
  char text[1024];
  size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) fclose(file);
  text[length] = 0;
  unsigned long long ticks = 0;
  const char *behind = strrchr(text, ')'); /* the name of the program may hold anything */
  const char *skipped = ") %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (!behind || sscanf(behind, skipped, &ticks) != 1) return 0;
  struct timespec since_boot;
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  uint64_t boot = now_ns() - ((uint64_t)since_boot.tv_sec * 1000000000u + (uint64_t)since_boot.tv_nsec);
  return boot + ticks * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

static size_t file_bytes(void) { return HEADER_BYTES + MAX_COMMS * COMM_BYTES + ring_capacity * RECORD_BYTES; }

/* A forked child writes nothing into its parent's file, and does not keep its lock. It may open one of its own. */
static void forget(void) {
  static const pthread_once_t again = PTHREAD_ONCE_INIT;
  uint8_t *base = atomic_exchange(&mapping, NULL);
  if (base) munmap(base, file_bytes());
  forget_contexts();
  forget_timed_steps();
  forget_transfers();
  forget_links();
  opened = again;
}

/* Copy the variables that name job, run, rank and place (producers/identity.py), and two that say what is recorded. */
static void copy_environment(uint8_t *base) {
  static const char *const names[] = {
    "DRUMLINE_JOB", "DRUMLINE_RUN", "DRUMLINE_MINTED_RUN", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_NAME", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", "JOB_NAME", "POD_NAME", "POD_NAMESPACE",
    "CONTAINER_NAME", "KUBERNETES_SERVICE_HOST", "HOSTNAME", "DRUMLINE_HOST", "CUDA_VISIBLE_DEVICES", "DRUMLINE_LABELS",
    "DRUMLINE_RINGS__GRAPHS", "DRUMLINE_COLLECT__POLICY", NULL};
  char *at = (char *)base + ENVIRONMENT * 8, *end = (char *)base + HEADER_BYTES - 1; /* the last byte stays zero */
  for (int i = 0; names[i]; i++) {
    const char *value = getenv(names[i]);
    if (!value || !*value) continue;
    int length = snprintf(at, (size_t)(end - at), "%s=%s", names[i], value);
    if (length > 0 && length < end - at) {
      at += length + 1;
    } else {
      memset(at, 0, (size_t)(end - at));
      atomic_fetch_add(&words(base)[ENVIRONMENT_LEFT_OUT], 1);
    }
  }
}

/* Open the folder of all rings. A missing one is created for all users, as that of the spools is. */
static int open_folder(const char *folder) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int is_new = !mkdir(folder, 0700), descriptor = open(folder, flags);
  struct stat about; /* the group that a folder above hands down stays */
  if (is_new && descriptor >= 0 && !fstat(descriptor, &about) && fchmod(descriptor, 01777 | (about.st_mode & S_ISGID))) {
    /* then for this user alone */
  }
  return descriptor;
}

/* Return the bytes that one more ring may take. The folder is mostly in memory that NCCL and data loaders need too, and
 * without an agent nobody deletes rings. So all of them share a bound, as the spools do (producers/spool/quota.py). */
static uint64_t room(int folder) {
  const uint64_t most = 4ull << 30;
  struct statvfs about;
  int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *entries = descriptor >= 0 ? fdopendir(descriptor) : NULL;
  if (!entries && descriptor >= 0) close(descriptor);
  if (!entries || fstatvfs(folder, &about)) {
    if (entries) closedir(entries);
    return most; /* the folder may be written, not listed */
  }
  uint64_t total = about.f_frsize * (uint64_t)about.f_blocks, available = about.f_frsize * (uint64_t)about.f_bavail;
  uint64_t share = total / 8 < most ? total / 8 : most, spare = total / 4 < most ? total / 4 : most, used = 0;
  int count = 0;
  for (struct dirent *entry; count < MOST_FILES && (entry = readdir(entries)); count++) {
    struct stat file;
    if (entry->d_name[0] != '.' && !fstatat(folder, entry->d_name, &file, AT_SYMLINK_NOFOLLOW))
      used += (uint64_t)file.st_blocks * 512;
  }
  closedir(entries);
  if (!total) return most; /* a file system that has no size to tell */
  if (used >= share || spare >= available) return 0;
  return share - used < available - spare ? share - used : available - spare;
}

/* Give the file its size. Blocks are allocated now: a page that the disk has no room for would end the job later. */
static int allocate(int descriptor, off_t size) {
  struct rlimit limit; /* beyond it the kernel would end the process */
  if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && (off_t)limit.rlim_cur < size) return EFBIG;
  int error;
  do error = posix_fallocate(descriptor, 0, size);
  while (error == EINTR);
  return error;
}

static uint8_t *create(int folder, uint64_t created) {
  char name[64];
  snprintf(name, sizeof name, "%ld-%llx.ring", (long)getpid(), (unsigned long long)created);
  int descriptor = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0) return NULL;
  struct stat about; /* a folder with S_ISGID: its group is the agent's */
  if (!fstat(folder, &about) && about.st_mode & S_ISGID && fchmod(descriptor, 0660)) { /* then root reads it */ }
  void *base = MAP_FAILED;
  if (!flock(descriptor, LOCK_EX | LOCK_NB) && !allocate(descriptor, (off_t)file_bytes()))
    base = mmap(NULL, file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (base == MAP_FAILED) unlinkat(folder, name, 0);
  close(descriptor); /* the lock stays until the mapping is gone, also in a job that closes all descriptors */
  return base == MAP_FAILED ? NULL : base;
}

static void open_file(void) {
  static int at_fork;
  if (!at_fork) at_fork = !pthread_atfork(NULL, NULL, forget);
  uint64_t created = now_ns();
  atomic_store(&nonce, (created ^ (uint64_t)getpid() * 0x9e3779b97f4a7c15u) >> 10);
  const char *path = getenv("DRUMLINE_RINGS__FOLDER"), *wanted = getenv("DRUMLINE_RINGS__RECORDS");
  const char *times = getenv("DRUMLINE_RINGS__TIMES");
  if (times && !strcmp(times, "all")) {
    timed_steps_all();
    transfers_all();
  }
  if (times && !strcmp(times, "gpu")) transfers_off();
  if (!path || !*path || !at_fork) return;
  long long count = wanted && *wanted ? strtoll(wanted, NULL, 10) : DEFAULT_RECORDS;
  ring_capacity = LEAST_RECORDS;
  while ((long long)ring_capacity < count && ring_capacity < MOST_RECORDS) ring_capacity *= 2;
  int folder = open_folder(path);
  uint64_t most = folder >= 0 ? room(folder) : 0;
  while (ring_capacity > LEAST_RECORDS && file_bytes() > most / 8) ring_capacity /= 2; /* others come */
  uint8_t *base = file_bytes() <= most ? create(folder, created) : NULL;
  if (folder >= 0) close(folder);
  if (!base) return;
  _Atomic uint64_t *header = words(base);
  atomic_store(&header[VERSION], LAYOUT);
  atomic_store(&header[PID], (uint64_t)getpid());
  atomic_store(&header[CREATED_NS], created);
  atomic_store(&header[STARTED_NS], process_started_ns());
  atomic_store(&header[CAPACITY], ring_capacity);
  atomic_store(&header[STEP], (uint64_t)-1);
  copy_environment(base);
  atomic_store(&header[MAGIC], RING_MAGIC);
  atomic_store(&mapping, base);
}

uint8_t *ring_open(void) {
  pthread_once(&opened, open_file);
  return ring();
}

uint8_t *ring(void) { return atomic_load_explicit(&mapping, memory_order_acquire); }
uint64_t ring_nonce(void) { return atomic_load_explicit(&nonce, memory_order_relaxed); }

__attribute__((destructor)) static void end(void) {
  uint8_t *base = ring();
  if (base) atomic_store(&words(base)[ENDED], 1);
}

struct record *ring_claim(uint8_t *base, uint64_t *position) {
  _Atomic uint64_t *header = words(base);
  uint64_t next = atomic_load_explicit(&header[WRITTEN], memory_order_relaxed);
  do { /* also if READ is damaged, nothing is overwritten */
    if (next - atomic_load_explicit(&header[READ], memory_order_acquire) >= ring_capacity) {
      atomic_fetch_add(&header[DROPPED], 1);
      return NULL;
    }
  } while (!atomic_compare_exchange_weak(&header[WRITTEN], &next, next + 1));
  *position = next;
  struct record *record = record_at(base, next);
  atomic_store_explicit(&record->progress, (next + 1) << 32, memory_order_relaxed);
  record->step = (int64_t)atomic_load_explicit(&header[STEP], memory_order_relaxed);
  return record;
}

void ring_publish(struct record *record, uint64_t position) {
  atomic_store_explicit(&record->number, position + 1, memory_order_release);
}

/* Return how many calls of NCCL's API were captured so far: those of a graph lie between two answers. */
EXPORT uint64_t drumline_captured(void) {
  uint8_t *base = ring();
  return base ? atomic_load_explicit(&words(base)[CAPTURED], memory_order_relaxed) : 0;
}

/* Write a mark of the job (enum record_kind) into the ring; `name`: of a range, or NULL. Return 0 if it is there. */
EXPORT int drumline_mark(int kind, int64_t number, const char *name, uint64_t count) {
  uint8_t *base = ring();
  if (!base) base = ring_open();
  if (!base) return -1;
  uint64_t now = now_ns();
  if (kind == STEP_MARK) {
    atomic_store_explicit(&words(base)[STEP], (uint64_t)number, memory_order_relaxed);
    timed_steps_begin(number, now);
    if (is_untimed()) atomic_fetch_add_explicit(&words(base)[UNTIMED_STEPS], 1, memory_order_relaxed);
  }
  uint64_t position;
  struct record *record = ring_claim(base, &position);
  if (!record) return -1;
  if (kind == STEP_MARK) record->step = number; /* of two threads that begin steps at once, too */
  record->kind = (uint8_t)kind;
  bool is_paused = atomic_load_explicit(&words(base)[PAUSED], memory_order_relaxed) != 0;
  record->function = (uint8_t)((is_paused ? MARK_PAUSED : 0) | (is_untimed() ? MARK_UNTIMED : 0));
  record->datatype = record->algorithm = record->protocol = record->channels = 0;
  record->comm = NO_COMM;
  record->peer = -1;
  record->generation = 0;
  record->sequence = (uint64_t)number;
  record->count = count;
  record->host_ns = now;
  memset(record->name, 0, sizeof record->name);
  if (name) memcpy(record->name, name, strnlen(name, sizeof record->name));
  ring_publish(record, position);
  return 0;
}
