/* Gets, multi-gets, fetches. */

#include "scenarios.h"
#include "servers.h"

enum { KEYS_MAX = 64 };

static const char *keys[KEYS_MAX];
static size_t lengths[KEYS_MAX];
static char texts[KEYS_MAX][24];

static void make_keys(unsigned count) {
  for (unsigned n = 0; n < count; n++) {
    lengths[n] = (size_t) snprintf(texts[n], sizeof texts[n], "multi-%u", n);
    keys[n] = texts[n];
  }
}

static void store(memcached_st *memc, unsigned count) {
  for (unsigned n = 0; n < count; n++)
    RC(memc, memcached_set(memc, keys[n], lengths[n], keys[n], lengths[n], 0, n));
}

static void get(memcached_st *memc, const char *key, size_t key_length) {
  size_t length = 12345;
  uint32_t flags = 12345;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[300];
  snprintf(call, sizeof call, "memcached_get(%.*s)", (int) key_length, key);
  char *value = memcached_get(memc, key, key_length, &length, &flags, &rc);
  trace_value(memc, call, value, length, flags, rc);
  free(value);
}

static void gets(memcached_st *memc) {
  get(memc, S("absent"));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 7));
  get(memc, S("key"));
  get(memc, S("key"));
  get(memc, S("absent"));
  RC(memc, memcached_set(memc, S("empty"), S(""), 0, 3));
  get(memc, S("empty"));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  get(memc, S("key"));
  char longest[250];
  memset(longest, 'k', sizeof longest);
  RC(memc, memcached_set(memc, longest, sizeof longest, S("long"), 0, 0));
  get(memc, longest, sizeof longest);
}

void get_text(void) {
  memcached_st *memc = handle_on(1);
  gets(memc);
  memcached_free(memc);
}

void get_binary(void) {
  memcached_st *memc = handle_binary(1);
  gets(memc);
  memcached_free(memc);
}

void get_by_key(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    RC(memc, memcached_set_by_key(memc, S("group"), S("key"), S("value"), 0, 7));
    static const char *const groups[] = {"group", "a", "b", "c", "d"};
    for (unsigned n = 0; n < COUNT(groups); n++) {
      size_t length = 1;
      uint32_t flags = 1;
      memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
      char *value = memcached_get_by_key(memc, groups[n], strlen(groups[n]), S("key"), &length, &flags, &rc);
      trace_value(memc, "memcached_get_by_key(key)", value, length, flags, rc);
      free(value);
    }
    memcached_free(memc);
  }
}

/* The caller passes no pointers for length, flags and return code. */
void get_without_answers(void) {
  memcached_st *memc = handle_on(1);
  size_t length;
  uint32_t flags;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 7));
  IN_CHILD(TEXT(memcached_get(memc, S("key"), &length, &flags, NULL)));
  IN_CHILD(TEXT(memcached_get(memc, S("key"), &length, NULL, &rc)));
  IN_CHILD(TEXT(memcached_get(memc, S("key"), NULL, &flags, &rc)));
  IN_CHILD(TEXT(memcached_get(memc, S("absent"), NULL, NULL, NULL)));
  memcached_free(memc);
}

/* All results, in the order of their arrival. */
static unsigned fetch_results(memcached_st *memc) {
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  unsigned count = 0;
  for (memcached_result_st *result; (result = memcached_fetch_result(memc, NULL, &rc)); count++) {
    trace_result(memc, "memcached_fetch_result", result, rc);
    memcached_result_free(result);
  }
  trace_result(memc, "memcached_fetch_result", NULL, rc);
  trace_result(memc, "memcached_fetch_result again", memcached_fetch_result(memc, NULL, &rc), rc);
  return count;
}

static unsigned fetch_values(memcached_st *memc) {
  for (unsigned count = 0;; count++) {
    char key[MEMCACHED_MAX_KEY] = "", call[320];
    size_t key_length = 0, length = 0;
    uint32_t flags = 0;
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    char *value = memcached_fetch(memc, key, &key_length, &length, &flags, &rc);
    snprintf(call, sizeof call, "memcached_fetch(%.*s)", (int) key_length, key);
    trace_value(memc, call, value, length, flags, rc);
    if (rc != MEMCACHED_SUCCESS)
      return count;
    free(value);
  }
}

