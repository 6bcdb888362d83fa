/* Requests without answers, buffered requests, replicas, and failing servers. */

#include "scenarios.h"
#include "servers.h"

#include <unistd.h>

static void get(memcached_st *memc, const char *key) {
  size_t length = 0;
  uint32_t flags = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[96];
  snprintf(call, sizeof call, "memcached_get(%s)", key);
  char *value = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
  trace_value(memc, call, value, length, flags, rc);
  free(value);
}

/* After a get without replies to stores, libmemcached's text protocol leaves the end of the answer to the
   next call that reads, so the calls that read use a separate handle. */
static void answered(memcached_st *memc) {
  RC(memc, memcached_touch(memc, S("key"), 100));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, memcached_version(memc));
}

/* In the binary protocol libmemcached mistakes the answers to refused or buffered requests for those to other
   calls, so these requests succeed. */
static void stores_that_succeed(memcached_st *memc) {
  uint64_t number = 4711;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 1));
  RC(memc, memcached_add(memc, S("new"), S("added"), 0, 2));
  RC(memc, memcached_replace(memc, S("key"), S("replaced"), 0, 3));
  RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 0));
  RC(memc, memcached_prepend(memc, S("key"), S("start-"), 0, 0));
  RC(memc, memcached_set(memc, S("gone"), S("value"), 0, 0));
  RC(memc, memcached_delete(memc, S("gone"), 0));
  get(memc, "key");
  get(memc, "new");
  get(memc, "gone");
  RC(memc, memcached_set(memc, S("number"), S("10"), 0, 0));
  RC(memc, memcached_increment(memc, S("number"), 1, &number));
  get(memc, "number");
  RC(memc, memcached_flush_buffers(memc));
  peek(0, "key");
  RC(memc, memcached_flush(memc, 0));
  get(memc, "key");
  memcached_free(memc);
}

static void stores(memcached_st *memc) {
  uint64_t number = 4711;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 1));
  RC(memc, memcached_add(memc, S("key"), S("added"), 0, 2));
  RC(memc, memcached_add(memc, S("new"), S("added"), 0, 2));
  RC(memc, memcached_replace(memc, S("absent"), S("replaced"), 0, 3));
  RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 0));
  RC(memc, memcached_prepend(memc, S("key"), S("start-"), 0, 0));
  RC(memc, memcached_cas(memc, S("key"), S("swapped"), 0, 0, NO_TOKEN));
  RC(memc, memcached_set(memc, S("gone"), S("value"), 0, 0));
  RC(memc, memcached_delete(memc, S("gone"), 0));
  RC(memc, memcached_delete(memc, S("absent"), 0));
  get(memc, "key");
  get(memc, "new");
  get(memc, "gone");
  RC(memc, memcached_set(memc, S("number"), S("10"), 0, 0));
  RC(memc, memcached_increment(memc, S("number"), 1, &number));
  RC(memc, memcached_decrement(memc, S("number"), 2, &number));
  get(memc, "number");
  RC(memc, memcached_set_by_key(memc, S("group"), S("grouped"), S("value"), 0, 0));
  RC(memc, memcached_delete_by_key(memc, S("group"), S("grouped"), 0));
  RC(memc, memcached_flush_buffers(memc));
  peek(0, "key");
  RC(memc, memcached_flush(memc, 0));
  memcached_free(memc);
}

static void with_behaviour(bool binary, memcached_behavior_t flag) {
  memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
  RC(memc, memcached_behavior_set(memc, flag, 1));
  answered(memc);
  if (!binary || flag == MEMCACHED_BEHAVIOR_NOREPLY) {
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 1));
    answered(memc);
  }
  memcached_free(memc);
  memc = binary ? handle_binary(1) : handle_on(1);
  RC(memc, memcached_behavior_set(memc, flag, 1));
  if (binary)
    stores_that_succeed(memc);
  else
    stores(memc);
}

void noreply_text(void) {
  with_behaviour(false, MEMCACHED_BEHAVIOR_NOREPLY);
}

void noreply_binary(void) {
  with_behaviour(true, MEMCACHED_BEHAVIOR_NOREPLY);
}

