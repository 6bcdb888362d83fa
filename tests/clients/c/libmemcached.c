/* libmemcached: text and binary protocol over TCP and a Unix socket, and stores over UDP. */

#include "checks.h"

#include <libmemcached/memcached.h>
#include <stdint.h>

static const memcached_behavior_t UNBUFFERED = MEMCACHED_BEHAVIOR_TCP_NODELAY;

static memcached_st *connect_to(bool binary, bool unix_socket, memcached_behavior_t extra);
static void storage(memcached_st *memc);
static void comparison(memcached_st *memc);
static void retrieval(memcached_st *memc);
static void counters(memcached_st *memc, bool binary);
static void refusals(memcached_st *memc, bool binary);
static void quiet(bool binary, bool unix_socket);
static void statistics(memcached_st *memc, bool binary);
static void dump(memcached_st *memc);
static void flush(memcached_st *memc);
static void before_expiry(memcached_st *memc);
static void after_expiry(memcached_st *memc);
static void udp(bool binary);
static void ketama(void);

static const char *const names[] = {"text-tcp", "binary-tcp", "text-unix", "binary-unix"};

int main(void) {
  memcached_st *clients[4];
  for (int mode = 0; mode < 4; mode++) {
    bool binary = mode & 1, unix_socket = mode & 2;
    context = names[mode];
    memcached_st *memc = clients[mode] = connect_to(binary, unix_socket, UNBUFFERED);
    flush(memc);
    storage(memc);
    comparison(memc);
    retrieval(memc);
    counters(memc, binary);
    refusals(memc, binary);
    quiet(binary, unix_socket);
    statistics(memc, binary);
    if (!binary)
      dump(memc);
    flush(memc);
  }
  for (int mode = 0; mode < 4; mode++) {
    context = names[mode];
    before_expiry(clients[mode]);
  }
  sleep_s(SHORT_TTL_S + 0.2);
  for (int mode = 0; mode < 4; mode++) {
    context = names[mode];
    after_expiry(clients[mode]);
    memcached_free(clients[mode]);
  }
  udp(false);
  udp(true);
  ketama();
  printf("libmemcached %s: %u checks passed\n", memcached_lib_version(), passed);
  return 0;
}

static void add_server(memcached_st *memc, bool unix_socket) {
  memcached_return_t rc = unix_socket
                              ? memcached_server_add_unix_socket(memc, environment("SERVER_SOCKET"))
                              : memcached_server_add(memc, environment("SERVER_HOST"),
                                                     (in_port_t) atoi(environment("SERVER_PORT")));
  equal("add server", rc, MEMCACHED_SUCCESS);
}

static memcached_st *connect_to(bool binary, bool unix_socket, memcached_behavior_t extra) {
  memcached_st *memc = memcached_create(NULL);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, binary);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, 5000);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 5000);
  memcached_behavior_set(memc, extra, 1);
  add_server(memc, unix_socket);
  return memc;
}

static void expect(const char *what, memcached_st *memc, memcached_return_t actual, memcached_return_t expected) {
  if (actual != expected)
    fail("%s: expected %s, got %s (%s)", what, memcached_strerror(memc, expected),
         memcached_strerror(memc, actual), memcached_last_error_message(memc));
  passed++;
}

static memcached_return_t set(memcached_st *memc, const char *key, const char *value, time_t ttl_s) {
  return memcached_set(memc, key, strlen(key), value, strlen(value), ttl_s, 0);
}

/* Expects that the key has this value; a null pointer expects a miss. */
static void expect_value(const char *what, memcached_st *memc, const char *key, const char *expected) {
  size_t length;
  uint32_t flags;
  memcached_return_t rc;
  char *value = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
  if (!expected) {
    expect(what, memc, rc, MEMCACHED_NOTFOUND);
    return;
  }
  expect(what, memc, rc, MEMCACHED_SUCCESS);
  same_bytes(what, value, length, expected, strlen(expected));
  free(value);
}

/* Returns the token of the item's current version, which must have this value. */
static uint64_t token(memcached_st *memc, const char *key, const char *expected) {
  memcached_return_t rc;
  const char *keys[] = {key};
  size_t lengths[] = {strlen(key)};
  expect("mget for a token", memc, memcached_mget(memc, keys, lengths, 1), MEMCACHED_SUCCESS);
  memcached_result_st *result = memcached_fetch_result(memc, NULL, &rc);
  expect("fetch for a token", memc, rc, MEMCACHED_SUCCESS);
  same_bytes("value with the token", memcached_result_value(result), memcached_result_length(result), expected,
             strlen(expected));
  uint64_t cas = memcached_result_cas(result);
  memcached_result_free(result);
  holds("end of the fetch", memcached_fetch_result(memc, NULL, &rc) == NULL);
  holds("token", cas > 0);
  return cas;
}