static void mgets(memcached_st *memc) {
  make_keys(20);
  store(memc, 16);
  RC(memc, memcached_mget(memc, keys, lengths, 20));
  fetch_results(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 20));
  fetch_values(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 1));
  fetch_values(memc);
  /* No item. */
  RC(memc, memcached_mget(memc, keys + 16, lengths + 16, 4));
  fetch_results(memc);
  RC(memc, memcached_mget(memc, keys + 16, lengths + 16, 4));
  fetch_values(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 0));
  fetch_values(memc);
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  RC(memc, memcached_mget(memc, keys, lengths, 3));
  fetch_results(memc);
  /* The request determines whether tokens are returned. */
  RC(memc, memcached_mget(memc, keys, lengths, 3));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 0));
  fetch_results(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 3));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  fetch_results(memc);
  /* The same key twice. */
  keys[1] = keys[0];
  lengths[1] = lengths[0];
  RC(memc, memcached_mget(memc, keys, lengths, 3));
  fetch_results(memc);
  RC(memc, memcached_exist(memc, S("multi-5")));
}

void mget_text(void) {
  memcached_st *memc = handle_on(1);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  trace_result(memc, "memcached_fetch_result before any", memcached_fetch_result(memc, NULL, &rc), rc);
  fetch_values(memc);
  mgets(memc);
  memcached_free(memc);
}

void mget_binary(void) {
  memcached_st *memc = handle_binary(1);
  mgets(memc);
  memcached_free(memc);
}

void mget_by_key(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    make_keys(6);
    for (unsigned n = 0; n < 5; n++)
      RC(memc, memcached_set_by_key(memc, S("group"), keys[n], lengths[n], S("value"), 0, n));
    RC(memc, memcached_mget_by_key(memc, S("group"), keys, lengths, 6));
    fetch_results(memc);
    RC(memc, memcached_mget_by_key(memc, S("another"), keys, lengths, 6));
    NUMBER(fetch_values(memc));
    RC(memc, memcached_mget_by_key(memc, "", 0, keys, lengths, 6));
    RC(memc, memcached_mget_by_key(memc, S("group"), keys, lengths, 0));
    memcached_free(memc);
  }
}

/* Other calls while answers are outstanding: unfetched results are dropped. In the binary protocol libmemcached
   may mistake the answers of one call for another's, so only the text protocol is compared. */
void mget_unfinished(void) {
  memcached_st *memc = handle_on(1);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  make_keys(10);
  store(memc, 10);
  RC(memc, memcached_mget(memc, keys, lengths, 10));
  memcached_result_st *result = memcached_fetch_result(memc, NULL, &rc);
  trace_result(memc, "memcached_fetch_result", result, rc);
  memcached_result_free(result);
  RC(memc, memcached_set(memc, S("between"), S("value"), 0, 0));
  fetch_results(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 5));
  RC(memc, memcached_mget(memc, keys + 5, lengths + 5, 5));
  fetch_results(memc);
  RC(memc, memcached_mget(memc, keys, lengths, 5));
  get(memc, S("multi-7"));
  fetch_results(memc);
  /* The answers may or may not have arrived, so the results that can still be fetched vary. */
  RC(memc, memcached_mget(memc, keys, lengths, 5));
  NOTHING(memcached_quit(memc));
  get(memc, S("multi-7"));
  memcached_free(memc);
}

static int by_text(const void *first, const void *second) {
  return strcmp(*(char *const *) first, *(char *const *) second);
}

/* From several servers in any order: sorted. */
static void fetch_sorted(memcached_st *memc) {
  char *found[KEYS_MAX];
  unsigned count = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  for (memcached_result_st *result; count < KEYS_MAX && (result = memcached_fetch_result(memc, NULL, &rc));) {
    char *value = quoted(memcached_result_value(result), memcached_result_length(result));
    found[count] = malloc(512);
    snprintf(found[count++], 512, "%.*s is %s, flags %u, cas %d", (int) memcached_result_key_length(result),
             memcached_result_key_value(result), value, memcached_result_flags(result),
             memcached_result_cas(result) != 0);
    free(value);
    memcached_result_free(result);
  }
  trace_line("memcached_fetch_result", "%u results; %s; %s", count, rc_name(rc), errors_of(memc));
  qsort(found, count, sizeof *found, by_text);
  for (unsigned n = 0; n < count; n++) {
    trace_line("memcached_fetch_result", "%s", found[n]);
    free(found[n]);
  }
}

