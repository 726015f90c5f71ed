/* One thread makes NVTX calls while another begins to use CUPTI, as NCCL's and a collector's may: CUPTI 13.2 to 13.5 ends
 * the process with SIGSEGV, most times. With CUPTI used once before there are two threads, it does not (docs/design/cupti-issues.md).
 *
 *     cc -o first_use tests/gpu/first_use.c -I SITE_PACKAGES/nvidia/cu13/include -ldl -lpthread
 *     NVTX_INJECTION64_PATH=.../libcupti.so.13 ./first_use cold|primed|toggle
 *
 * cold: it begins meanwhile. primed: it began before. toggle: likewise, and is switched off and on 150 times. */
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int KINDS[] = {10, 1, 2, 12, 13}; /* as recorder.py */
static volatile int stop, calls;

static void request(uint8_t **buffer, size_t *size, size_t *most) {
  *buffer = aligned_alloc(4096, 1 << 20);
  *size = 1 << 20;
  *most = 0;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size, (void)valid;
  free(buffer);
}

static void *caller(void *nothing) {
  nvtxEventAttributes_t range = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                 .messageType = NVTX_MESSAGE_TYPE_ASCII, .message.ascii = "range"};
  char name[16];
  while (!stop) {
    snprintf(name, sizeof name, "domain %d", calls % 50);
    nvtxDomainHandle_t domain = nvtxDomainCreateA(name);
    nvtxDomainRangePushEx(domain, &range);
    nvtxDomainRangePop(domain);
    calls++;
  }
  return nothing;
}

int main(int count, char **words) {
  const char *how = count > 1 ? words[1] : "", *path = getenv("NVTX_INJECTION64_PATH");
  void *cupti = path ? dlopen(path, RTLD_NOW) : NULL, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cupti || !cuda) return fprintf(stderr, "no CUPTI in NVTX_INJECTION64_PATH, or no CUDA driver\n"), 2;
  ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
  int (*callbacks)(void *, void *) = (int (*)(void *, void *))dlsym(cupti, "cuptiActivityRegisterCallbacks");
  int (*on)(int) = (int (*)(int))dlsym(cupti, "cuptiActivityEnable");
  int (*off)(int) = (int (*)(int))dlsym(cupti, "cuptiActivityDisable");
  int (*flush)(uint32_t) = (int (*)(uint32_t))dlsym(cupti, "cuptiActivityFlushAll");
  if (strcmp(how, "cold")) on(13), off(13); /* as Recording.subscribe */
  pthread_t thread;
  pthread_create(&thread, NULL, caller, NULL);
  while (!calls) {}
  srand(getpid());
  usleep(rand() % 3000);
  for (int turn = 0; turn < (strcmp(how, "toggle") ? 1 : 150); turn++) {
    callbacks((void *)request, (void *)complete);
    for (int i = 0; i < 5; i++) on(KINDS[i]);
    usleep(500);
    if (strcmp(how, "toggle")) break;
    for (int i = 4; i >= 0; i--) off(KINDS[i]);
    flush(0);
    usleep(300);
  }
  usleep(20000);
  stop = 1;
  pthread_join(thread, NULL);
  _exit(0); /* without a last flush */
}