static char *pattern(size_t length) {
  char *bytes = malloc(length + 1);
  for (size_t n = 0; n < length; n++)
    bytes[n] = (char) n;
  return bytes;
}

static void storage(memcached_st *memc) {
  static const size_t lengths[] = {0, 1, 256, 100000, 1000000, NEAR_LIMIT};
  char *bytes = pattern(NEAR_LIMIT);
  for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
    size_t length;
    uint32_t flags;
    memcached_return_t rc;
    expect("set", memc, memcached_set(memc, "key", 3, bytes, lengths[n], 0, 0xfffffffe), MEMCACHED_SUCCESS);
    char *value = memcached_get(memc, "key", 3, &length, &flags, &rc);
    expect("get", memc, rc, MEMCACHED_SUCCESS);
    same_bytes("value", value, length, bytes, lengths[n]);
    equal("flags", flags, 0xfffffffe);
    free(value);
  }
  free(bytes);

  expect("add absent", memc, memcached_add(memc, "added", 5, "1", 1, 0, 0), MEMCACHED_SUCCESS);
  memcached_return_t present = memcached_add(memc, "added", 5, "2", 1, 0, 0);
  holds("add present", present == MEMCACHED_NOTSTORED || present == MEMCACHED_DATA_EXISTS);
  expect_value("add left the value", memc, "added", "1");
  expect("replace present", memc, memcached_replace(memc, "added", 5, "3", 1, 0, 0), MEMCACHED_SUCCESS);
  memcached_return_t absent = memcached_replace(memc, "absent", 6, "3", 1, 0, 0);
  holds("replace absent", absent == MEMCACHED_NOTSTORED || absent == MEMCACHED_NOTFOUND);
  expect("append", memc, memcached_append(memc, "added", 5, "-end", 4, 0, 0), MEMCACHED_SUCCESS);
  expect("prepend", memc, memcached_prepend(memc, "added", 5, "start-", 6, 0, 0), MEMCACHED_SUCCESS);
  expect_value("append and prepend", memc, "added", "start-3-end");
  expect("append absent", memc, memcached_append(memc, "absent", 6, "x", 1, 0, 0), MEMCACHED_NOTSTORED);
  expect("prepend absent", memc, memcached_prepend(memc, "absent", 6, "x", 1, 0, 0), MEMCACHED_NOTSTORED);
  expect("exist", memc, memcached_exist(memc, "added", 5), MEMCACHED_SUCCESS);
  expect("exist absent", memc, memcached_exist(memc, "absent", 6), MEMCACHED_NOTFOUND);
  expect("delete", memc, memcached_delete(memc, "added", 5, 0), MEMCACHED_SUCCESS);
  expect("delete absent", memc, memcached_delete(memc, "added", 5, 0), MEMCACHED_NOTFOUND);
  expect_value("get deleted", memc, "added", NULL);

  char key[251] = "";
  memset(key, 'k', 250);
  const char *odd[] = {key, "punctuation~!@#$%^&*()", "schl\xc3\xbcssel-\xe6\x99\x82\xe9\x96\x93"};
  for (int n = 0; n < 3; n++) {
    expect("set an odd key", memc, set(memc, odd[n], "odd", 0), MEMCACHED_SUCCESS);
    expect_value("get an odd key", memc, odd[n], "odd");
  }
}

static void comparison(memcached_st *memc) {
  expect("set", memc, set(memc, "compared", "first", 0), MEMCACHED_SUCCESS);
  uint64_t first = token(memc, "compared", "first");
  equal("the same token until a store", token(memc, "compared", "first"), first);
  expect("cas", memc, memcached_cas(memc, "compared", 8, "second", 6, 0, 0, first), MEMCACHED_SUCCESS);
  expect("cas with an old token", memc, memcached_cas(memc, "compared", 8, "lost", 4, 0, 0, first),
         MEMCACHED_DATA_EXISTS);
  expect("cas absent", memc, memcached_cas(memc, "absent", 6, "lost", 4, 0, 0, first), MEMCACHED_NOTFOUND);
  holds("a new token after a store", token(memc, "compared", "second") != first);
}

