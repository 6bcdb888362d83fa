/* Errors: their texts, their storage, and the errors of bad arguments and bad servers. */

#include "scenarios.h"
#include "servers.h"

#include <unistd.h>

static void get_as(memcached_st *memc, const char *call, const char *key, size_t key_length) {
  size_t length = 0;
  uint32_t flags = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char *value = memcached_get(memc, key, key_length, &length, &flags, &rc);
  trace_value(memc, call, value, length, flags, rc);
  free(value);
}

static void get(memcached_st *memc, const char *key, size_t key_length) {
  get_as(memc, "memcached_get with errors", key, key_length);
}

/* Every kind of request once. */
static void requests(memcached_st *memc) {
  const char *key = "key";
  size_t length = 3;
  uint64_t number = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_add(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_cas(memc, S("key"), S("value"), 0, 0, NO_TOKEN));
  get(memc, S("key"));
  RC(memc, memcached_mget(memc, &key, &length, 1));
  trace_result(memc, "memcached_fetch_result", memcached_fetch_result(memc, NULL, &rc), rc);
  RC(memc, memcached_increment(memc, S("key"), 1, &number));
  RC(memc, memcached_increment_with_initial(memc, S("key"), 1, 1, 0, &number));
  RC(memc, memcached_touch(memc, S("key"), 10));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, memcached_delete(memc, S("key"), 0));
  RC(memc, memcached_flush(memc, 0));
  RC(memc, memcached_version(memc));
  RC(memc, memcached_verbosity(memc, 0));
  RC(memc, memcached_flush_buffers(memc));
  memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
  trace_line("memcached_stat", "%d, %s; %s", stat != NULL, rc_name(rc), errors_of(memc));
  memcached_stat_free(memc, stat);
  RC(memc, memcached_stat_execute(memc, NULL, NULL, NULL));
  NOTHING(memcached_quit(memc));
}

void errors_texts(void) {
  for (unsigned rc = 0; rc < MEMCACHED_MAXIMUM_RETURN; rc++)
    TEXT(memcached_strerror(NULL, rc));
  IN_CHILD(TEXT(memcached_strerror(NULL, MEMCACHED_MAXIMUM_RETURN)));
  IN_CHILD(TEXT(memcached_strerror(NULL, 1000)));
  IN_CHILD(TEXT(memcached_strerror(NULL, (memcached_return_t) -1)));
}

static void print_errors(memcached_st *memc) {
  FILE *file = tmpfile();
  int kept = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  memcached_error_print(memc);
  fflush(stderr);
  dup2(kept, STDERR_FILENO);
  close(kept);
  rewind(file);
  char line[1024];
  unsigned count = 0;
  for (; fgets(line, sizeof line, file); count++)
    trace_line("memcached_error_print", "%s", line);
  trace_line("memcached_error_print", "%u lines", count);
  fclose(file);
}

void errors_printed(void) {
  memcached_st *memc = handle_on(0);
  print_errors(memc);
  TEXT(memcached_error(memc));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  print_errors(memc);
  TEXT(memcached_error(memc));
  RC(memc, add_server(memc, 0));
  RC(memc, memcached_set(memc, S(""), S("value"), 0, 0));
  print_errors(memc);
  TEXT(memcached_error(memc));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  TEXT(memcached_error(memc));
  print_errors(memc);
  TEXT(memcached_last_error_message(NULL));
  NUMBER(memcached_last_error(NULL));
  NUMBER(memcached_last_error_errno(NULL));
  TEXT(memcached_error(NULL));
  NOTHING(memcached_error_print(NULL));
  memcached_free(memc);
}

void errors_of_servers(void) {
  memcached_st *memc = handle_on(0);
  add_dead(memc);
  const memcached_instance_st *instance = memcached_server_instance_by_position(memc, 0);
  TEXT(memcached_server_error(instance));
  NUMBER(memcached_server_error_return(instance));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  TEXT(memcached_server_error(instance));
  NUMBER(memcached_server_error_return(instance));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  TEXT(memcached_server_error(instance));
  NUMBER(memcached_server_error_return(instance));
  const memcached_instance_st *last = memcached_server_get_last_disconnect(memc);
  if (POINTER(last))
    TEXT(memcached_server_name(last));
  NOTHING(memcached_reset_last_disconnected_server(memc));
  POINTER(memcached_server_get_last_disconnect(memc));
  memcached_free(memc);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  memcached_server_list_st list = memcached_server_list_append(NULL, "a.example", 1, &rc);
  NOTHING(memcached_server_error_reset(list));
  NOTHING(memcached_server_list_free(list));
  IN_CHILD(TEXT(memcached_server_error(NULL)));
  IN_CHILD(NUMBER(memcached_server_error_return(NULL)));
  IN_CHILD(NOTHING(memcached_server_error_reset(NULL)));
  IN_CHILD(NOTHING(memcached_server_free(NULL)));
}

