// A program of libmemcached over the fabric: a server that a configuration string names, a child of fork(2) that uses what its
// parent had made, and a server that dies. Arguments: HOST:PORT and the server's process ID. Exits with 0 if all checks pass.
#include <libmemcached-1.0/memcached.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEYS 50

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "process %d, line %d: %s: %s\n", (int)getpid(), __LINE__, #what,                                 \
              memcached_last_error_message(memc));                                                                     \
      _exit(1);                                                                                                        \
    }                                                                                                                  \
  } while (0)

static size_t length_of(int number) { return (size_t)number * (size_t)number * 200; }

static char *value_of(int number) {
  size_t length = length_of(number);
  char *value = malloc(length + 1);
  for (size_t i = 0; i < length; i++) {
    value[i] = (char)(i * 31 + i / 251 + (size_t)number * 7);
  }
  return value;
}

static size_t key_of(char *key, const char *whose, int number) { return (size_t)sprintf(key, "%s-%d", whose, number); }

static void store(memcached_st *memc, const char *whose) {
  for (int number = 0; number < KEYS; number++) {
    char key[32], *value = value_of(number);
    size_t length = key_of(key, whose, number);
    CHECK(memcached_set(memc, key, length, value, length_of(number), 0, (uint32_t)number) == MEMCACHED_SUCCESS);
    free(value);
  }
}

static void compare(memcached_st *memc, const char *found, size_t length, uint32_t flags, int number) {
  char *value = value_of(number);
  CHECK(length == length_of(number) && flags == (uint32_t)number);
  CHECK(length == 0 || memcmp(found, value, length) == 0);
  free(value);
}

static void find(memcached_st *memc, const char *whose) {
  char keys[KEYS][32];
  const char *pointers[KEYS];
  size_t lengths[KEYS];
  for (int number = 0; number < KEYS; number++) {
    size_t length;
    uint32_t flags;
    memcached_return_t error;
    lengths[number] = key_of(keys[number], whose, number);
    pointers[number] = keys[number];
    char *found = memcached_get(memc, keys[number], lengths[number], &length, &flags, &error);
    CHECK(error == MEMCACHED_SUCCESS);
    compare(memc, found, length, flags, number);
    free(found);
  }
  CHECK(memcached_mget(memc, pointers, lengths, KEYS) == MEMCACHED_SUCCESS);
  int count = 0;
  memcached_return_t error;
  memcached_result_st *result;
  while ((result = memcached_fetch_result(memc, NULL, &error)) != NULL) {
    CHECK(error == MEMCACHED_SUCCESS);
    int number = atoi(memcached_result_key_value(result) + strlen(whose) + 1);
    compare(memc, memcached_result_value(result), memcached_result_length(result), memcached_result_flags(result), number);
    memcached_result_free(result);
    count++;
  }
  CHECK(count == KEYS);
}

static void count(memcached_st *memc) {
  uint64_t number = 0;
  CHECK(memcached_increment_with_initial(memc, "counter", 7, 1, 41, 0, &number) == MEMCACHED_SUCCESS && number == 41);
  CHECK(memcached_increment(memc, "counter", 7, 1, &number) == MEMCACHED_SUCCESS && number == 42);
  CHECK(memcached_delete(memc, "counter", 7, 0) == MEMCACHED_SUCCESS);
  CHECK(memcached_exist(memc, "counter", 7) == MEMCACHED_NOTFOUND);
}

// A child's calls on its parent's handle succeed or fail, and return.
static void be_child(memcached_st *memc) {
  alarm(60);
  find(memc, "parent");
  store(memc, "child");
  find(memc, "child");
  _exit(0);
}

static memcached_st *handle(const char *server) {
  char text[200];
  int length = snprintf(text, sizeof text,
                        "--SERVER=fab://%s --BINARY-PROTOCOL --CONNECT-TIMEOUT=10000 --POLL-TIMEOUT=10000", server);
  memcached_st *memc = memcached(text, (size_t)length);
  if (memc == NULL) {
    fprintf(stderr, "%s is not understood\n", text);
    exit(1);
  }
  return memc;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: fabric HOST:PORT PROCESS\n");
    return 2;
  }
  memcached_st *memc = handle(argv[1]);
  store(memc, "parent");
  find(memc, "parent");
  count(memc);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    be_child(memc);
  }
  find(memc, "parent");
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  find(memc, "child");

  CHECK(kill(atoi(argv[2]), SIGKILL) == 0);
  time_t begun = time(NULL);
  for (int call = 0; call < 3; call++) {
    size_t length;
    uint32_t flags;
    memcached_return_t error;
    char *found = memcached_get(memc, "parent-1", 8, &length, &flags, &error);
    CHECK(found == NULL && error != MEMCACHED_SUCCESS && error != MEMCACHED_NOTFOUND);
    CHECK(memcached_set(memc, "a", 1, "b", 1, 0, 0) != MEMCACHED_SUCCESS);
  }
  CHECK(time(NULL) - begun < 90);
  memcached_free(memc);
  return 0;
}