static memcached_return_t count_result(const memcached_st *memc, memcached_result_st *result, void *counter) {
  (void) memc;
  const char *key = memcached_result_key_value(result), *value = memcached_result_value(result);
  size_t length = memcached_result_key_length(result);
  *(int *) counter += length == memcached_result_length(result) && !memcmp(key, value, length);
  return MEMCACHED_SUCCESS;
}

static void retrieval(memcached_st *memc) {
  enum { COUNT = 100 };
  char text[COUNT + 1][16];
  const char *keys[COUNT + 1];
  size_t lengths[COUNT + 1];
  for (int n = 0; n <= COUNT; n++) {
    lengths[n] = (size_t) snprintf(text[n], sizeof text[n], "multi-%d", n);
    keys[n] = text[n];
    /* The last one stays absent. */
    if (n < COUNT)
      expect("set", memc, memcached_set(memc, keys[n], lengths[n], keys[n], lengths[n], 0, (uint32_t) n),
             MEMCACHED_SUCCESS);
  }
  expect("mget", memc, memcached_mget(memc, keys, lengths, COUNT + 1), MEMCACHED_SUCCESS);
  memcached_result_st *result;
  memcached_return_t rc;
  int found = 0;
  while ((result = memcached_fetch_result(memc, NULL, &rc))) {
    same_bytes("fetched value", memcached_result_value(result), memcached_result_length(result),
               memcached_result_key_value(result), memcached_result_key_length(result));
    found++;
    memcached_result_free(result);
  }
  equal("fetched", (unsigned) found, COUNT);
  found = 0;
  memcached_execute_fn callbacks[] = {count_result};
  expect("mget again", memc, memcached_mget(memc, keys, lengths, COUNT + 1), MEMCACHED_SUCCESS);
  expect("fetch by callback", memc, memcached_fetch_execute(memc, callbacks, &found, 1), MEMCACHED_SUCCESS);
  equal("fetched by callback", (unsigned) found, COUNT);
}

static void counters(memcached_st *memc, bool binary) {
  uint64_t number;
  expect("set", memc, set(memc, "counter", "10", 0), MEMCACHED_SUCCESS);
  expect("increment", memc, memcached_increment(memc, "counter", 7, 5, &number), MEMCACHED_SUCCESS);
  equal("incremented", number, 15);
  expect("decrement", memc, memcached_decrement(memc, "counter", 7, 6, &number), MEMCACHED_SUCCESS);
  equal("decremented", number, 9);
  expect_value("padded to the old length", memc, "counter", "9 ");
  expect("decrement", memc, memcached_decrement(memc, "counter", 7, 100, &number), MEMCACHED_SUCCESS);
  equal("decrement stops at zero", number, 0);
  expect("set", memc, set(memc, "counter", "18446744073709551615", 0), MEMCACHED_SUCCESS);
  expect("increment", memc, memcached_increment(memc, "counter", 7, 1, &number), MEMCACHED_SUCCESS);
  equal("increment wraps", number, 0);
  expect("increment absent", memc, memcached_increment(memc, "absent", 6, 1, &number), MEMCACHED_NOTFOUND);
  if (binary) {
    expect("increment from a start", memc,
           memcached_increment_with_initial(memc, "counted", 7, 5, 77, 0, &number), MEMCACHED_SUCCESS);
    equal("started", number, 77);
    expect("increment the started", memc,
           memcached_increment_with_initial(memc, "counted", 7, 5, 77, 0, &number), MEMCACHED_SUCCESS);
    equal("started and incremented", number, 82);
  }
}

static void refusals(memcached_st *memc, bool binary) {
  char *bytes = pattern(TOO_LARGE);
  expect("set", memc, set(memc, "key", "old", 0), MEMCACHED_SUCCESS);
  expect("too large", memc, memcached_set(memc, "key", 3, bytes, TOO_LARGE, 0, 0), MEMCACHED_E2BIG);
  free(bytes);
  expect_value("a refused set removes the old value", memc, "key", NULL);
  expect("usable after an error", memc, set(memc, "key", "new", 0), MEMCACHED_SUCCESS);
  expect_value("get after an error", memc, "key", "new");
  char key[252] = "";
  memset(key, 'k', 251);
  holds("the client refuses a long key", set(memc, key, "x", 0) != MEMCACHED_SUCCESS);
  uint64_t number;
  expect("set", memc, set(memc, "text", "abc", 0), MEMCACHED_SUCCESS);
  memcached_return_t rc = memcached_increment(memc, "text", 4, 1, &number);
  /* The binary protocol's status has no name in the client. */
  expect("increment text", memc, rc, binary ? MEMCACHED_UNKNOWN_READ_FAILURE : MEMCACHED_CLIENT_ERROR);
  expect("usable after a refused increment", memc, set(memc, "key", "1", 0), MEMCACHED_SUCCESS);
}

