/* Statistics. Only their names and their syntax are compared; their values depend on the servers. */

#include "scenarios.h"
#include "servers.h"

#include <ctype.h>

static bool is_number(const char *text) {
  size_t digits = strspn(text, "0123456789.");
  return digits > 0 && text[digits] == '\0';
}

static void print_stat(const memcached_stat_st *stat) {
  trace_line("memcached_stat.fields", "pid %d, pointer %lu, threads %d, limit %llu, version %s, time %d", stat->pid > 0,
             stat->pointer_size, stat->threads > 0, stat->limit_maxbytes, stat->version, stat->time > 0);
  trace_line("memcached_stat.fields", "items %d, total %d, connections %d, sets %d, hits %d, misses %d, evictions %llu",
             stat->curr_items > 0, stat->total_items > 0, stat->curr_connections > 0, stat->cmd_set > 0,
             stat->get_hits > 0, stat->get_misses > 0, stat->evictions);
}

static void print_value(memcached_st *memc, memcached_stat_st *stat, const char *key) {
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[96];
  char *value = memcached_stat_get_value(memc, stat, key, &rc);
  snprintf(call, sizeof call, "memcached_stat_get_value(%s)", key);
  if (value && is_number(value) && strcmp(key, "version") != 0)
    trace_line(call, "%s, a number", rc_name(rc));
  else
    trace_line(call, "%s, %s; %s", rc_name(rc), value ? value : "null", errors_of(memc));
  free(value);
}

void stats(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(2) : handle_on(2);
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    for (char key = 'a'; key < 'h'; key++) {
      RC(memc, memcached_set(memc, &key, 1, S("value"), 0, 0));
      RC(memc, memcached_exist(memc, &key, 1));
    }
    memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
    trace_line("memcached_stat", "%d, %s; %s", stat != NULL, rc_name(rc), errors_of(memc));
    if (!stat)
      return;
    for (unsigned n = 0; n < 2; n++)
      print_stat(stat + n);
    char **keys = memcached_stat_get_keys(memc, stat, &rc);
    trace_line("memcached_stat_get_keys", "%s", rc_name(rc));
    for (unsigned n = 0; keys && keys[n]; n++)
      print_value(memc, stat, keys[n]);
    free(keys);
    print_value(memc, stat, "no such key");
    POINTER(memcached_stat_get_keys(memc, NULL, &rc));
    NOTHING(memcached_stat_free(memc, stat));
    memcached_stat_st one;
    memset(&one, 0, sizeof one);
    char nothing[] = "";
    if (servers_local())
      RC(memc, memcached_stat_servername(&one, nothing, server_host(0), 0));
    else
      RC(memc, memcached_stat_servername(&one, NULL, server_host(0), server_port(0)));
    print_stat(&one);
    memcached_free(memc);
  }
}

struct seen {
  unsigned count;
  bool pid, version, items;
};

static memcached_return_t see(const memcached_instance_st *server, const char *key, size_t key_length,
                              const char *value, size_t value_length, void *context) {
  (void) server;
  struct seen *seen = context;
  seen->count += value != NULL && value_length > 0;
  seen->pid |= key_length == 3 && !memcmp(key, "pid", 3);
  seen->version |= key_length == 7 && !memcmp(key, "version", 7);
  seen->items |= key_length == 10 && !memcmp(key, "curr_items", 10);
  return MEMCACHED_SUCCESS;
}

static memcached_return_t refuse(const memcached_instance_st *server, const char *key, size_t key_length,
                                 const char *value, size_t value_length, void *context) {
  see(server, key, key_length, value, value_length, context);
  return MEMCACHED_FAILURE;
}

void stats_execute(void) {
  static const char *const topics[] = {NULL, "", "settings", "items", "slabs", "sizes", "conns"};
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(2) : handle_on(2);
    for (unsigned n = 0; n < COUNT(topics); n++) {
      struct seen seen = {0};
      char call[64];
      snprintf(call, sizeof call, "memcached_stat_execute(%s)", topics[n] ? topics[n] : "NULL");
      trace_rc(memc, call, memcached_stat_execute(memc, topics[n], see, &seen));
      trace_line(call, "some %d, pid %d, version %d, items %d", seen.count > 0, seen.pid, seen.version, seen.items);
    }
    struct seen seen = {0};
    RC(memc, memcached_stat_execute(memc, NULL, refuse, &seen));
    NUMBER(seen.count);
    RC(memc, memcached_stat_execute(memc, NULL, NULL, NULL));
    RC(memc, memcached_exist(memc, S("key")));
    memcached_free(memc);
  }
}

void stats_analyze(void) {
  memcached_st *memc = handle_on(3);
  RC(memc, memcached_set(memc, S("analyzed"), S("value"), 0, 0));
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
  memcached_analysis_st *analysis = memcached_analyze(memc, stat, &rc);
  trace_line("memcached_analyze", "%d, %s; %s", analysis != NULL, rc_name(rc), errors_of(memc));
  if (analysis)
    trace_line("memcached_analyze.fields", "root %d, size %d, ratio in range %d", analysis->root == memc,
               analysis->average_item_size > 0, analysis->pool_hit_ratio >= 0 && analysis->pool_hit_ratio <= 100);
  NOTHING(memcached_analyze_free(analysis));
  memcached_stat_free(memc, stat);
  trace_line("memcached_analyze(NULL)", "%d, %s; %s", memcached_analyze(memc, NULL, &rc) != NULL, rc_name(rc),
             errors_of(memc));
  IN_CHILD(POINTER(memcached_analyze(NULL, NULL, &rc)));
  memcached_free(memc);
}

void stats_bad(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(1) : handle_on(1);
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    char unknown[] = "nonsense", too_long[400];
    memset(too_long, 'x', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    memcached_stat_st *stat = memcached_stat(memc, unknown, &rc);
    trace_line("memcached_stat(nonsense)", "%d, %s; %s", stat != NULL, rc_name(rc), errors_of(memc));
    memcached_stat_free(memc, stat);
    memcached_free(memc);
    memc = binary ? handle_binary(1) : handle_on(1);
    struct seen seen = {0};
    RC(memc, memcached_stat_execute(memc, too_long, see, &seen));
    memcached_free(memc);
  }
  memcached_stat_st stat;
  memset(&stat, 0, sizeof stat);
  char nothing[] = "";
  RC(NULL, memcached_stat_servername(&stat, nothing, "127.0.0.1", 1));
  IN_CHILD(RC(NULL, memcached_stat_servername(NULL, nothing, "127.0.0.1", 1)));
  memcached_st *memc = handle_on(1);
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  memset(&stat, 0, sizeof stat);
  static const char *const names[] = {"pid", "uptime", "time", "version", "pointer_size", "curr_items", "threads",
                                      "bytes", "cmd_get", "evictions", "limit_maxbytes", "rusage_user"};
  for (unsigned n = 0; n < COUNT(names); n++) {
    char *value = memcached_stat_get_value(memc, &stat, names[n], &rc);
    trace_line("memcached_stat_get_value of nothing", "%s: %s, %s", names[n], rc_name(rc), value ? value : "null");
    free(value);
  }
  IN_CHILD(POINTER(memcached_stat_get_value(memc, &stat, NULL, &rc)));
  memcached_free(memc);
}
