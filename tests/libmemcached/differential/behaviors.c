/* Behaviours: defaults, accepted values, and effects. */

#include "scenarios.h"
#include "servers.h"

static void set_flag(memcached_st *memc, unsigned flag, uint64_t value) {
  char call[96];
  snprintf(call, sizeof call, "memcached_behavior_set(%u, %llu)", flag, (unsigned long long) value);
  trace_rc(memc, call, memcached_behavior_set(memc, flag, value));
  snprintf(call, sizeof call, "memcached_behavior_get(%u)", flag);
  trace_number(call, memcached_behavior_get(memc, flag));
}

/* The kernel determines the sizes of a socket's buffers. */
static bool is_of_kernel(unsigned flag) {
  return flag == MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE || flag == MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE;
}

void behaviors_defaults(void) {
  for (unsigned servers = 0; servers < 2; servers++) {
    memcached_st *memc = handle_on(servers);
    for (unsigned flag = 0; flag < MEMCACHED_BEHAVIOR_MAX; flag++) {
      char call[96];
      snprintf(call, sizeof call, "memcached_behavior_get(%u)", flag);
      if (is_of_kernel(flag) && servers)
        trace_number(call, memcached_behavior_get(memc, flag) > 0);
      else
        trace_number(call, memcached_behavior_get(memc, flag));
    }
    NUMBER(memcached_behavior_get_distribution(memc));
    NUMBER(memcached_behavior_get_key_hash(memc));
    NUMBER(memcached_behavior_get_distribution_hash(memc));
    memcached_free(memc);
  }
  for (unsigned flag = 0; flag < MEMCACHED_BEHAVIOR_MAX; flag++)
    TEXT(libmemcached_string_behavior(flag));
  for (unsigned type = 0; type <= MEMCACHED_DISTRIBUTION_CONSISTENT_MAX; type++)
    IN_CHILD(TEXT(libmemcached_string_distribution(type)));
  for (unsigned type = 0; type <= MEMCACHED_HASH_MAX; type++)
    IN_CHILD(TEXT(libmemcached_string_hash(type)));
  IN_CHILD(TEXT(libmemcached_string_behavior(MEMCACHED_BEHAVIOR_MAX)));
}

void behaviors_flags(void) {
  for (unsigned flag = 0; flag < MEMCACHED_BEHAVIOR_MAX; flag++) {
    if (flag == MEMCACHED_BEHAVIOR_LOAD_FROM_FILE || is_of_kernel(flag))
      continue;
    memcached_st *memc = handle_on(0);
    set_flag(memc, flag, 1);
    set_flag(memc, flag, 0);
    set_flag(memc, flag, 2);
    memcached_free(memc);
    memc = handle_on(2);
    set_flag(memc, flag, 1);
    NUMBER(memcached_server_count(memc));
    set_flag(memc, flag, 0);
    memcached_free(memc);
  }
}

void behaviors_numbers(void) {
  static const unsigned flags[] = {
      MEMCACHED_BEHAVIOR_POLL_TIMEOUT,         MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT,
      MEMCACHED_BEHAVIOR_RETRY_TIMEOUT,        MEMCACHED_BEHAVIOR_SND_TIMEOUT,
      MEMCACHED_BEHAVIOR_RCV_TIMEOUT,          MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT,
      MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK,     MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK,
      MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH,      MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS,
      MEMCACHED_BEHAVIOR_TCP_KEEPIDLE,         MEMCACHED_BEHAVIOR_DEAD_TIMEOUT,
      MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT, MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS,
  };
  static const uint64_t values[] = {0, 1, 3, 100, 5000, 65536, 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 40};
  for (unsigned n = 0; n < COUNT(flags); n++) {
    memcached_st *memc = handle_on(0);
    for (unsigned value = 0; value < COUNT(values); value++)
      set_flag(memc, flags[n], values[value]);
    memcached_free(memc);
  }
}

void behaviors_hashes(void) {
  for (unsigned hash = 0; hash <= MEMCACHED_HASH_MAX + 1; hash++) {
    memcached_st *memc = handle_on(0);
    set_flag(memc, MEMCACHED_BEHAVIOR_HASH, hash);
    set_flag(memc, MEMCACHED_BEHAVIOR_KETAMA_HASH, hash);
    RC(memc, memcached_behavior_set_key_hash(memc, hash));
    NUMBER(memcached_behavior_get_key_hash(memc));
    RC(memc, memcached_behavior_set_distribution_hash(memc, hash));
    NUMBER(memcached_behavior_get_distribution_hash(memc));
    IN_CHILD(NUMBER(memcached_generate_hash(memc, S("key"))));
    memcached_free(memc);
  }
}

