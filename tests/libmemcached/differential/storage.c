/* Stores: every function, with every kind of value, in both protocols. */

#include "scenarios.h"
#include "servers.h"

#include <time.h>

static void get(memcached_st *memc, const char *key) {
  size_t length = 0;
  uint32_t flags = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[300];
  snprintf(call, sizeof call, "memcached_get(%s)", key);
  char *value = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
  trace_value(memc, call, value, length, flags, rc);
  free(value);
}

static void storage(memcached_st *memc) {
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 7));
  get(memc, "key");
  RC(memc, memcached_set(memc, S("key"), S("other"), 100, 0xffffffff));
  get(memc, "key");
  RC(memc, memcached_add(memc, S("key"), S("added"), 0, 1));
  RC(memc, memcached_add(memc, S("new"), S("added"), 0, 1));
  get(memc, "new");
  RC(memc, memcached_replace(memc, S("key"), S("replaced"), 0, 2));
  RC(memc, memcached_replace(memc, S("absent"), S("replaced"), 0, 2));
  get(memc, "key");
  get(memc, "absent");
  RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 3));
  RC(memc, memcached_prepend(memc, S("key"), S("start-"), 0, 4));
  RC(memc, memcached_append(memc, S("absent"), S("-end"), 0, 3));
  RC(memc, memcached_prepend(memc, S("absent"), S("start-"), 0, 4));
  get(memc, "key");
  RC(memc, memcached_set(memc, S("key"), S(""), 0, 0));
  get(memc, "key");
  RC(memc, memcached_append(memc, S("key"), S(""), 0, 0));
  get(memc, "key");
  peek(0, "key");
}

void storage_text(void) {
  memcached_st *memc = handle_on(1);
  storage(memc);
  memcached_free(memc);
}

void storage_binary(void) {
  memcached_st *memc = handle_binary(1);
  storage(memc);
  memcached_free(memc);
}

static void by_key(memcached_st *memc, const char *group) {
  size_t length = strlen(group);
  RC(memc, memcached_set_by_key(memc, group, length, S("key"), S("value"), 0, 1));
  RC(memc, memcached_add_by_key(memc, group, length, S("key"), S("added"), 0, 2));
  RC(memc, memcached_add_by_key(memc, group, length, S("new"), S("added"), 0, 2));
  RC(memc, memcached_replace_by_key(memc, group, length, S("key"), S("replaced"), 0, 3));
  RC(memc, memcached_replace_by_key(memc, group, length, S("absent"), S("replaced"), 0, 3));
  RC(memc, memcached_append_by_key(memc, group, length, S("key"), S("-end"), 0, 4));
  RC(memc, memcached_prepend_by_key(memc, group, length, S("key"), S("start-"), 0, 5));
  RC(memc, memcached_append_by_key(memc, group, length, S("absent"), S("-end"), 0, 4));
  RC(memc, memcached_prepend_by_key(memc, group, length, S("absent"), S("start-"), 0, 5));
  RC(memc, memcached_cas_by_key(memc, group, length, S("key"), S("swapped"), 0, 5, NO_TOKEN));
  RC(memc, memcached_cas_by_key(memc, group, length, S("absent"), S("swapped"), 0, 5, NO_TOKEN));
  for (unsigned n = 0; n < SERVERS_MAX; n++) {
    peek(n, "key");
    peek(n, "new");
  }
}

void storage_by_key(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    servers_flush();
    by_key(memc, "group");
    by_key(memc, "another group");
    by_key(memc, "third");
    RC(memc, memcached_set_by_key(memc, "", 0, S("key"), S("value"), 0, 1));
    RC(memc, memcached_set_by_key(memc, NULL, 0, S("key"), S("value"), 0, 1));
    memcached_free(memc);
  }
}

static char *pattern(size_t length) {
  char *bytes = malloc(length + 1);
  for (size_t n = 0; n < length; n++)
    bytes[n] = (char) (n * 31 + n / 251);
  return bytes;
}

