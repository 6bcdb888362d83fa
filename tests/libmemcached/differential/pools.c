/* Pools of handles, and libmemcachedutil's other calls. */

#include "scenarios.h"
#include "servers.h"

#include <unistd.h>

enum { HANDLES_MAX = 8 };

static void popped(const char *call, const memcached_st *memc, memcached_return_t rc) {
  trace_line(call, "%s, %s", memc ? "a handle" : "null", rc_name(rc));
}

void pools(void) {
  memcached_st *memc = handle_on(1);
  memcached_pool_st *pool = memcached_pool_create(memc, 2, 4);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  if (!POINTER(pool))
    return;
  memcached_st *taken[HANDLES_MAX];
  unsigned count = 0;
  for (; count < HANDLES_MAX; count++) {
    taken[count] = memcached_pool_pop(pool, false, &rc);
    popped("memcached_pool_pop", taken[count], rc);
    if (!taken[count])
      break;
    RC(taken[count], memcached_set(taken[count], S("key"), S("value"), 0, 0));
  }
  NUMBER(count);
  struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
  popped("memcached_pool_fetch", memcached_pool_fetch(pool, &moment, &rc), rc);
  popped("memcached_pool_fetch(NULL)", memcached_pool_fetch(pool, NULL, &rc), rc);
  for (unsigned n = 0; n < count; n++)
    RC(NULL, n & 1 ? memcached_pool_release(pool, taken[n]) : memcached_pool_push(pool, taken[n]));
  memcached_st *again = memcached_pool_pop(pool, true, &rc);
  popped("memcached_pool_pop(blocking)", again, rc);
  RC(NULL, memcached_pool_release(pool, again));
  again = memcached_pool_fetch(pool, &moment, &rc);
  popped("memcached_pool_fetch", again, rc);
  RC(again, memcached_exist(again, S("key")));
  RC(NULL, memcached_pool_release(pool, again));
  IN_CHILD(RC(NULL, memcached_pool_release(pool, NULL)));
  IN_CHILD(RC(NULL, memcached_pool_release(NULL, memc)));
  IN_CHILD(RC(NULL, memcached_pool_push(NULL, memc)));
  IN_CHILD(popped("memcached_pool_pop(NULL)", memcached_pool_pop(NULL, false, &rc), rc));
  IN_CHILD(popped("memcached_pool_fetch(NULL)", memcached_pool_fetch(NULL, &moment, &rc), rc));
  trace_line("memcached_pool_destroy", "the given handle: %d", memcached_pool_destroy(pool) == memc);
  IN_CHILD(POINTER(memcached_pool_destroy(NULL)));
  RC(memc, memcached_exist(memc, S("key")));
  memcached_free(memc);
}

void pools_options(void) {
  char options[600];
  int length = snprintf(options, sizeof options, "--%s=%s --POOL-MIN=1 --POOL-MAX=3",
                        servers_local() ? "SOCKET" : "SERVER", servers_local() ? "" : server_address(0));
  if (servers_local())
    length = snprintf(options, sizeof options, "--SOCKET=\"%s\" --POOL-MIN=1 --POOL-MAX=3", server_address(0));
  memcached_pool_st *pool = memcached_pool(options, (size_t) length);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  if (!POINTER(pool))
    return;
  memcached_st *taken[HANDLES_MAX];
  unsigned count = 0;
  while (count < HANDLES_MAX && (taken[count] = memcached_pool_pop(pool, false, &rc)))
    count++;
  NUMBER(count);
  popped("memcached_pool_pop of options", NULL, rc);
  for (unsigned n = 0; n < count; n++) {
    RC(taken[n], memcached_set(taken[n], S("key"), S("value"), 0, 0));
    RC(NULL, memcached_pool_release(pool, taken[n]));
  }
  memcached_st *master = memcached_pool_destroy(pool);
  POINTER(master);
  IN_CHILD(POINTER(memcached_pool(S("--NONSENSE"))));
  IN_CHILD(POINTER(memcached_pool(NULL, 0)));
  IN_CHILD(POINTER(memcached_pool(S("--SERVER=localhost"))));
}

