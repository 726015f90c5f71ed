/* A fake NCCL that moves bytes: a rank of a ring over TCP, which tells the real plugin what NCCL's proxy threads would.
 *
 *   fake_transport PLUGIN VERSION
 *
 * RANK, WORLD_SIZE; LISTEN, NEXT: address and port that the rank before connects to, and that the next one listens on.
 * BYTES: of an AllReduce, CHUNK: of a transfer; OPERATIONS a step; COMPUTE_MS before each. FOLDER: while it has a file
 * late-RANK, the rank enters its first operation of a step as many ms later. Prints the number of each step and when it ended. */
#define main fake_nccl_main
#include "fake_nccl.c"
#undef main
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { MOST_CHUNK = 1 << 19, RING_PORT_BACKLOG = 4 };

static int next_fd, previous_fd, ring_rank, ring_ranks;
static long block_chunks; /* of a block: an operation of n ranks has 2 (n - 1) blocks */
static struct comm ring_comm;
static struct operation ring_op;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static long received; /* chunks of this operation */
static size_t chunk_bytes = MOST_CHUNK;

static struct sockaddr_in address_of(const char *variable) {
  char text[64];
  const char *value = getenv(variable);
  CHECK(value && strlen(value) < sizeof text);
  strcpy(text, value);
  char *port = strchr(text, ':');
  CHECK(port);
  *port++ = '\0';
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  CHECK(inet_pton(AF_INET, text, &address.sin_addr) == 1);
  return address;
}

static void connect_ring(void) {
  struct sockaddr_in own = address_of("LISTEN"), other = address_of("NEXT");
  int listening = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  CHECK(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  CHECK(bind(listening, (struct sockaddr *)&own, sizeof own) == 0 && listen(listening, RING_PORT_BACKLOG) == 0);
  for (int tries = 0; tries < 600; tries++, usleep(50000)) {
    next_fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(next_fd, (struct sockaddr *)&other, sizeof other) == 0) break;
    close(next_fd);
    next_fd = -1;
  }
  CHECK(next_fd >= 0);
  previous_fd = accept(listening, NULL, NULL);
  CHECK(previous_fd >= 0);
  CHECK(setsockopt(next_fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
}

/* Whoever sends a chunk of a block has received the same of the block before. */
static void *send_all(void *unused) {
  static char data[MOST_CHUNK];
  struct proxy proxy = start_proxy(&ring_comm, &ring_op, 0, (ring_rank + 1) % ring_ranks, true);
  const long chunks = 2 * (ring_ranks - 1) * block_chunks;
  for (long chunk = 0; chunk < chunks; chunk++) {
    start_step(&proxy, (int)chunk);
    step_state(&proxy, (int)chunk, SEND_GPU_WAIT, 0);
    pthread_mutex_lock(&lock);
    while (received <= chunk - block_chunks) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
    step_state(&proxy, (int)chunk, SEND_PEER_WAIT, 0);
    step_state(&proxy, (int)chunk, SEND_WAIT, chunk_bytes);
    for (size_t done = 0; done < chunk_bytes;) {
      ssize_t sent = send(next_fd, data + done, chunk_bytes - done, MSG_NOSIGNAL);
      if (sent <= 0) _exit(4);
      done += (size_t)sent;
    }
    stop_step(&proxy, (int)chunk);
  }
  stop_proxy(&proxy);
  return unused;
}

static void receive_all(void) {
  static char data[MOST_CHUNK];
  struct proxy proxy = start_proxy(&ring_comm, &ring_op, 0, (ring_rank + ring_ranks - 1) % ring_ranks, false);
  const long chunks = 2 * (ring_ranks - 1) * block_chunks;
  for (long chunk = 0; chunk < chunks; chunk++) {
    start_step(&proxy, (int)chunk);
    step_state(&proxy, (int)chunk, RECV_WAIT, 0);
    for (size_t done = 0; done < chunk_bytes;) {
      ssize_t got = recv(previous_fd, data, chunk_bytes - done, 0);
      if (got <= 0) _exit(5);
      done += (size_t)got;
    }
    step_state(&proxy, (int)chunk, RECV_FLUSH_WAIT, chunk_bytes);
    step_state(&proxy, (int)chunk, RECV_GPU_WAIT, chunk_bytes);
    pthread_mutex_lock(&lock);
    received++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    stop_step(&proxy, (int)chunk);
  }
  stop_proxy(&proxy);
}

static long late_ms(const char *folder) {
  char path[512], text[32] = {0};
  snprintf(path, sizeof path, "%s/late-%d", folder, ring_rank);
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  long value = read(file, text, sizeof text - 1) > 0 ? atol(text) : 0;
  close(file);
  return value;
}

static void all_reduce(void) {
  pthread_t sender;
  ring_op = make(&ring_comm, false);
  ring_op.channels = 1;
  ring_op.count = (size_t)(block_chunks * ring_ranks) * chunk_bytes / 4;
  ring_op.api_call = start_api_call(&ring_comm, &ring_op, false);
  launch(&ring_comm, &ring_op, 1);
  received = 0;
  const uint64_t start = realtime();
  void *channel = ring_op.mask & KERNEL_CH ? start_channel(&ring_comm, ring_op.handle, 0, start) : NULL;
  CHECK(pthread_create(&sender, NULL, send_all, NULL) == 0);
  receive_all();
  CHECK(pthread_join(sender, NULL) == 0);
  stop_channel(channel, realtime());
}

int main(int count, char **arguments) {
  CHECK(count == 3);
  version = atoi(arguments[2]);
  load(arguments[1]);
  ring_rank = (int)from_environment("RANK"), ring_ranks = (int)from_environment("WORLD_SIZE");
  if (getenv("CHUNK")) chunk_bytes = (size_t)from_environment("CHUNK");
  CHECK(chunk_bytes && chunk_bytes <= MOST_CHUNK);
  block_chunks = from_environment("BYTES") / (long)chunk_bytes / ring_ranks;
  block_chunks = block_chunks ? block_chunks : 1;
  const long operations = from_environment("OPERATIONS"), compute_ms = from_environment("COMPUTE_MS");
  const char *folder = getenv("FOLDER");
  connect_ring();
  ring_comm = create(4242, ring_rank, ring_ranks, "ring");
  for (long step = 0;; step++) {
    mark(2, step, NULL, 1);
    usleep((useconds_t)(1000 * late_ms(folder ? folder : "/nowhere")));
    for (long i = 0; i < operations; i++) {
      usleep((useconds_t)(1000 * compute_ms));
      all_reduce();
    }
    printf("%ld %llu\n", step, (unsigned long long)realtime());
    fflush(stdout);
  }
}
