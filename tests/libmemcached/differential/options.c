/* Strings of options. */

#include "scenarios.h"
#include "servers.h"

static void check(const char *text) {
  char call[700], buffer[1024] = "unchanged";
  snprintf(call, sizeof call, "libmemcached_check_configuration(%s)", text);
  if (!trace_fork()) {
    trace_wait("libmemcached_check_configuration");
    return;
  }
  memcached_return_t rc = libmemcached_check_configuration(text, strlen(text), buffer, sizeof buffer);
  trace_line(call, "%s, \"%s\"", rc_name(rc), buffer);
  trace_exit();
}

static const char *const good[] = {
    "--SERVER=localhost",
    "--SERVER=localhost:11211",
    "--SERVER=10.0.2.252:11211",
    "--SERVER=localhost/?2",
    "--SERVER=localhost:11211/?9",
    "--SERVER=a.example:1 --SERVER=b.example:2/?3 --SERVER=c.example",
    "--SERVER=[::1]:11211",
    "--SERVER=::1",
    "--SOCKET=\"/tmp/a socket\"",
    "--SOCKET=\"/tmp/socket\"/?5",
    "--SERVER=a:1 --BINARY-PROTOCOL",
    "--SERVER=a:1 --BUFFER-REQUESTS",
    "--SERVER=a:1 --CONNECT-TIMEOUT=456",
    "--SERVER=a:1 --DISTRIBUTION=consistent",
    "--SERVER=a:1 --DISTRIBUTION=consistent,MD5",
    "--SERVER=a:1 --DISTRIBUTION=random",
    "--SERVER=a:1 --DISTRIBUTION=modula",
    "--SERVER=a:1 --HASH=CRC",
    "--SERVER=a:1 --HASH=MURMUR3",
    "--SERVER=a:1 --HASH-WITH-NAMESPACE --NAMESPACE=\"foo\"",
    "--SERVER=a:1 --IO-BYTES-WATERMARK=456",
    "--SERVER=a:1 --IO-KEY-PREFETCH=456",
    "--SERVER=a:1 --IO-MSG-WATERMARK=456",
    "--SERVER=a:1 --NOREPLY",
    "--SERVER=a:1 --NUMBER-OF-REPLICAS=2",
    "--SERVER=a:1 --POLL-TIMEOUT=456",
    "--SERVER=a:1 --RANDOMIZE-REPLICA-READ",
    "--SERVER=a:1 --RCV-TIMEOUT=456",
    "--SERVER=a:1 --REMOVE-FAILED-SERVERS",
    "--SERVER=a:1 --REMOVE_FAILED_SERVERS=4",
    "--SERVER=a:1 --RETRY-TIMEOUT=456",
    "--SERVER=a:1 --DEAD-TIMEOUT=456",
    "--SERVER=a:1 --SERVER-FAILURE-LIMIT=4",
    "--SERVER=a:1 --SND-TIMEOUT=456",
    "--SERVER=a:1 --SOCKET-RECV-SIZE=456",
    "--SERVER=a:1 --SOCKET-SEND-SIZE=456",
    "--SERVER=a:1 --SORT-HOSTS",
    "--SERVER=a:1 --SUPPORT-CAS",
    "--SERVER=a:1 --TCP-NODELAY",
    "--SERVER=a:1 --TCP-KEEPALIVE",
    "--SERVER=a:1 --TCP-KEEPIDLE=30",
    "--SERVER=a:1 --USER-DATA",
    "--USE-UDP --SERVER=a:1",
    "--SERVER=a:1 --VERIFY-KEY",
    "--SERVER=a:1 --FETCH-VERSION",
    "--SERVER=a:1 --CONNECT-TIMEOUT=1 --POLL-TIMEOUT=2 --TCP-NODELAY --NO-BLOCK",
    "--NAMESPACE=\"foo\" --SERVER=a:1",
    "--SERVER=a:1 --NAMESPACE=foo",
    "--POOL-MIN=10 --POOL-MAX=32 --SERVER=a:1",
    "  --SERVER=a:1   --VERIFY-KEY  ",
    "--server=a:1",
    "--SERVER=a:1 --hash=md5",
    "# a comment",
    "--SERVER=a:1 END --NONSENSE",
    "--SERVER=a:1 RESET --SERVER=b:2",
    "--SERVER=a:1 --NO-BLOCK",
};