void behaviors_distributions(void) {
  for (unsigned type = 0; type <= MEMCACHED_DISTRIBUTION_CONSISTENT_MAX; type++) {
    memcached_st *memc = handle_on(2);
    if (type == MEMCACHED_DISTRIBUTION_CONSISTENT_MAX) {
      IN_CHILD(RC(memc, memcached_behavior_set_distribution(memc, type)));
      IN_CHILD(RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, type)));
    } else {
      RC(memc, memcached_behavior_set_distribution(memc, type));
      set_flag(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, type);
    }
    NUMBER(memcached_behavior_get_distribution(memc));
    NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_KETAMA));
    NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED));
    memcached_free(memc);
  }
}

void behaviors_invalid(void) {
  memcached_st *memc = handle_on(1);
  IN_CHILD(RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_MAX, 1)));
  IN_CHILD(RC(memc, memcached_behavior_set(memc, 1000, 1)));
  IN_CHILD(NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_MAX)));
  IN_CHILD(NUMBER(memcached_behavior_get(memc, 1000)));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_LOAD_FROM_FILE, 1));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_USER_DATA, 1));
  memcached_free(memc);
}

/* Set while connections are open: stored items stay readable. */
void behaviors_connected(void) {
  static const unsigned flags[] = {
      MEMCACHED_BEHAVIOR_NO_BLOCK,      MEMCACHED_BEHAVIOR_TCP_NODELAY,   MEMCACHED_BEHAVIOR_SUPPORT_CAS,
      MEMCACHED_BEHAVIOR_VERIFY_KEY,    MEMCACHED_BEHAVIOR_SND_TIMEOUT,   MEMCACHED_BEHAVIOR_RCV_TIMEOUT,
      MEMCACHED_BEHAVIOR_TCP_KEEPALIVE, MEMCACHED_BEHAVIOR_CACHE_LOOKUPS, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL,
      MEMCACHED_BEHAVIOR_SORT_HOSTS,    MEMCACHED_BEHAVIOR_KETAMA,        MEMCACHED_BEHAVIOR_CORK,
  };
  for (unsigned n = 0; n < COUNT(flags); n++) {
    memcached_st *memc = handle_on(1);
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
    set_flag(memc, flags[n], 1000);
    RC(memc, memcached_exist(memc, S("key")));
    set_flag(memc, flags[n], 0);
    RC(memc, memcached_exist(memc, S("key")));
    memcached_free(memc);
  }
  memcached_st *memc = handle_on(1);
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE, 65536));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE, 65536));
  RC(memc, memcached_exist(memc, S("key")));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE) > 0);
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE) > 0);
  memcached_free(memc);
}

void buckets(void) {
  memcached_st *memc = handle_on(3);
  static const uint32_t map[] = {0, 1, 2, 0, 1, 2, 0, 1}, forward[] = {1, 2, 0, 1, 2, 0, 1, 2};
  IN_CHILD(RC(memc, memcached_bucket_set(memc, NULL, NULL, 8, 0)));
  IN_CHILD(RC(memc, memcached_bucket_set(memc, map, NULL, 0, 0)));
  RC(memc, memcached_bucket_set(memc, map, NULL, COUNT(map), 0));
  NUMBER(memcached_behavior_get_distribution(memc));
  RC(memc, memcached_behavior_set_distribution(memc, MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET));
  NUMBER(memcached_behavior_get_distribution(memc));
  static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"};
  for (unsigned round = 0; round < 2; round++) {
    for (unsigned n = 0; n < COUNT(names); n++) {
      memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
      NUMBER(memcached_generate_hash(memc, names[n], 1));
      const memcached_instance_st *instance = memcached_server_by_key(memc, names[n], 1, &rc);
      trace_server("memcached_server_by_key with buckets", instance, rc);
      RC(memc, memcached_set(memc, names[n], 1, S("value"), 0, 0));
    }
    RC(memc, memcached_bucket_set(memc, map, forward, COUNT(map), 1));
  }
  memcached_free(memc);
}