void errors_no_servers(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(0) : handle_on(0);
    requests(memc);
    memcached_free(memc);
  }
}

void errors_dead(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(0) : handle_on(0);
    RC(memc, add_dead(memc));
    requests(memc);
    memcached_free(memc);
    /* Each request as the first one of a handle. */
    const char *key = "key";
    size_t length = 3;
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
#define ALONE(call)                                                                                              \
  do {                                                                                                           \
    memc = binary ? handle_binary(0) : handle_on(0);                                                             \
    add_dead(memc);                                                                                              \
    RC(memc, call);                                                                                              \
    memcached_free(memc);                                                                                        \
  } while (0)
    ALONE(memcached_mget(memc, &key, &length, 1));
    ALONE(memcached_touch(memc, S("key"), 1));
    ALONE(memcached_exist(memc, S("key")));
    ALONE(memcached_delete(memc, S("key"), 0));
    ALONE(memcached_flush(memc, 0));
    ALONE(memcached_version(memc));
    ALONE(memcached_verbosity(memc, 1));
    ALONE(memcached_increment(memc, S("key"), 1, &(uint64_t){0}));
    ALONE(memcached_stat_execute(memc, NULL, NULL, NULL));
#undef ALONE
    memc = binary ? handle_binary(0) : handle_on(0);
    add_dead(memc);
    get(memc, S("key"));
    memcached_free(memc);
    memc = binary ? handle_binary(0) : handle_on(0);
    add_dead(memc);
    memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
    trace_line("memcached_stat of a dead server", "%d, %s; %s", stat != NULL, rc_name(rc), errors_of(memc));
    memcached_stat_free(memc, stat);
    memcached_free(memc);
  }
}

/* Some servers dead, others not. */
void errors_host(void) {
  char host[90] = "";
  memset(host, 'h', 80);
  memcached_st *memc = handle_on(0);
  RC(memc, memcached_server_add(memc, host, 11211));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  get(memc, S("key"));
  memcached_free(memc);
  for (int binary = 0; binary < 2; binary++) {
    memc = binary ? handle_binary(2) : handle_on(2);
    RC(memc, add_dead(memc));
    for (char key = 'a'; key < 'h'; key++)
      RC(memc, memcached_set(memc, &key, 1, S("value"), 0, 0));
    for (char key = 'a'; key < 'h'; key++)
      get(memc, &key, 1);
    RC(memc, memcached_flush(memc, 0));
    RC(memc, memcached_version(memc));
    memcached_free(memc);
    memc = binary ? handle_binary(1) : handle_on(1);
    RC(memc, add_dead(memc));
    const char *keys[] = {"a", "b", "c", "d", "e", "f"};
    size_t lengths[] = {1, 1, 1, 1, 1, 1};
    RC(memc, memcached_mget(memc, keys, lengths, COUNT(keys)));
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    trace_result(memc, "memcached_fetch_result", memcached_fetch_result(memc, NULL, &rc), rc);
    memcached_free(memc);
  }
}

void errors_silent(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(0) : handle_on(0);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 100));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, 500));
    RC(memc, add_silent(memc));
    RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
    get(memc, S("key"));
    memcached_free(memc);
    if (servers_local())
      continue;
    memc = binary ? handle_binary(0) : handle_on(0);
    memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 100);
    add_silent(memc);
    get(memc, S("key"));
    RC(memc, memcached_delete(memc, S("key"), 0));
    memcached_free(memc);
  }
}

