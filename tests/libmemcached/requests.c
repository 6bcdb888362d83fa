// Requests of RDMA-Memcached as its programs make them: a window of stores that share a value, then gets with room and
// without, by waiting and by polling. The argument is a server list in libmemcached's format. Exits with 0 if all checks
// pass. Compiled with -include libmemcached/requests.h, as those programs are.
#include <libmemcached-1.0/memcached.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 32
#define ROUNDS 20

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, memcached_last_error_message(memc));                       \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

// The library's offsets of the header's fields.
_Static_assert(offsetof(memcached_request_st, value) == 0, "value");
_Static_assert(offsetof(memcached_request_st, value_length) == 8, "value_length");
_Static_assert(offsetof(memcached_request_st, flags) == 16, "flags");
_Static_assert(offsetof(memcached_request_st, response) == 20, "response");

static memcached_return_t over(memcached_st *memc, memcached_request_st *request, int by_waiting) {
  if (by_waiting) {
    memcached_wait(memc, request);
  } else {
    while (memcached_test(memc, request) == MEMCACHED_IN_PROGRESS) {
    }
  }
  return request->response;
}

static void store(memcached_st *memc, char *value, size_t length) {
  memcached_request_st *window[WINDOW];
  for (int i = 0; i < WINDOW; i++) {
    window[i] = memcached_request_create(memc, value, length, 0);
    CHECK(window[i] != NULL);
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < WINDOW; i++) {
      char key[32];
      size_t key_length = (size_t)sprintf(key, "key%d-%d", round, i);
      CHECK((i % 2 ? memcached_iset : memcached_bset)(memc, key, key_length, window[i], 0, (uint32_t)i)
            == MEMCACHED_SUCCESS);
      // The caller may reuse the buffer; that of memcached_iset is copied here.
      memset(key, 'x', sizeof key);
    }
    for (int i = 0; i < WINDOW; i++) {
      CHECK(over(memc, window[i], round % 2) == MEMCACHED_SUCCESS);
    }
  }
  for (int i = 0; i < WINDOW; i++) {
    memcached_request_free(memc, window[i]);
  }
}

static void find(memcached_st *memc, const char *value, size_t length) {
  for (int with_room = 0; with_room < 2; with_room++) {
    memcached_request_st *window[WINDOW];
    char *room[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
      room[i] = with_room ? malloc(length + 1) : NULL;
      window[i] = memcached_request_create(memc, room[i], with_room && i % 2 ? length + 1 : 0, 0);
      CHECK(window[i] != NULL);
    }
    for (int round = 0; round < ROUNDS; round++) {
      for (int i = 0; i < WINDOW; i++) {
        char key[32];
        size_t key_length = (size_t)sprintf(key, "key%d-%d", round, i);
        CHECK((i % 2 ? memcached_iget : memcached_bget)(memc, key, key_length, window[i]) == MEMCACHED_SUCCESS);
      }
      for (int i = 0; i < WINDOW; i++) {
        CHECK(over(memc, window[i], round % 2) == MEMCACHED_SUCCESS);
        CHECK(window[i]->value_length == length && window[i]->flags == (uint32_t)i);
        CHECK(memcmp(window[i]->value, value, length) == 0 && window[i]->value[length] == '\0');
        if (with_room) {
          CHECK(window[i]->value == room[i]);
        } else {
          free(window[i]->value);
        }
      }
    }
    for (int i = 0; i < WINDOW; i++) {
      CHECK(memcached_iget(memc, "nothing", 7, window[i]) == MEMCACHED_SUCCESS);
      CHECK(over(memc, window[i], i % 2) == MEMCACHED_NOTFOUND);
      memcached_request_free(memc, window[i]);
      free(room[i]);
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: requests SERVERS\n");
    return 2;
  }
  memcached_st *memc = memcached_create(NULL);
  memcached_server_st *servers = memcached_servers_parse(argv[1]);
  CHECK(memcached_server_push(memc, servers) == MEMCACHED_SUCCESS);
  memcached_server_list_free(servers);
  const size_t lengths[] = {0, 1, 64, 4096, 50000};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    char *value = malloc(lengths[i] + 1);
    memset(value, 'v', lengths[i]);
    store(memc, value, lengths[i]);
    find(memc, value, lengths[i]);
    free(value);
  }
  memcached_free(memc);
  return 0;
}