void buffering_text(void) {
  with_behaviour(false, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
}

void buffering_binary(void) {
  with_behaviour(true, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
}

/* More than a buffer holds; both behaviours; the ways to flush a buffer. */
void buffering_mixed(void) {
  char *bytes = calloc(1, 100000);
  for (int mode = 0; mode < 6; mode++) {
    memcached_st *memc = mode & 1 ? handle_binary(2) : handle_on(2);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1));
    if (mode >= 2)
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 1));
    if (mode >= 4)
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NO_BLOCK, 1));
    for (int n = 0; n < 40; n++) {
      char key[16];
      size_t length = (size_t) snprintf(key, sizeof key, "buffered-%d", n);
      RC(memc, memcached_set(memc, key, length, bytes, (size_t) n * 100, 0, 0));
    }
    get(memc, "buffered-39");
    RC(memc, memcached_set(memc, S("large"), bytes, 100000, 0, 0));
    get(memc, "large");
    RC(memc, memcached_set(memc, S("last"), S("value"), 0, 0));
    RC(memc, memcached_flush_buffers(memc));
    RC(memc, memcached_flush_buffers(memc));
    get(memc, "last");
    RC(memc, memcached_set(memc, S("left"), S("value"), 0, 0));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 0));
    get(memc, "left");
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1));
    RC(memc, memcached_set(memc, S("quit"), S("value"), 0, 0));
    NOTHING(memcached_quit(memc));
    get(memc, "quit");
    memcached_free(memc);
  }
  free(bytes);
}

/* Requests to replicas stay in buffers until the connections close. */
static void peek_all(memcached_st *memc, const char *key) {
  memcached_quit(memc);
  for (unsigned n = 0; n < SERVERS_MAX; n++)
    peek(n, key);
}

void replicas(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1));
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 3));
    peek_all(memc, "key");
    get(memc, "key");
    const char *keys[] = {"key", "absent", "other"};
    size_t lengths[] = {3, 6, 5};
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    RC(memc, memcached_set(memc, S("other"), S("value"), 0, 4));
    RC(memc, memcached_mget(memc, keys, lengths, 3));
    unsigned count = 0;
    for (memcached_result_st *result; (result = memcached_fetch_result(memc, NULL, &rc)); count++)
      memcached_result_free(result);
    trace_result(memc, "memcached_fetch_result of replicas", NULL, rc);
    NUMBER(count);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ, 1));
    for (int n = 0; n < 4; n++)
      get(memc, "key");
    RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 3));
    peek_all(memc, "key");
    RC(memc, memcached_delete(memc, S("key"), 0));
    peek_all(memc, "key");
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 2));
    RC(memc, memcached_set(memc, S("key"), S("thrice"), 0, 3));
    peek_all(memc, "key");
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 5));
    RC(memc, memcached_set(memc, S("key"), S("more"), 0, 3));
    peek_all(memc, "key");
    memcached_free(memc);
  }
}

/* The server of a key has died: its replica answers. */
void replicas_dead(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *whole = binary ? handle_binary(2) : handle_on(2);
    RC(whole, memcached_behavior_set(whole, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1));
    for (char key = 'a'; key < 'g'; key++)
      RC(whole, memcached_set(whole, &key, 1, S("value"), 0, 0));
    memcached_free(whole);
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, add_dead(memc));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1));
    for (char key = 'a'; key < 'g'; key++) {
      char name[] = {key, '\0'};
      get(memc, name);
      RC(memc, memcached_set(memc, &key, 1, S("other"), 0, 0));
    }
    memcached_free(memc);
  }
}

static void rounds(memcached_st *memc, int count) {
  for (int round = 0; round < count; round++)
    for (char key = 'a'; key < 'g'; key++) {
      RC(memc, memcached_set(memc, &key, 1, S("value"), 0, 0));
      memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
      const memcached_instance_st *instance = memcached_server_by_key(memc, &key, 1, &rc);
      trace_server("memcached_server_by_key", instance, rc);
    }
  NUMBER(memcached_server_count(memc));
}

static const memcached_server_distribution_t distributions_tried[] = {
    MEMCACHED_DISTRIBUTION_MODULA,
    MEMCACHED_DISTRIBUTION_CONSISTENT,
    MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA,
};

void ejection(void) {
  for (unsigned n = 0; n < COUNT(distributions_tried); n++)
    for (unsigned limit = 1; limit < 4; limit += 2) {
      memcached_st *memc = handle_on(2);
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, distributions_tried[n]));
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS, 1));
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, limit));
      RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 30));
      RC(memc, add_dead(memc));
      rounds(memc, 3);
      NOTHING(memcached_autoeject(memc));
      rounds(memc, 1);
      memcached_free(memc);
    }
}

void ejection_removed(void) {
  for (unsigned n = 0; n < COUNT(distributions_tried); n++) {
    memcached_st *memc = handle_on(2);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, distributions_tried[n]));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS, 1));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 30));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DEAD_TIMEOUT, 30));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, 2));
    RC(memc, add_dead(memc));
    rounds(memc, 4);
    memcached_free(memc);
  }
}

/* A failed server is retried after its timeout. */
void retry_timeout(void) {
  memcached_st *memc = handle_on(0);
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 1));
  RC(memc, add_dead(memc));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  usleep(2500 * 1000);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  memcached_free(memc);
  memc = handle_on(0);
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 0));
  RC(memc, add_dead(memc));
  for (int n = 0; n < 4; n++)
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  memcached_free(memc);
}