static void keys(memcached_st *(*open)(void) ) {
  char long_key[300];
  memset(long_key, 'k', sizeof long_key);
  static const struct {
    const char *name, *text;
    size_t length;
  } bad[] = {
      {"empty", "", 0},           {"space", "a key", 5},      {"newline", "a\nkey", 5}, {"return", "a\rkey", 5},
      {"tab", "a\tkey", 5},       {"control", "a\001key", 5}, {"zero", "a\0key", 5},    {"high", "a\xffkey", 5},
      {"utf-8", "\xc3\xbc", 2},   {"delete", "a\177key", 5},
  };
  for (unsigned n = 0; n < COUNT(bad); n++) {
    char call[64];
    memcached_st *memc = open();
    snprintf(call, sizeof call, "memcached_set of a key: %s", bad[n].name);
    trace_rc(memc, call, memcached_set(memc, bad[n].text, bad[n].length, S("value"), 0, 0));
    memcached_free(memc);
    memc = open();
    snprintf(call, sizeof call, "memcached_get of a key: %s", bad[n].name);
    get_as(memc, call, bad[n].text, bad[n].length);
    memcached_free(memc);
    memc = open();
    snprintf(call, sizeof call, "memcached_delete of a key: %s", bad[n].name);
    trace_rc(memc, call, memcached_delete(memc, bad[n].text, bad[n].length, 0));
    memcached_free(memc);
    memc = open();
    snprintf(call, sizeof call, "memcached_mget of a key: %s", bad[n].name);
    const char *two[] = {"good", bad[n].text};
    size_t lengths[] = {4, bad[n].length};
    trace_rc(memc, call, memcached_mget(memc, two, lengths, 2));
    memcached_free(memc);
  }
  for (size_t length = 249; length < 253; length++) {
    char call[64];
    memcached_st *memc = open();
    snprintf(call, sizeof call, "memcached_set of a key: %zu bytes", length);
    trace_rc(memc, call, memcached_set(memc, long_key, length, S("value"), 0, 0));
    get(memc, long_key, length);
    snprintf(call, sizeof call, "memcached_touch of a key: %zu bytes", length);
    trace_rc(memc, call, memcached_touch(memc, long_key, length, 100));
    memcached_free(memc);
  }
}

static memcached_st *open_text(void) {
  return handle_on(1);
}

static memcached_st *open_verified(void) {
  return handle_with(1, MEMCACHED_BEHAVIOR_VERIFY_KEY);
}

static memcached_st *open_binary(void) {
  return handle_binary(1);
}

void errors_keys_text(void) {
  keys(open_text);
}

void errors_keys_verified(void) {
  keys(open_verified);
}

void errors_keys_binary(void) {
  keys(open_binary);
}

void errors_null_handles(void) {
  uint64_t number;
  size_t length;
  uint32_t flags;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  const char *key = "key";
  size_t key_length = 3;
  IN_CHILD(RC(NULL, memcached_set(NULL, S("key"), S("value"), 0, 0)));
  IN_CHILD(RC(NULL, memcached_add(NULL, S("key"), S("value"), 0, 0)));
  IN_CHILD(RC(NULL, memcached_replace(NULL, S("key"), S("value"), 0, 0)));
  IN_CHILD(RC(NULL, memcached_append(NULL, S("key"), S("value"), 0, 0)));
  IN_CHILD(RC(NULL, memcached_prepend(NULL, S("key"), S("value"), 0, 0)));
  IN_CHILD(RC(NULL, memcached_cas(NULL, S("key"), S("value"), 0, 0, NO_TOKEN)));
  IN_CHILD(TEXT(memcached_get(NULL, S("key"), &length, &flags, &rc)));
  IN_CHILD(RC(NULL, memcached_mget(NULL, &key, &key_length, 1)));
  IN_CHILD(POINTER(memcached_fetch_result(NULL, NULL, &rc)));
  IN_CHILD(RC(NULL, memcached_fetch_execute(NULL, NULL, NULL, 0)));
  IN_CHILD(RC(NULL, memcached_increment(NULL, S("key"), 1, &number)));
  IN_CHILD(RC(NULL, memcached_decrement_by_key(NULL, S("key"), S("key"), 1, &number)));
  IN_CHILD(RC(NULL, memcached_touch(NULL, S("key"), 1)));
  IN_CHILD(RC(NULL, memcached_exist(NULL, S("key"))));
  IN_CHILD(RC(NULL, memcached_delete(NULL, S("key"), 0)));
  IN_CHILD(RC(NULL, memcached_flush(NULL, 0)));
  IN_CHILD(RC(NULL, memcached_flush_buffers(NULL)));
  IN_CHILD(RC(NULL, memcached_version(NULL)));
  IN_CHILD(RC(NULL, memcached_verbosity(NULL, 0)));
  IN_CHILD(RC(NULL, memcached_reset(NULL)));
  IN_CHILD(NOTHING(memcached_servers_reset(NULL)));
  IN_CHILD(NOTHING(memcached_quit(NULL)));
  IN_CHILD(NUMBER(memcached_server_count(NULL)));
  IN_CHILD(NUMBER(memcached_query_id(NULL)));
  IN_CHILD(RC(NULL, memcached_server_add(NULL, "localhost", 1)));
  IN_CHILD(RC(NULL, memcached_server_add_unix_socket(NULL, "/x")));
  IN_CHILD(RC(NULL, memcached_server_push(NULL, NULL)));
  IN_CHILD(RC(NULL, memcached_behavior_set(NULL, MEMCACHED_BEHAVIOR_NO_BLOCK, 1)));
  IN_CHILD(NUMBER(memcached_behavior_get(NULL, MEMCACHED_BEHAVIOR_NO_BLOCK)));
  IN_CHILD(RC(NULL, memcached_callback_set(NULL, MEMCACHED_CALLBACK_NAMESPACE, "x")));
  IN_CHILD(POINTER(memcached_callback_get(NULL, MEMCACHED_CALLBACK_NAMESPACE, &rc)));
  IN_CHILD(POINTER(memcached_stat(NULL, NULL, &rc)));
  IN_CHILD(RC(NULL, memcached_dump(NULL, NULL, NULL, 0)));
  IN_CHILD(NUMBER(memcached_generate_hash(NULL, S("key"))));
  IN_CHILD(POINTER(memcached_get_user_data(NULL)));
  IN_CHILD(NOTHING(memcached_autoeject(NULL)));
  IN_CHILD(RC(NULL, memcached_server_cursor(NULL, NULL, NULL, 0)));
  IN_CHILD(POINTER(memcached_server_instance_by_position(NULL, 0)));
  IN_CHILD(POINTER(memcached_server_get_last_disconnect(NULL)));
}

