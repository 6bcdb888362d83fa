/* Servers of a run. Direct checks use the text protocol on a separate connection. */

#define _GNU_SOURCE
#include "servers.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_MAX = 4096, PEEK_TIME_MAX_S = 5 };

static struct {
  char address[108], host[108];
  in_port_t port;
} servers[SERVERS_MAX];
static unsigned server_count;
static bool local;

/* No server listens there. */
static char dead_path[108], silent_path[108];
static const in_port_t DEAD_PORT = 1;

static void name_server(unsigned n) {
  char name[32];
  snprintf(name, sizeof name, "{server%u}", n);
  if (local)
    trace_name(servers[n].host, name);
  snprintf(name, sizeof name, "{port%u}", n);
  char port[16];
  snprintf(port, sizeof port, "%u", servers[n].port);
  if (!local)
    trace_name(port, name);
}

void servers_read(void) {
  const char *list = getenv("SERVERS"), *scratch = getenv("SCRATCH_DIR");
  if (!list || !scratch) {
    fprintf(stderr, "SERVERS and SCRATCH_DIR must be set\n");
    exit(2);
  }
  char *copy = strdup(list);
  for (char *word = strtok(copy, ","); word && server_count < SERVERS_MAX; word = strtok(NULL, ",")) {
    unsigned n = server_count++;
    snprintf(servers[n].address, sizeof servers->address, "%s", word);
    snprintf(servers[n].host, sizeof servers->host, "%s", word);
    local = word[0] == '/';
    char *colon = strrchr(servers[n].host, ':');
    if (!local && colon) {
      *colon = '\0';
      servers[n].port = (in_port_t) atoi(colon + 1);
    }
    name_server(n);
  }
  free(copy);
  if (server_count != SERVERS_MAX) {
    fprintf(stderr, "SERVERS must name %d\n", SERVERS_MAX);
    exit(2);
  }
  snprintf(dead_path, sizeof dead_path, "%s/nobody.sock", scratch);
  snprintf(silent_path, sizeof silent_path, "%s/silent.sock", scratch);
  trace_name(dead_path, "{dead}");
  trace_name(silent_path, "{silent}");
}

bool servers_local(void) {
  return local;
}

const char *server_host(unsigned n) {
  return servers[n].host;
}

in_port_t server_port(unsigned n) {
  return servers[n].port;
}

const char *server_address(unsigned n) {
  return servers[n].address;
}

static int connect_raw(unsigned n) {
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  struct sockaddr_in network = {.sin_family = AF_INET, .sin_port = htons(servers[n].port)};
  memcpy(path.sun_path, servers[n].host, sizeof path.sun_path);
  inet_pton(AF_INET, servers[n].host, &network.sin_addr);
  struct sockaddr *address = local ? (struct sockaddr *) &path : (struct sockaddr *) &network;
  socklen_t length = local ? sizeof path : sizeof network;
  struct timeval limit = {.tv_sec = PEEK_TIME_MAX_S};
  int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (fd < 0 || connect(fd, address, length) != 0) {
    perror(servers[n].address);
    exit(2);
  }
  return fd;
}

/* Sends a command and reads until the answer ends with this. */
static size_t ask(unsigned n, const char *command, const char *end, char *answer) {
  int fd = connect_raw(n);
  size_t used = 0, length = strlen(command);
  if (write(fd, command, length) != (ssize_t) length) {
    perror(servers[n].address);
    exit(2);
  }
  do {
    ssize_t got = read(fd, answer + used, ANSWER_MAX - 1 - used);
    if (got <= 0) {
      fprintf(stderr, "%s does not answer %s", servers[n].address, command);
      exit(2);
    }
    used += (size_t) got;
    answer[used] = '\0';
  } while (!memmem(answer, used, end, strlen(end)));
  close(fd);
  return used;
}

void servers_flush(void) {
  char answer[ANSWER_MAX];
  for (unsigned n = 0; n < server_count; n++)
    ask(n, "flush_all\r\n", "OK\r\n", answer);
}

void peek(unsigned n, const char *key) {
  char command[300], answer[ANSWER_MAX], call[320];
  snprintf(command, sizeof command, "get %s\r\n", key);
  snprintf(call, sizeof call, "peek(server%u, \"%s\")", n, key);
  size_t length = ask(n, command, "END\r\n", answer);
  char *text = quoted(answer, length);
  trace_line(call, "%s", text);
  free(text);
}

memcached_return_t add_server(memcached_st *memc, unsigned n) {
  return local ? memcached_server_add_unix_socket(memc, servers[n].host)
               : memcached_server_add(memc, servers[n].host, servers[n].port);
}

memcached_return_t add_server_with_weight(memcached_st *memc, unsigned n, uint32_t weight) {
  return local ? memcached_server_add_unix_socket_with_weight(memc, servers[n].host, weight)
               : memcached_server_add_with_weight(memc, servers[n].host, servers[n].port, weight);
}

memcached_return_t add_dead(memcached_st *memc) {
  return local ? memcached_server_add_unix_socket(memc, dead_path)
               : memcached_server_add(memc, "127.0.0.1", DEAD_PORT);
}

/* The kernel accepts connections up to the backlog; no process reads from them. */
memcached_return_t add_silent(memcached_st *memc) {
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  struct sockaddr_in network = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  memcpy(path.sun_path, silent_path, sizeof path.sun_path);
  struct sockaddr *address = local ? (struct sockaddr *) &path : (struct sockaddr *) &network;
  socklen_t length = local ? sizeof path : sizeof network;
  if (local)
    unlink(silent_path);
  int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, address, length) != 0 || listen(fd, 16) != 0 || getsockname(fd, address, &length) != 0) {
    perror("a silent server");
    exit(2);
  }
  if (local)
    return memcached_server_add_unix_socket(memc, silent_path);
  char port[16];
  snprintf(port, sizeof port, "%u", ntohs(network.sin_port));
  trace_name(port, "{silent}");
  return memcached_server_add(memc, "127.0.0.1", ntohs(network.sin_port));
}

memcached_st *handle_on(unsigned count) {
  return handle_with(count, MEMCACHED_BEHAVIOR_MAX);
}

memcached_st *handle_with(unsigned count, memcached_behavior_t flag) {
  memcached_st *memc = memcached_create(NULL);
  if (!memc) {
    fprintf(stderr, "memcached_create failed\n");
    exit(2);
  }
  if (flag != MEMCACHED_BEHAVIOR_MAX)
    memcached_behavior_set(memc, flag, 1);
  for (unsigned n = 0; n < count; n++)
    add_server(memc, n);
  return memc;
}

memcached_st *handle_binary(unsigned count) {
  return handle_with(count, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL);
}