static const char *const bad[] = {
    "",
    " ",
    "nonsense",
    "--NONSENSE",
    "--SERVER",
    "--SERVER=",
    "--SERVER=a:99999",
    "--SERVER=a:b",
    "--SERVER=a:1,",
    "--SERVER=a:1/?",
    "--SERVER=a:1/?0",
    "--SERVER= a:1",
    "--SERVER=a:1 --HASH=",
    "--SERVER=a:1 --HASH=nonsense",
    "--SERVER=a:1 --DISTRIBUTION=nonsense",
    "--SERVER=a:1 --DISTRIBUTION=consistent,nonsense",
    "--SERVER=a:1 --CONNECT-TIMEOUT",
    "--SERVER=a:1 --CONNECT-TIMEOUT=",
    "--SERVER=a:1 --CONNECT-TIMEOUT=x",
    "--SERVER=a:1 --CONNECT-TIMEOUT=-1",
    "--SERVER=a:1 --CONNECT-TIMEOUT=99999999999999999999",
    "--SERVER=a:1 --BINARY-PROTOCOL=1",
    "--SERVER=a:1 --NAMESPACE=",
    "--SERVER=a:1 --NAMESPACE=\"\"",
    "--SERVER=a:1 --NAMESPACE=\"unclosed",
    "--SOCKET=/tmp/unquoted",
    "--SOCKET=\"\"",
    "--POOL-MIN=10",
    "--POOL-MIN=x",
    "--POOL-MAX=10",
    "--POOL-MIN=20 --POOL-MAX=10 --SERVER=a:1",
    "ERROR",
    "--SERVER=a:1 ERROR",
    "INCLUDE",
    "INCLUDE nonsense",
    "INCLUDE \"/nowhere/file\"",
    "--CONFIGURE-FILE",
    "--CONFIGURE-FILE=\"/nowhere/file\"",
    "--LOAD-FROM-FILE=\"/nowhere/file\"",
    "--SERVER=a:1 --",
    "--SERVER=a:1 -",
    "=",
    "--SERVER=a:1 --VERIFY-KEY junk",
};

void options_checked(void) {
  for (unsigned n = 0; n < COUNT(good); n++)
    check(good[n]);
}

void options_bad(void) {
  for (unsigned n = 0; n < COUNT(bad); n++)
    check(bad[n]);
  char buffer[8] = "before";
  IN_CHILD(RC(NULL, libmemcached_check_configuration(NULL, 0, NULL, 0)));
  IN_CHILD(RC(NULL, libmemcached_check_configuration(S("--SERVER=a:1"), NULL, 0)));
  IN_CHILD(RC(NULL, libmemcached_check_configuration(S("--NONSENSE"), NULL, 0)));
  RC(NULL, libmemcached_check_configuration(S("--NONSENSE"), buffer, sizeof buffer));
  TEXT(buffer);
  for (unsigned n = 0; n < COUNT(bad); n++) {
    if (!trace_fork()) {
      trace_wait("memcached_of_bad_options");
      continue;
    }
    char call[128];
    snprintf(call, sizeof call, "memcached(%s)", bad[n]);
    memcached_st *memc = memcached(bad[n], strlen(bad[n]));
    trace_line(call, "%s, %u", memc ? "a handle" : "null", memcached_server_count(memc));
    memcached_free(memc);
    trace_exit();
  }
}

static memcached_return_t print_instance(const memcached_st *memc, const memcached_instance_st *instance,
                                         void *context) {
  (void) memc;
  (void) context;
  trace_line("memcached.server", "%s, port %u", memcached_server_name(instance), memcached_server_port(instance));
  return MEMCACHED_SUCCESS;
}

static void print_handle(memcached_st *memc) {
  memcached_server_fn callbacks[] = {print_instance};
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  trace_line("memcached.servers", "%u", memcached_server_count(memc));
  memcached_server_cursor(memc, callbacks, NULL, 1);
  char text[2048] = "";
  size_t used = 0;
  for (unsigned flag = 0; flag < MEMCACHED_BEHAVIOR_MAX; flag++)
    if (flag != MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE && flag != MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE)
      used += (size_t) snprintf(text + used, sizeof text - used, "%llu ",
                                (unsigned long long) memcached_behavior_get(memc, flag));
  trace_line("memcached.behaviors", "%s", text);
  const char *prefix = memcached_callback_get(memc, MEMCACHED_CALLBACK_NAMESPACE, &rc);
  trace_line("memcached.namespace", "%s", prefix ? prefix : "none");
  trace_line("memcached.pool", "%u %u", memc->configure.initial_pool_size, memc->configure.max_pool_size);
}

void options_handles(void) {
  for (unsigned n = 0; n < COUNT(good); n++) {
    if (!trace_fork()) {
      trace_wait("memcached_of_good_options");
      continue;
    }
    char call[128];
    snprintf(call, sizeof call, "memcached(%s)", good[n]);
    memcached_st *memc = memcached(good[n], strlen(good[n]));
    trace_line(call, "%s", memc ? "a handle" : "null");
    if (memc)
      print_handle(memc);
    memcached_free(memc);
    trace_exit();
  }
  char options[400];
  int length = snprintf(options, sizeof options, servers_local() ? "--SOCKET=\"%s\"" : "--SERVER=%s", server_address(0));
  memcached_st *memc = memcached(options, (size_t) length);
  if (!POINTER(memc))
    return;
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_exist(memc, S("key")));
  memcached_free(memc);
  char name[200];
  snprintf(name, sizeof name, "%s/options.cnf", getenv("SCRATCH_DIR"));
  FILE *file = fopen(name, "w");
  fprintf(file, "--SERVER=a.example:1\n# a comment\n--SERVER=b.example:2 --VERIFY-KEY\n");
  fclose(file);
  trace_name(name, "{options}");
  static const char *const formats[] = {"--CONFIGURE-FILE=\"%s\"", "INCLUDE \"%s\"", "INCLUDE \"%s\" --NOREPLY"};
  for (unsigned n = 0; n < COUNT(formats); n++) {
    length = snprintf(options, sizeof options, formats[n], name);
    memc = memcached(options, (size_t) length);
    trace_line("memcached(a file's options)", "%s", memc ? "a handle" : "null");
    if (memc)
      print_handle(memc);
    memcached_free(memc);
  }
}
