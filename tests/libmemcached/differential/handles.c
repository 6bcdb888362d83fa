/* Handles: created, copied, reset, freed; and their contents. */

#include "scenarios.h"
#include "servers.h"

void handles(void) {
  POINTER(memcached_create(NULL));
  memcached_st *memc = memcached_create(NULL);
  TEXT(memcached_last_error_message(memc));
  NUMBER(memcached_last_error(memc));
  NUMBER(memcached_last_error_errno(memc));
  NUMBER(memcached_server_count(memc));
  NUMBER(memcached_query_id(memc));
  POINTER(memcached_get_user_data(memc));
  POINTER(memcached_server_get_last_disconnect(memc));
  RC(memc, add_server(memc, 0));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  NUMBER(memcached_query_id(memc) > 0);
  NOTHING(memcached_free(memc));
  NOTHING(memcached_free(NULL));
  POINTER(memcached(NULL, 0));
}

static void print_fields(const memcached_st *memc) {
  char call[] = "memcached_create.fields";
  trace_line(call, "binary %d, buffer %d, no_block %d, reply %d, cas %d, nodelay %d, sort %d, udp %d, verify %d",
             memc->flags.binary_protocol, memc->flags.buffer_requests, memc->flags.no_block, memc->flags.reply,
             memc->flags.support_cas, memc->flags.tcp_nodelay, memc->flags.use_sort_hosts, memc->flags.use_udp,
             memc->flags.verify_key);
  trace_line(call, "distribution %d, hosts %u, replicas %u, failure limit %u, timeout limit %u", memc->distribution,
             memc->number_of_hosts, memc->number_of_replicas, memc->server_failure_limit, memc->server_timeout_limit);
  trace_line(call, "poll %d, connect %d, retry %d, dead %d, send %d, receive %d, allocated %d", memc->poll_timeout,
             memc->connect_timeout, memc->retry_timeout, memc->dead_timeout, memc->snd_timeout, memc->rcv_timeout,
             memc->options.is_allocated);
}

void handles_of_stack(void) {
  memcached_st memory;
  memset(&memory, 0xa5, sizeof memory);
  memcached_st *memc = &memory;
  trace_line("memcached_create(&memory)", "%s", memcached_create(memc) == memc ? "the same" : "another");
  print_fields(memc);
  RC(memc, add_server(memc, 0));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NO_BLOCK, 1));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 700));
  print_fields(memc);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  memcached_free(memc);
  /* Again in the same memory. */
  memcached_create(memc);
  print_fields(memc);
  RC(memc, add_server(memc, 1));
  RC(memc, memcached_exist(memc, S("key")));
  memcached_free(memc);
}

void clones(void) {
  memcached_st *memc = handle_with(2, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL), memory;
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, MEMCACHED_DISTRIBUTION_CONSISTENT);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1);
  memcached_callback_set(memc, MEMCACHED_CALLBACK_NAMESPACE, "copied:");
  memcached_set_user_data(memc, &memory);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 5));
  memcached_st *copies[] = {memcached_clone(NULL, memc), memcached_clone(&memory, memc)};
  for (unsigned n = 0; n < COUNT(copies); n++) {
    memcached_st *copy = copies[n];
    if (!POINTER(copy))
      continue;
    NUMBER(memcached_server_count(copy));
    for (unsigned flag = 0; flag < MEMCACHED_BEHAVIOR_MAX; flag++)
      if (flag != MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE && flag != MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE) {
        char call[40];
        snprintf(call, sizeof call, "memcached_clone.behavior %u", flag);
        trace_line(call, "%llu", (unsigned long long) memcached_behavior_get(copy, flag));
      }
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    TEXT(memcached_callback_get(copy, MEMCACHED_CALLBACK_NAMESPACE, &rc));
    trace_line("memcached_clone.user_data", "%d", memcached_get_user_data(copy) == &memory);
    RC(copy, memcached_exist(copy, S("key")));
    RC(copy, memcached_set(copy, S("key"), S("other"), 0, 5));
    NOTHING(memcached_free(copy));
  }
  RC(memc, memcached_exist(memc, S("key")));
  POINTER(memcached_clone(NULL, NULL));
  /* Changes to the copy's list do not affect the original. */
  memcached_st *copy = memcached_clone(NULL, memc);
  NOTHING(memcached_servers_reset(copy));
  NUMBER(memcached_server_count(copy));
  NUMBER(memcached_server_count(memc));
  memcached_free(copy);
  memcached_free(memc);
}

/* A child process uses the handle and its connections in turn with its parent. */
void handles_forked(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    uint64_t number = 0;
    RC(memc, memcached_set(memc, S("number"), S("10"), 0, 0));
    for (int round = 0; round < 3; round++) {
      IN_CHILD({
        RC(memc, memcached_increment(memc, S("number"), 100, &number));
        NUMBER(number);
        RC(memc, memcached_exist(memc, S("absent")));
      });
      RC(memc, memcached_increment(memc, S("number"), 1, &number));
      NUMBER(number);
      RC(memc, memcached_exist(memc, S("number")));
    }
    memcached_free(memc);
  }
}

