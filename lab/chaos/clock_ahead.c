/* A wall clock that is ahead, for a program that is started with this library in LD_PRELOAD. Monotonic clocks go on as
ever.

CLOCK_AHEAD_S: seconds for as long as the program runs; times of files are ahead as well.
CLOCK_STEP_FILE: a file with seconds, 64 bit, that may change while the program runs: the clock steps then. Files keep
their times.

libfaketime 0.9.10 crashes where a thread changes the environment, which it reads at each call, and leaves times of
files and librdkafka's waits as they are. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static time_t ahead_s;
static const int64_t no_step;
static const volatile int64_t *step_s = &no_step;
static __typeof__(&clock_gettime) real_clock;

__attribute__((constructor)) static void begin(void) {
    const char *ahead = getenv("CLOCK_AHEAD_S");
    ahead_s = ahead ? atoll(ahead) : 0;
    const char *path = getenv("CLOCK_STEP_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file >= 0 ? mmap(NULL, sizeof *step_s, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (shared != MAP_FAILED) step_s = shared;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock) real_clock = NEXT(clock_gettime);
    int result = real_clock(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead_s + *step_s;
    return result;
}

int timespec_get(struct timespec *now, int base) { return clock_gettime(CLOCK_REALTIME, now) ? 0 : base; }

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
    return result;
}

time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored) *stored = now.tv_sec;
    return now.tv_sec;
}

static struct timespec earlier(const struct timespec *moment, time_t by_s) {
    return (struct timespec){moment->tv_sec - by_s, moment->tv_nsec};
}

/* Waits end at a moment of the wall clock. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec real = earlier(until, ahead_s + *step_s);
    return NEXT(cnd_timedwait)(condition, mutex, &real);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec real = earlier(until, ahead_s + *step_s);
    return NEXT(sem_timedwait)(semaphore, &real);
}

/* Times of files. */
static int later(int result, struct stat64 *about) {
    if (!result) about->st_atime += ahead_s, about->st_mtime += ahead_s, about->st_ctime += ahead_s;
    return result;
}

int stat64(const char *restrict path, struct stat64 *restrict about) {
    return later(NEXT(stat64)(path, about), about);
}

int lstat64(const char *restrict path, struct stat64 *restrict about) {
    return later(NEXT(lstat64)(path, about), about);
}

int fstat64(int file, struct stat64 *about) { return later(NEXT(fstat64)(file, about), about); }

int fstatat64(int folder, const char *restrict path, struct stat64 *restrict about, int flags) {
    return later(NEXT(fstatat64)(folder, path, about, flags), about);
}

static int is_moment(const struct timespec *given) {
    return given->tv_nsec != UTIME_NOW && given->tv_nsec != UTIME_OMIT;
}

/* The times to be stored; none stand for the present one. */
static const struct timespec *stored(const struct timespec times[2], struct timespec real[2]) {
    for (int i = 0; times && i < 2; i++) real[i] = is_moment(&times[i]) ? earlier(&times[i], ahead_s) : times[i];
    return times ? real : NULL;
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    struct timespec real[2];
    return NEXT(utimensat)(folder, path, stored(times, real), flags);
}

int futimens(int file, const struct timespec times[2]) {
    struct timespec real[2];
    return NEXT(futimens)(file, stored(times, real));
}