void storage_values(void) {
  static const size_t lengths[] = {0,    1,    2,    55,    64,    100,   511,   1023,   1024,  1025,
                                   8190, 8196, 9000, 16384, 65535, 65536, 100000, 262144, 524288, 1000000};
  char *bytes = pattern(1000000);
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    for (unsigned n = 0; n < COUNT(lengths); n++) {
      RC(memc, memcached_set(memc, S("value"), bytes, lengths[n], 0, n));
      get(memc, "value");
    }
    RC(memc, memcached_set(memc, S("zeros"), "a\0b\r\nEND\r\n", 10, 0, 0));
    get(memc, "zeros");
    RC(memc, memcached_set(memc, S("null"), NULL, 0, 0, 0));
    get(memc, "null");
    memcached_free(memc);
  }
  free(bytes);
}

/* The value's CAS, by a fetch. */
static uint64_t cas_of(memcached_st *memc, const char *key) {
  size_t length = strlen(key);
  memcached_return_t rc = memcached_mget(memc, &key, &length, 1);
  uint64_t cas = 0;
  trace_rc(memc, "memcached_mget for a token", rc);
  for (memcached_result_st *result; (result = memcached_fetch_result(memc, NULL, &rc));) {
    trace_result(memc, "memcached_fetch_result", result, rc);
    cas = memcached_result_cas(result);
    memcached_result_free(result);
  }
  trace_result(memc, "memcached_fetch_result", NULL, rc);
  return cas;
}

void storage_cas(void) {
  for (int mode = 0; mode < 4; mode++) {
    memcached_st *memc = mode & 1 ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, (mode & 2) != 0));
    RC(memc, memcached_set(memc, S("key"), S("first"), 0, 0));
    uint64_t first = cas_of(memc, "key");
    if (first == 0)
      first = NO_TOKEN;
    RC(memc, memcached_cas(memc, S("key"), S("second"), 0, 9, first));
    uint64_t second = cas_of(memc, "key");
    if (second == 0)
      second = NO_TOKEN;
    RC(memc, memcached_cas(memc, S("key"), S("lost"), 0, 9, NO_TOKEN));
    RC(memc, memcached_cas(memc, S("absent"), S("lost"), 0, 9, NO_TOKEN));
    RC(memc, memcached_cas_by_key(memc, S("group"), S("key"), S("third"), 0, 9, second));
    cas_of(memc, "key");
    /* The text protocol has no token 0, and libmemcached does not handle the answers after its error. */
    if (mode & 1) {
      RC(memc, memcached_set(memc, S("key"), S("fourth"), 0, 0));
      RC(memc, memcached_cas(memc, S("key"), S("none"), 0, 9, 0));
      cas_of(memc, "key");
    }
    memcached_free(memc);
  }
}

void storage_expiry(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_set(memc, S("gone"), S("value"), -1, 0));
    get(memc, "gone");
    RC(memc, memcached_set(memc, S("past"), S("value"), 60 * 60 * 24 * 31, 0));
    get(memc, "past");
    RC(memc, memcached_set(memc, S("later"), S("value"), time(NULL) + 100, 0));
    get(memc, "later");
    RC(memc, memcached_add(memc, S("gone"), S("added"), 100, 0));
    get(memc, "gone");
    memcached_free(memc);
  }
}

void storage_too_large(void) {
  enum { LARGE = 3 << 20 };
  char *bytes = pattern(LARGE);
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_set(memc, S("key"), S("small"), 0, 0));
    RC(memc, memcached_set(memc, S("key"), bytes, LARGE, 0, 0));
    memcached_free(memc);
    memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_add(memc, S("new"), bytes, LARGE, 0, 0));
    memcached_free(memc);
    memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_set(memc, S("edge"), bytes, (1 << 20) - 512, 0, 0));
    get(memc, "edge");
    RC(memc, memcached_append(memc, S("edge"), bytes, 1024, 0, 0));
    get(memc, "edge");
    RC(memc, memcached_set(memc, S("after"), S("small"), 0, 0));
    get(memc, "after");
    memcached_free(memc);
  }
  free(bytes);
}