void pools_limits(void) {
  memcached_st *memc = handle_on(1);
  IN_CHILD(POINTER(memcached_pool_create(NULL, 1, 2)));
  IN_CHILD(POINTER(memcached_pool_create(memc, 0, 2)));
  IN_CHILD(POINTER(memcached_pool_create(memc, 3, 2)));
  IN_CHILD(POINTER(memcached_pool_create(memc, 1, 0)));
  memcached_pool_st *pool = memcached_pool_create(memc, 1, 2);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  uint64_t value = 4711;
  RC(NULL, memcached_pool_behavior_get(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, &value));
  NUMBER(value);
  RC(NULL, memcached_pool_behavior_set(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  RC(NULL, memcached_pool_behavior_get(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, &value));
  NUMBER(value);
  memcached_st *one = memcached_pool_pop(pool, false, &rc);
  NUMBER(memcached_behavior_get(one, MEMCACHED_BEHAVIOR_SUPPORT_CAS));
  RC(NULL, memcached_pool_behavior_set(pool, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1));
  memcached_st *two = memcached_pool_pop(pool, false, &rc);
  NUMBER(memcached_behavior_get(one, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL));
  NUMBER(memcached_behavior_get(two, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL));
  RC(NULL, memcached_pool_release(pool, one));
  RC(NULL, memcached_pool_release(pool, two));
  one = memcached_pool_pop(pool, false, &rc);
  NUMBER(memcached_behavior_get(one, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL));
  RC(NULL, memcached_pool_release(pool, one));
  RC(NULL, memcached_pool_behavior_set(pool, MEMCACHED_BEHAVIOR_USER_DATA, 1));
  IN_CHILD(RC(NULL, memcached_pool_behavior_get(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, NULL)));
  IN_CHILD(RC(NULL, memcached_pool_behavior_get(NULL, MEMCACHED_BEHAVIOR_SUPPORT_CAS, &value)));
  IN_CHILD(RC(NULL, memcached_pool_behavior_set(NULL, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1)));
  memcached_pool_destroy(pool);
  memcached_free(memc);
}

void util(void) {
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  const char *host = server_host(0);
  in_port_t port = server_port(0);
  NUMBER(libmemcached_util_ping(host, port, &rc));
  NUMBER(rc);
  NUMBER(libmemcached_util_ping(host, port, NULL));
  NUMBER(libmemcached_util_ping2(host, port, NULL, NULL, &rc));
  NUMBER(rc);
  NUMBER(libmemcached_util_getpid(host, port, &rc) > 0);
  NUMBER(rc);
  NUMBER(libmemcached_util_getpid2(host, port, NULL, NULL, &rc) > 0);
  NUMBER(rc);
  memcached_st *memc = handle_on(1);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  NUMBER(libmemcached_util_flush(host, port, &rc));
  NUMBER(rc);
  RC(memc, memcached_exist(memc, S("key")));
  NUMBER(libmemcached_util_version_check(memc, 1, 0, 0));
  NUMBER(libmemcached_util_version_check(memc, 200, 0, 0));
  memcached_free(memc);
  IN_CHILD(NUMBER(libmemcached_util_version_check(NULL, 1, 0, 0)));
  memc = handle_on(0);
  add_dead(memc);
  NUMBER(libmemcached_util_version_check(memc, 1, 0, 0));
  memcached_free(memc);
  NUMBER(libmemcached_util_ping("127.0.0.1", 1, &rc));
  NUMBER(rc);
  NUMBER((uint64_t) libmemcached_util_getpid("127.0.0.1", 1, &rc));
  NUMBER(rc);
  NUMBER(libmemcached_util_flush("127.0.0.1", 1, &rc));
  NUMBER(rc);
}
