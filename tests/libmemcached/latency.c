/* The time of a call in a libmemcached program: gets and sets one key with a value of 64 bytes in turn, one call at a
   time. Prints nanoseconds: "get P50 P99" and "set P50 P99".

   latency SERVER COUNT, where SERVER is HOST:PORT or the path of a Unix socket. */

#include <libmemcached/memcached.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUE_BYTES = 64 };

static const char key[] = "latency-of-a-key";

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static void check(memcached_st *memc, const char *what, memcached_return_t rc) {
  if (rc != MEMCACHED_SUCCESS) {
    fprintf(stderr, "%s: %s, %s\n", what, memcached_strerror(memc, rc), memcached_last_error_message(memc));
    exit(1);
  }
}

static void set(memcached_st *memc) {
  char value[VALUE_BYTES];
  memset(value, 'v', sizeof value);
  check(memc, "set", memcached_set(memc, key, sizeof key - 1, value, sizeof value, 0, 0));
}

static void get(memcached_st *memc) {
  size_t length = 0;
  uint32_t flags;
  memcached_return_t rc;
  char *value = memcached_get(memc, key, sizeof key - 1, &length, &flags, &rc);
  check(memc, "get", rc);
  if (length != VALUE_BYTES || value[0] != 'v') {
    fprintf(stderr, "get: another value\n");
    exit(1);
  }
  free(value);
}

static int by_size(const void *first, const void *second) {
  uint64_t a = *(const uint64_t *) first, b = *(const uint64_t *) second;
  return (a > b) - (a < b);
}

static void measure(memcached_st *memc, const char *name, void (*call)(memcached_st *), unsigned count) {
  uint64_t *times = malloc(count * sizeof *times);
  for (unsigned n = 0; n < count / 10; n++)
    call(memc);
  for (unsigned n = 0; n < count; n++) {
    uint64_t start = now_ns();
    call(memc);
    times[n] = now_ns() - start;
  }
  qsort(times, count, sizeof *times, by_size);
  printf("%s %llu %llu\n", name, (unsigned long long) times[count / 2],
         (unsigned long long) times[(uint64_t) count * 99 / 100]);
  free(times);
}

int main(int words, char **word) {
  unsigned count = words == 3 ? (unsigned) atoi(word[2]) : 0;
  if (count < 100) {
    fprintf(stderr, "latency SERVER COUNT, at least 100\n");
    return 2;
  }
  memcached_st *memc = memcached_create(NULL);
  memcached_server_st *servers = memcached_servers_parse(word[1]);
  check(memc, "server", memcached_server_push(memc, servers));
  memcached_server_list_free(servers);
  set(memc);
  measure(memc, "get", get, count);
  measure(memc, "set", set, count);
  memcached_free(memc);
  return 0;
}
