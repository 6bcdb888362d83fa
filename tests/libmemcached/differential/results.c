/* Result objects by themselves. */

#include "scenarios.h"
#include "servers.h"

static void read_all(const memcached_result_st *result) {
  TEXT(memcached_result_key_value(result));
  NUMBER(memcached_result_key_length(result));
  TEXT(memcached_result_value(result));
  NUMBER(memcached_result_length(result));
  NUMBER(memcached_result_flags(result));
  NUMBER(memcached_result_cas(result));
}

void results(void) {
  memcached_st *memc = handle_on(1);
  memcached_result_st memory;
  memcached_result_st *made[] = {memcached_result_create(memc, NULL), memcached_result_create(memc, &memory)};
  for (unsigned n = 0; n < COUNT(made); n++) {
    memcached_result_st *result = made[n];
    if (!POINTER(result))
      continue;
    NUMBER(memcached_result_length(result));
    NUMBER(memcached_result_flags(result));
    NUMBER(memcached_result_cas(result));
    NUMBER(memcached_result_key_length(result));
    RC(memc, memcached_result_set_value(result, S("value")));
    NOTHING(memcached_result_set_flags(result, 77));
    NOTHING(memcached_result_set_expiration(result, 1234));
    trace_line("memcached_result_set_expiration", "%ld", (long) result->item_expiration);
    read_all(result);
    RC(memc, memcached_result_set_value(result, S("another value, longer than the first one")));
    read_all(result);
    RC(memc, memcached_result_set_value(result, S("")));
    NUMBER(memcached_result_length(result));
    RC(memc, memcached_result_set_value(result, S("taken")));
    char *taken = memcached_result_take_value(result);
    TEXT(taken);
    free(taken);
    NUMBER(memcached_result_length(result));
    POINTER(memcached_result_value(result));
    RC(memc, memcached_result_set_value(result, S("again")));
    NOTHING(memcached_result_reset(result));
    NUMBER(memcached_result_length(result));
    NUMBER(memcached_result_flags(result));
    NUMBER(memcached_result_key_length(result));
    NOTHING(memcached_result_free(result));
  }
  memcached_free(memc);
}

void results_of_fetch(void) {
  memcached_st *memc = handle_on(1);
  const char *key = "key";
  size_t length = 3;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 9));
  RC(memc, memcached_mget(memc, &key, &length, 1));
  memcached_result_st *result = memcached_fetch_result(memc, NULL, &rc);
  if (POINTER(result)) {
    TEXT(memcached_result_key_value(result));
    NUMBER(memcached_result_key_length(result));
    TEXT(memcached_result_value(result));
    NUMBER(memcached_result_flags(result));
    NUMBER(memcached_result_cas(result) != 0);
    char *taken = memcached_result_take_value(result);
    TEXT(taken);
    free(taken);
    NOTHING(memcached_result_reset(result));
    NUMBER(memcached_result_flags(result));
    NUMBER(memcached_result_length(result));
    NOTHING(memcached_result_free(result));
  }
  POINTER(memcached_fetch_result(memc, NULL, &rc));
  memcached_free(memc);
}