void mget_several_servers(void) {
  for (int mode = 0; mode < 8; mode++) {
    memcached_st *memc = mode & 1 ? handle_binary(3) : handle_on(3);
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, (mode & 2) != 0));
    RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NO_BLOCK, (mode & 4) != 0));
    make_keys(KEYS_MAX);
    store(memc, 48);
    for (unsigned n = 0; n < SERVERS_MAX && mode == 0; n++)
      for (unsigned key = 0; key < 8; key++)
        peek(n, keys[key]);
    RC(memc, memcached_mget(memc, keys, lengths, KEYS_MAX));
    fetch_sorted(memc);
    RC(memc, memcached_mget(memc, keys + 48, lengths + 48, 16));
    fetch_sorted(memc);
    RC(memc, memcached_exist(memc, S("multi-5")));
    memcached_free(memc);
  }
}

static memcached_return_t count_result(const memcached_st *memc, memcached_result_st *result, void *counter) {
  trace_result(memc, "memcached_execute_fn", result, MEMCACHED_SUCCESS);
  return ++*(unsigned *) counter == 100 ? MEMCACHED_FAILURE : MEMCACHED_SUCCESS;
}

static memcached_return_t refuse_result(const memcached_st *memc, memcached_result_st *result, void *counter) {
  (void) memc;
  (void) result;
  ++*(unsigned *) counter;
  return MEMCACHED_FAILURE;
}

void mget_execute(void) {
  memcached_execute_fn one[] = {count_result}, two[] = {count_result, count_result}, refusing[] = {refuse_result};
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    unsigned count = 0;
    make_keys(6);
    store(memc, 5);
    RC(memc, memcached_mget_execute(memc, keys, lengths, 6, one, &count, 1));
    NUMBER(count);
    RC(memc, memcached_fetch_execute(memc, one, &count, 1));
    NUMBER(count);
    RC(memc, memcached_mget_execute(memc, keys, lengths, 6, two, &count, 2));
    RC(memc, memcached_fetch_execute(memc, two, &count, 2));
    NUMBER(count);
    RC(memc, memcached_mget_execute_by_key(memc, S("group"), keys, lengths, 6, one, &count, 1));
    RC(memc, memcached_fetch_execute(memc, one, &count, 1));
    NUMBER(count);
    RC(memc, memcached_mget_execute(memc, keys, lengths, 6, refusing, &count, 1));
    RC(memc, memcached_fetch_execute(memc, refusing, &count, 1));
    RC(memc, memcached_exist(memc, S("multi-1")));
    memcached_free(memc);
  }
}

void fetch_execute(void) {
  memcached_execute_fn one[] = {count_result}, refusing[] = {refuse_result};
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    unsigned count = 0;
    make_keys(6);
    store(memc, 5);
    RC(memc, memcached_fetch_execute(memc, one, &count, 1));
    RC(memc, memcached_mget(memc, keys, lengths, 6));
    RC(memc, memcached_fetch_execute(memc, one, &count, 1));
    NUMBER(count);
    RC(memc, memcached_mget(memc, keys + 5, lengths + 5, 1));
    RC(memc, memcached_fetch_execute(memc, one, &count, 1));
    NUMBER(count);
    RC(memc, memcached_mget(memc, keys, lengths, 6));
    RC(memc, memcached_fetch_execute(memc, NULL, &count, 0));
    RC(memc, memcached_mget(memc, keys, lengths, 6));
    RC(memc, memcached_fetch_execute(memc, refusing, &count, 1));
    NUMBER(count);
    RC(memc, memcached_exist(memc, S("multi-1")));
    memcached_free(memc);
  }
}

/* Into a result object of the caller's. */
void fetch_owned(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    memcached_result_st memory, *result = memcached_result_create(memc, &memory);
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    make_keys(5);
    store(memc, 4);
    RC(memc, memcached_mget(memc, keys, lengths, 5));
    while (memcached_fetch_result(memc, result, &rc)) {
      trace_result(memc, "memcached_fetch_result(result)", result, rc);
      if (memcached_result_flags(result) == 1) {
        char *taken = memcached_result_take_value(result);
        TEXT(taken);
        NUMBER(memcached_result_length(result));
        free(taken);
      }
    }
    trace_result(memc, "memcached_fetch_result(result)", NULL, rc);
    RC(memc, memcached_mget(memc, keys, lengths, 2));
    trace_result(memc, "memcached_fetch_result(result)", memcached_fetch_result(memc, result, &rc), rc);
    NOTHING(memcached_result_free(result));
    memcached_free(memc);
  }
}