/* Stores without answers, and buffered stores. */
static void quiet(bool binary, bool unix_socket) {
  static const memcached_behavior_t kinds[] = {MEMCACHED_BEHAVIOR_NOREPLY, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS};
  for (int kind = 0; kind < 2; kind++) {
    memcached_st *memc = connect_to(binary, unix_socket, kinds[kind]);
    char key[32], value[32];
    for (int n = 0; n < 1000; n++) {
      snprintf(key, sizeof key, "quiet-%d-%d", kind, n);
      snprintf(value, sizeof value, "%d", n);
      memcached_return_t rc = set(memc, key, value, 0);
      if (rc != MEMCACHED_SUCCESS && rc != MEMCACHED_BUFFERED)
        fail("quiet set: %s", memcached_strerror(memc, rc));
    }
    expect("flush buffers", memc, memcached_flush_buffers(memc), MEMCACHED_SUCCESS);
    int right = 0;
    for (int n = 0; n < 1000; n++) {
      size_t length;
      uint32_t flags;
      memcached_return_t rc;
      snprintf(key, sizeof key, "quiet-%d-%d", kind, n);
      char *found = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
      right += found && length == (size_t) snprintf(value, sizeof value, "%d", n) && !memcmp(found, value, length);
      free(found);
    }
    equal("quiet values", (unsigned) right, 1000);
    memcached_free(memc);
  }
}

static memcached_return_t note_stat(const memcached_instance_st *server, const char *key, size_t key_length,
                                    const char *value, size_t value_length, void *noted) {
  (void) server;
  if (key_length == 13 && !memcmp(key, "item_size_max", 13) && value_length == 7 && !memcmp(value, "1048576", 7))
    *(int *) noted += 1000;
  *(int *) noted += 1;
  return MEMCACHED_SUCCESS;
}

static void statistics(memcached_st *memc, bool binary) {
  memcached_return_t rc;
  expect("version", memc, memcached_version(memc), MEMCACHED_SUCCESS);
  const memcached_instance_st *server = memcached_server_instance_by_position(memc, 0);
  holds("major version", memcached_server_major_version(server) > 0
                             && memcached_server_major_version(server) != UINT8_MAX);
  memcached_stat_st *stats = memcached_stat(memc, NULL, &rc);
  expect("stats", memc, rc, MEMCACHED_SUCCESS);
  static const char *const numbers[] = {"pid", "uptime", "time", "total_items", "cmd_get", "limit_maxbytes", "threads"};
  for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
    char *value = memcached_stat_get_value(memc, stats, numbers[n], &rc);
    expect(numbers[n], memc, rc, MEMCACHED_SUCCESS);
    holds(numbers[n], atoll(value) > 0);
    free(value);
  }
  memcached_stat_free(memc, stats);
  int noted = 0;
  expect("stats settings", memc, memcached_stat_execute(memc, "settings", note_stat, &noted), MEMCACHED_SUCCESS);
  holds("settings item_size_max", noted > 1000);
  /* Only the text protocol has the last one. */
  static const char *const others[] = {"items", "slabs", "sizes", "conns"};
  for (size_t n = 0; n < sizeof others / sizeof *others - (binary ? 1 : 0); n++) {
    noted = 0;
    expect(others[n], memc, memcached_stat_execute(memc, others[n], note_stat, &noted), MEMCACHED_SUCCESS);
    holds(others[n], noted > 0);
  }
}

static memcached_return_t note_key(const memcached_st *memc, const char *key, size_t length, void *noted) {
  (void) memc;
  if (length == 6 && !memcmp(key, "dumped", 6))
    *(bool *) noted = true;
  return MEMCACHED_SUCCESS;
}

