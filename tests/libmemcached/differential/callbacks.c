/* Callbacks, namespaces, encryption, SASL. */

#include "scenarios.h"
#include "servers.h"

static memcached_return_t cleaned(const memcached_st *memc) {
  (void) memc;
  trace_line("memcached_callback_set.cleanup", "called");
  return MEMCACHED_SUCCESS;
}

static memcached_return_t cloned(memcached_st *to, const memcached_st *from) {
  (void) to;
  (void) from;
  trace_line("memcached_callback_set.clone", "called");
  return MEMCACHED_SUCCESS;
}

static memcached_return_t failed(const memcached_st *memc, const char *key, size_t length,
                                 memcached_result_st *result) {
  (void) memc;
  trace_line("memcached_callback_set.failure", "%.*s", (int) length, key);
  if (key[0] == 'n')
    return MEMCACHED_NOTFOUND;
  memcached_result_set_flags(result, 5);
  return memcached_result_set_value(result, S("made up"));
}

static memcached_return_t deleted(const memcached_st *memc, const char *key, size_t length) {
  (void) memc;
  trace_line("memcached_callback_set.delete", "%.*s", (int) length, key);
  return MEMCACHED_SUCCESS;
}

void callbacks(void) {
  memcached_st *memc = handle_on(1);
  for (unsigned flag = 0; flag < MEMCACHED_CALLBACK_MAX; flag++) {
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    if (flag > MEMCACHED_CALLBACK_CLONE_FUNCTION && flag < MEMCACHED_CALLBACK_GET_FAILURE)
      continue;
    trace_line("memcached_callback_get at first", "%u: %d, %s; %s", flag, memcached_callback_get(memc, flag, &rc) != NULL,
               rc_name(rc), errors_of(memc));
  }
  RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_USER_DATA, memc));
  RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_CLEANUP_FUNCTION, (void *) (uintptr_t) cleaned));
  RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_CLONE_FUNCTION, (void *) (uintptr_t) cloned));
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  trace_line("memcached_callback_get", "%d %d %d",
             memcached_callback_get(memc, MEMCACHED_CALLBACK_USER_DATA, &rc) == memc,
             memcached_callback_get(memc, MEMCACHED_CALLBACK_CLEANUP_FUNCTION, &rc) == (void *) (uintptr_t) cleaned,
             memcached_callback_get(memc, MEMCACHED_CALLBACK_CLONE_FUNCTION, &rc) == (void *) (uintptr_t) cloned);
  memcached_st *copy = memcached_clone(NULL, memc);
  NOTHING(memcached_free(copy));
  IN_CHILD(RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_MAX, memc)));
  IN_CHILD(POINTER(memcached_callback_get(memc, MEMCACHED_CALLBACK_MAX, &rc)));
  IN_CHILD(POINTER(memcached_callback_get(memc, MEMCACHED_CALLBACK_USER_DATA, NULL)));
  NOTHING(memcached_free(memc));
}

static void get(memcached_st *memc, const char *key) {
  size_t length = 0;
  uint32_t flags = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char *value = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
  trace_value(memc, "memcached_get with callbacks", value, length, flags, rc);
  free(value);
}

void callbacks_triggers(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_GET_FAILURE, (void *) (uintptr_t) failed));
    get(memc, "absent");
    get(memc, "none");
    peek(0, "absent");
    peek(0, "none");
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
    get(memc, "key");
    RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_DELETE_TRIGGER, (void *) (uintptr_t) deleted));
    RC(memc, memcached_delete(memc, S("key"), 0));
    RC(memc, memcached_delete(memc, S("key"), 0));
    RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_GET_FAILURE, NULL));
    get(memc, "gone");
    memcached_free(memc);
  }
  memcached_st *memc = handle_with(1, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
  RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_DELETE_TRIGGER, (void *) (uintptr_t) deleted));
  memcached_free(memc);
  memc = handle_with(1, MEMCACHED_BEHAVIOR_NOREPLY);
  RC(memc, memcached_callback_set(memc, MEMCACHED_CALLBACK_DELETE_TRIGGER, (void *) (uintptr_t) deleted));
  memcached_free(memc);
}

static void namespace_set(memcached_st *memc, const char *prefix) {
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[400];
  snprintf(call, sizeof call, "memcached_callback_set(NAMESPACE, %s)", prefix ? prefix : "NULL");
  trace_rc(memc, call, memcached_callback_set(memc, MEMCACHED_CALLBACK_NAMESPACE, prefix));
  TEXT(memcached_callback_get(memc, MEMCACHED_CALLBACK_NAMESPACE, &rc));
  trace_line("memcached_callback_get(NAMESPACE)", "%s", rc_name(rc));
}