void errors_null_arguments(void) {
  memcached_st *memc = handle_on(1);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  const char *keys_null[] = {NULL};
  size_t length = 3, zero = 0;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  IN_CHILD(RC(memc, memcached_set(memc, NULL, 0, S("value"), 0, 0)));
  IN_CHILD(RC(memc, memcached_set(memc, NULL, 3, S("value"), 0, 0)));
  IN_CHILD(RC(memc, memcached_delete(memc, NULL, 0, 0)));
  IN_CHILD(RC(memc, memcached_mget(memc, NULL, &length, 1)));
  IN_CHILD(RC(memc, memcached_mget(memc, keys_null, &zero, 1)));
  IN_CHILD(RC(memc, memcached_mget(memc, keys_null, NULL, 1)));
  IN_CHILD(POINTER(memcached_fetch_result(memc, NULL, NULL)));
  IN_CHILD(RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_USER_DATA, 0)));
  IN_CHILD(RC(memc, memcached_set_encoding_key(memc, NULL, 0)));
  IN_CHILD(NOTHING(memcached_stat_free(NULL, NULL)));
  IN_CHILD(NOTHING(memcached_stat_free(memc, NULL)));
  IN_CHILD(NOTHING(memcached_analyze_free(NULL)));
  IN_CHILD(POINTER(memcached_server_by_key(memc, NULL, 0, &rc)));
  IN_CHILD(NUMBER(memcached_generate_hash(memc, NULL, 0)));
  IN_CHILD(NUMBER(memcached_generate_hash(memc, "", 0)));
  memcached_free(memc);
}

void errors_null_results(void) {
  memcached_st *memc = handle_on(1);
  IN_CHILD(NOTHING(memcached_result_free(NULL)));
  IN_CHILD(NOTHING(memcached_result_reset(NULL)));
  IN_CHILD(POINTER(memcached_result_create(NULL, NULL)));
  IN_CHILD(TEXT(memcached_result_key_value(NULL)));
  IN_CHILD(NUMBER(memcached_result_key_length(NULL)));
  IN_CHILD(TEXT(memcached_result_value(NULL)));
  IN_CHILD(TEXT(memcached_result_take_value(NULL)));
  IN_CHILD(NUMBER(memcached_result_length(NULL)));
  IN_CHILD(NUMBER(memcached_result_flags(NULL)));
  IN_CHILD(NUMBER(memcached_result_cas(NULL)));
  IN_CHILD(RC(memc, memcached_result_set_value(NULL, S("value"))));
  IN_CHILD(NOTHING(memcached_result_set_flags(NULL, 1)));
  IN_CHILD(NOTHING(memcached_result_set_expiration(NULL, 1)));
  memcached_free(memc);
}