static void dump(memcached_st *memc) {
  /* A unique size, so that the item is alone in its class. memcached dumps only its cold items,
   * and takes a moment to let a new one cool. */
  char *bytes = pattern(3000);
  expect("set", memc, memcached_set(memc, "dumped", 6, bytes, 3000, 0, 0), MEMCACHED_SUCCESS);
  free(bytes);
  memcached_dump_fn callbacks[] = {note_key};
  bool found = false;
  for (int tries = 0; tries < 100 && !found; tries++) {
    sleep_s(tries ? 0.05 : 0);
    memcached_return_t rc = memcached_dump(memc, callbacks, &found, 1);
    if (rc != MEMCACHED_SUCCESS)
      fail("dump: %s", memcached_strerror(memc, rc));
  }
  holds("dumped key", found);
}

static void flush(memcached_st *memc) {
  expect("set", memc, set(memc, "flushed", "1", 0), MEMCACHED_SUCCESS);
  expect("flush", memc, memcached_flush(memc, 0), MEMCACHED_SUCCESS);
  expect_value("flushed", memc, "flushed", NULL);
  expect("set after flush", memc, set(memc, "flushed", "2", 0), MEMCACHED_SUCCESS);
  expect_value("get after flush", memc, "flushed", "2");
}

/* Two clients share each server, so each uses its own keys. */
static const char *own(const char *kind) {
  static char key[64];
  snprintf(key, sizeof key, "%s-%s", kind, context);
  return key;
}

static void before_expiry(memcached_st *memc) {
  expect("set lasting", memc, set(memc, own("lasting"), "1", 0), MEMCACHED_SUCCESS);
  expect("set short", memc, set(memc, own("short"), "1", SHORT_TTL_S), MEMCACHED_SUCCESS);
  expect("set touched", memc, set(memc, own("touched"), "1", SHORT_TTL_S), MEMCACHED_SUCCESS);
  expect("set dated", memc, set(memc, own("dated"), "1", time(NULL) + 3600), MEMCACHED_SUCCESS);
  expect_value("before expiry", memc, own("short"), "1");
  expect("touch", memc, memcached_touch(memc, own("touched"), strlen(own("touched")), 100), MEMCACHED_SUCCESS);
  expect("touch absent", memc, memcached_touch(memc, "absent", 6, 100), MEMCACHED_NOTFOUND);
}

static void after_expiry(memcached_st *memc) {
  expect_value("expired", memc, own("short"), NULL);
  expect_value("no expiry lives on", memc, own("lasting"), "1");
  expect_value("touched lives on", memc, own("touched"), "1");
  expect_value("dated lives on", memc, own("dated"), "1");
}

/* The client sends stores over UDP and reads no answer; TCP shows their effect. */
static void udp(bool binary) {
  context = binary ? "binary-udp" : "text-udp";
  memcached_st *memc = memcached_create(NULL);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, binary);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_USE_UDP, 1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 1);
  add_server(memc, false);
  memcached_st *reader = connect_to(false, false, UNBUFFERED);
  char key[32];
  for (int n = 0; n < 20; n++) {
    snprintf(key, sizeof key, "%s-%d", context, n);
    expect("set", memc, set(memc, key, key, 0), MEMCACHED_SUCCESS);
    for (int tries = 0; tries < 100 && memcached_exist(reader, key, strlen(key)); tries++)
      sleep_s(0.02);
    expect_value("stored over UDP", reader, key, key);
    expect("delete", memc, memcached_delete(memc, key, strlen(key), 0), MEMCACHED_SUCCESS);
    for (int tries = 0; tries < 100 && !memcached_exist(reader, key, strlen(key)); tries++)
      sleep_s(0.02);
    expect_value("deleted over UDP", reader, key, NULL);
  }
  memcached_free(reader);
  memcached_free(memc);
}

static void ketama(void) {
  context = "ketama";
  memcached_st *memc = memcached_create(NULL);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_KETAMA, 1);
  add_server(memc, false);
  add_server(memc, true);
  memcached_st *shares[] = {connect_to(false, false, UNBUFFERED), connect_to(false, true, UNBUFFERED)};
  int held[2] = {0, 0};
  char key[32];
  for (int n = 0; n < 200; n++) {
    snprintf(key, sizeof key, "spread-%d", n);
    expect("set", memc, set(memc, key, key, 0), MEMCACHED_SUCCESS);
    expect_value("get", memc, key, key);
    for (int server = 0; server < 2; server++)
      held[server] += memcached_exist(shares[server], key, strlen(key)) == MEMCACHED_SUCCESS;
  }
  equal("keys are on both servers", (unsigned) (held[0] + held[1]), 200);
  holds("keys are spread", held[0] > 20 && held[1] > 20);
  memcached_free(shares[0]);
  memcached_free(shares[1]);
  memcached_free(memc);
}