void user_data(void) {
  memcached_st *memc = handle_on(1);
  int first, second;
  POINTER(memcached_set_user_data(memc, &first));
  trace_line("memcached_get_user_data", "%d", memcached_get_user_data(memc) == &first);
  trace_line("memcached_set_user_data", "%d", memcached_set_user_data(memc, &second) == &first);
  trace_line("memcached_get_user_data", "%d", memcached_get_user_data(memc) == &second);
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_USER_DATA) != 0);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  trace_line("memcached_callback_get(USER_DATA)", "%d",
             memcached_callback_get(memc, MEMCACHED_CALLBACK_USER_DATA, &rc) == &second);
  POINTER(memcached_set_user_data(memc, NULL));
  POINTER(memcached_get_user_data(memc));
  memcached_free(memc);
}

static unsigned allocations;
static int allocator_context;

static void *counted_malloc(const memcached_st *memc, size_t size, void *context) {
  (void) memc;
  allocations += context == &allocator_context;
  return malloc(size);
}

static void counted_free(const memcached_st *memc, void *memory, void *context) {
  (void) memc;
  (void) context;
  free(memory);
}

static void *counted_realloc(const memcached_st *memc, void *memory, size_t size, void *context) {
  (void) memc;
  allocations += context == &allocator_context;
  return realloc(memory, size);
}

static void *counted_calloc(const memcached_st *memc, size_t count, size_t size, void *context) {
  (void) memc;
  allocations += context == &allocator_context;
  return calloc(count, size);
}

void allocators(void) {
  memcached_st *memc = handle_on(1);
  memcached_malloc_fn allocate = NULL;
  memcached_free_fn release = NULL;
  memcached_realloc_fn resize = NULL;
  memcached_calloc_fn clear = NULL;
  NOTHING(memcached_get_memory_allocators(memc, &allocate, &release, &resize, &clear));
  trace_line("memcached_get_memory_allocators", "%d %d %d %d", allocate != NULL, release != NULL, resize != NULL,
             clear != NULL);
  POINTER(memcached_get_memory_allocators_context(memc));
  RC(memc, memcached_set_memory_allocators(memc, counted_malloc, counted_free, NULL, counted_calloc, NULL));
  RC(memc, memcached_set_memory_allocators(memc, counted_malloc, counted_free, counted_realloc, counted_calloc,
                                           &allocator_context));
  trace_line("memcached_get_memory_allocators_context", "%d",
             memcached_get_memory_allocators_context(memc) == &allocator_context);
  memcached_get_memory_allocators(memc, &allocate, &release, &resize, &clear);
  trace_line("memcached_get_memory_allocators", "%d %d %d %d", allocate == counted_malloc, release == counted_free,
             resize == counted_realloc, clear == counted_calloc);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  allocations = 0;
  size_t length;
  uint32_t flags;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char *value = memcached_get(memc, S("key"), &length, &flags, &rc);
  trace_value(memc, "memcached_get with allocators", value, length, flags, rc);
  trace_line("memcached_get with allocators", "the value came from them: %d", allocations > 0);
  free(value);
  RC(memc, memcached_set_memory_allocators(memc, NULL, NULL, NULL, NULL, NULL));
  POINTER(memcached_get_memory_allocators_context(memc));
  memcached_free(memc);
}

void versions(void) {
  TEXT(memcached_lib_version());
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(2) : handle_on(2);
    const memcached_instance_st *instance = memcached_server_instance_by_position(memc, 0);
    NUMBER(memcached_server_major_version(instance));
    NUMBER(memcached_server_minor_version(instance));
    NUMBER(memcached_server_micro_version(instance));
    RC(memc, memcached_version(memc));
    NUMBER(memcached_server_major_version(instance));
    NUMBER(memcached_server_minor_version(instance));
    NUMBER(memcached_server_micro_version(instance));
    RC(memc, memcached_verbosity(memc, 0));
    RC(memc, memcached_verbosity(memc, 1));
    RC(memc, memcached_verbosity(memc, 0));
    RC(memc, memcached_exist(memc, S("absent")));
    memcached_free(memc);
  }
}

void quit_and_reset(void) {
  memcached_st *memc = handle_on(2);
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  NOTHING(memcached_quit(memc));
  NOTHING(memcached_quit(memc));
  RC(memc, memcached_exist(memc, S("key")));
  NOTHING(memcached_reset_last_disconnected_server(memc));
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  RC(memc, memcached_reset(memc));
  NUMBER(memcached_server_count(memc));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, add_server(memc, 0));
  RC(memc, add_server(memc, 1));
  RC(memc, memcached_exist(memc, S("key")));
  NOTHING(memcached_servers_reset(memc));
  NUMBER(memcached_server_count(memc));
  RC(memc, memcached_exist(memc, S("key")));
  memcached_free(memc);
}