void namespaces(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    namespace_set(memc, "first:");
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 3));
    get(memc, "key");
    peek(0, "first:key");
    peek(0, "key");
    const char *keys[] = {"key", "absent"};
    size_t lengths[] = {3, 6};
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    RC(memc, memcached_mget(memc, keys, lengths, 2));
    for (memcached_result_st *result; (result = memcached_fetch_result(memc, NULL, &rc));) {
      trace_result(memc, "memcached_fetch_result in a namespace", result, rc);
      memcached_result_free(result);
    }
    trace_result(memc, "memcached_fetch_result in a namespace", NULL, rc);
    RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 3));
    RC(memc, memcached_touch(memc, S("key"), 100));
    RC(memc, memcached_exist(memc, S("key")));
    uint64_t number;
    RC(memc, memcached_increment(memc, S("counter"), 1, &number));
    RC(memc, memcached_delete(memc, S("absent"), 0));
    namespace_set(memc, "second:");
    get(memc, "key");
    namespace_set(memc, NULL);
    get(memc, "key");
    get(memc, "first:key");
    namespace_set(memc, "");
    namespace_set(memc, "with space");
    char longest[MEMCACHED_MAX_NAMESPACE + 2] = "";
    memset(longest, 'n', MEMCACHED_MAX_NAMESPACE - 1);
    namespace_set(memc, longest);
    char key[250];
    memset(key, 'k', sizeof key);
    RC(memc, memcached_set(memc, key, 122, S("value"), 0, 0));
    RC(memc, memcached_set(memc, key, 123, S("value"), 0, 0));
    RC(memc, memcached_set(memc, key, 124, S("value"), 0, 0));
    longest[MEMCACHED_MAX_NAMESPACE - 1] = 'n';
    namespace_set(memc, longest);
    longest[MEMCACHED_MAX_NAMESPACE] = 'n';
    namespace_set(memc, longest);
    memcached_free(memc);
  }
  for (int with = 0; with < 2; with++) {
    memcached_st *memc = handle_on(3);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY, (uint64_t) with));
    namespace_set(memc, "hashed:");
    for (char name = 'a'; name < 'k'; name++) {
      NUMBER(memcached_generate_hash(memc, &name, 1));
      RC(memc, memcached_set(memc, &name, 1, S("value"), 0, 0));
    }
    for (unsigned n = 0; n < SERVERS_MAX; n++)
      peek(n, "hashed:a hashed:b hashed:c hashed:d hashed:e");
    memcached_free(memc);
  }
}

void encoding_keys(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, memcached_set_encoding_key(memc, S("secret")));
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 3));
    peek(0, "key");
    get(memc, "key");
    RC(memc, memcached_append(memc, S("key"), S("-end"), 0, 3));
    RC(memc, memcached_prepend(memc, S("key"), S("start-"), 0, 3));
    memcached_st *copy = memcached_clone(NULL, memc);
    get(copy, "key");
    memcached_free(copy);
    RC(memc, memcached_set_encoding_key(memc, S("other")));
    get(memc, "key");
    RC(memc, memcached_exist(memc, S("key")));
    memcached_free(memc);
  }
}

void sasl(void) {
  memcached_st *memc = handle_on(1);
  POINTER(memcached_get_sasl_callbacks(memc));
  RC(memc, memcached_set_sasl_auth_data(memc, "user", "password"));
  memcached_free(memc);
  memc = handle_binary(1);
  POINTER(memcached_get_sasl_callbacks(memc));
  RC(memc, memcached_set_sasl_auth_data(memc, "user", "password"));
  POINTER(memcached_get_sasl_callbacks(memc));
  RC(memc, memcached_set_sasl_auth_data(memc, "user", "other"));
  /* Servers without authentication. */
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_destroy_sasl_auth_data(memc));
  POINTER(memcached_get_sasl_callbacks(memc));
  RC(memc, memcached_destroy_sasl_auth_data(memc));
  NOTHING(memcached_set_sasl_callbacks(memc, NULL));
  POINTER(memcached_get_sasl_callbacks(memc));
  IN_CHILD(RC(memc, memcached_set_sasl_auth_data(memc, NULL, "password")));
  IN_CHILD(RC(memc, memcached_set_sasl_auth_data(memc, "user", NULL)));
  IN_CHILD(RC(memc, memcached_set_sasl_auth_data(NULL, "user", "password")));
  memcached_free(memc);
}
