/* Lists of servers, and the properties of each. */

#include "scenarios.h"
#include "servers.h"

static memcached_return_t print_instance(const memcached_st *memc, const memcached_instance_st *instance,
                                         void *counter) {
  (void) memc;
  ++*(unsigned *) counter;
  trace_line("memcached_server_cursor.callback", "%s, port %u, type %s, responses %u, versions %u %u %u",
             memcached_server_name(instance), memcached_server_port(instance), memcached_server_type(instance),
             memcached_server_response_count(instance), memcached_server_major_version(instance),
             memcached_server_minor_version(instance), memcached_server_micro_version(instance));
  return MEMCACHED_SUCCESS;
}

static void print_servers(const memcached_st *memc) {
  memcached_server_fn callbacks[] = {print_instance};
  unsigned count = 0;
  NUMBER(memcached_server_count(memc));
  RC(memc, memcached_server_cursor(memc, callbacks, &count, 1));
  NUMBER(count);
}

void servers_adding(void) {
  memcached_st *memc = handle_on(0);
  RC(memc, memcached_server_add(memc, "first.example", 11211));
  RC(memc, memcached_server_add(memc, "second.example", 0));
  RC(memc, memcached_server_add(memc, NULL, 0));
  RC(memc, memcached_server_add(memc, NULL, 1234));
  RC(memc, memcached_server_add(memc, "", 1234));
  RC(memc, memcached_server_add_with_weight(memc, "weighted.example", 1234, 5));
  RC(memc, memcached_server_add_with_weight(memc, "weighted.example", 1234, 0));
  RC(memc, memcached_server_add_unix_socket(memc, "/nowhere/socket"));
  RC(memc, memcached_server_add_unix_socket(memc, NULL));
  RC(memc, memcached_server_add_unix_socket_with_weight(memc, "/nowhere/other", 3));
  RC(memc, memcached_server_add_unix_socket_with_weight(memc, NULL, 3));
  /* A path instead of a host name. */
  RC(memc, memcached_server_add(memc, "/nowhere/third", 0));
  RC(memc, memcached_server_add(memc, "/nowhere/third", 77));
  RC(memc, memcached_server_add(memc, "first.example", 11211));
  char name[MEMCACHED_NI_MAXHOST + 100];
  memset(name, 'h', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  RC(memc, memcached_server_add(memc, name, 11211));
  RC(memc, memcached_server_add_unix_socket(memc, name));
  print_servers(memc);
  memcached_free(memc);
}

void servers_lists(void) {
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  NUMBER(memcached_server_list_count(NULL));
  memcached_server_list_st list = memcached_server_list_append(NULL, "a.example", 1111, &rc);
  trace_line("memcached_server_list_append(a)", "%s, %d", rc_name(rc), list != NULL);
  list = memcached_server_list_append_with_weight(list, "b.example", 2222, 7, &rc);
  trace_line("memcached_server_list_append_with_weight(b)", "%s, %d", rc_name(rc), list != NULL);
  list = memcached_server_list_append(list, "/nowhere/socket", 0, &rc);
  trace_line("memcached_server_list_append(socket)", "%s, %d", rc_name(rc), list != NULL);
  list = memcached_server_list_append(list, NULL, 0, &rc);
  trace_line("memcached_server_list_append(NULL)", "%s, %d", rc_name(rc), list != NULL);
  NUMBER(memcached_server_list_count(list));
  for (unsigned n = 0; n < memcached_server_list_count(list); n++)
    trace_line("memcached_server_list_append.fields", "%s, port %u, weight %u, type %d, hosts %u", list[n].hostname,
               list[n].port, list[n].weight, list[n].type, n == 0 ? list[n].number_of_hosts : 0);
  memcached_st *memc = handle_on(1);
  RC(memc, memcached_server_push(memc, list));
  print_servers(memc);
  RC(memc, memcached_server_push(memc, list));
  NUMBER(memcached_server_count(memc));
  RC(memc, memcached_server_push(memc, NULL));
  NOTHING(memcached_server_list_free(list));
  NOTHING(memcached_server_list_free(NULL));
  NUMBER(memcached_server_count(memc));
  IN_CHILD(POINTER(memcached_server_list_append(NULL, "a.example", 1, NULL)));
  memcached_free(memc);
}

void servers_parsing(void) {
  static const char *const texts[] = {
      "localhost", "localhost:1234", "a:1,b:2,c:3", "a:1, b:2, c:3", "/tmp/x.sock", "/tmp/x.sock:0",
      "10.0.0.1:11211,10.0.0.2:11212", "a:0", "a:65535", "a:65536", "a:1/?5", "a:1/?5,b:2/?7", "", ",", "a,,b", ":1",
      "a:b", "a:-1", "[::1]:1234", "a:1:2", "a:1/?", "a:1/?x", " a:1 ", "a b c", "a:1,",
  };
  for (unsigned n = 0; n < COUNT(texts); n++) {
    if (!trace_fork()) {
      trace_wait("memcached_servers_parse");
      continue;
    }
    memcached_server_list_st list = memcached_servers_parse(texts[n]);
    unsigned count = memcached_server_list_count(list);
    trace_line("memcached_servers_parse", "\"%s\": %s, %u", texts[n], list ? "a list" : "null", count);
    for (unsigned server = 0; server < count; server++)
      trace_line("memcached_servers_parse", "%s, port %u, weight %u, type %d", list[server].hostname,
                 list[server].port, list[server].weight, list[server].type);
    memcached_server_list_free(list);
    trace_exit();
  }
  IN_CHILD(POINTER(memcached_servers_parse(NULL)));
}

static memcached_return_t refuse_instance(const memcached_st *memc, const memcached_instance_st *instance,
                                          void *counter) {
  (void) memc;
  (void) instance;
  ++*(unsigned *) counter;
  return MEMCACHED_FAILURE;
}

void servers_cursor(void) {
  memcached_st *memc = handle_on(3);
  memcached_server_fn two[] = {print_instance, print_instance}, refusing[] = {print_instance, refuse_instance};
  unsigned count = 0;
  print_servers(memc);
  RC(memc, memcached_server_cursor(memc, two, &count, 2));
  NUMBER(count);
  RC(memc, memcached_server_cursor(memc, refusing, &count, 2));
  NUMBER(count);
  RC(memc, memcached_server_cursor(memc, NULL, &count, 0));
  memcached_free(memc);
  memc = handle_on(0);
  RC(memc, memcached_server_cursor(memc, two, &count, 2));
  memcached_free(memc);
}

void servers_by_key(void) {
  memcached_st *memc = handle_on(3);
  for (char key = 'a'; key < 'p'; key++) {
    memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
    const memcached_instance_st *instance = memcached_server_by_key(memc, &key, 1, &rc);
    trace_server("memcached_server_by_key", instance, rc);
  }
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  trace_line("memcached_server_by_key()", "%d, %s; %s", memcached_server_by_key(memc, "", 0, &rc) != NULL, rc_name(rc),
             errors_of(memc));
  IN_CHILD(POINTER(memcached_server_by_key(memc, S("key"), NULL)));
  memcached_free(memc);
  memc = handle_on(0);
  trace_line("memcached_server_by_key(no servers)", "%d, %s; %s",
             memcached_server_by_key(memc, S("key"), &rc) != NULL, rc_name(rc), errors_of(memc));
  memcached_free(memc);
}

void servers_instances(void) {
  memcached_st *memc = handle_on(2);
  for (unsigned n = 0; n < 2; n++) {
    const memcached_instance_st *instance = memcached_server_instance_by_position(memc, n);
    if (!POINTER(instance))
      continue;
    TEXT(memcached_server_name(instance));
    NUMBER(memcached_server_port(instance));
    TEXT(memcached_server_type(instance));
    NUMBER(memcached_server_srcport(instance));
    NUMBER(memcached_server_response_count(instance));
    TEXT(memcached_server_error(instance));
    NUMBER(memcached_server_error_return(instance));
  }
  for (char key = 'a'; key < 'h'; key++)
    RC(memc, memcached_set(memc, &key, 1, S("value"), 0, 0));
  const memcached_instance_st *instance = memcached_server_instance_by_position(memc, 0);
  NUMBER(memcached_server_response_count(instance));
  NUMBER(memcached_server_srcport(instance) != 0);
  NOTHING(memcached_instance_next_retry(instance, 0));
  RC(memc, memcached_exist(memc, S("a")));
  POINTER(memcached_server_get_last_disconnect(memc));
  IN_CHILD(TEXT(memcached_server_name(NULL)));
  IN_CHILD(NUMBER(memcached_server_port(NULL)));
  IN_CHILD(TEXT(memcached_server_type(NULL)));
  IN_CHILD(NUMBER(memcached_server_srcport(NULL)));
  IN_CHILD(NUMBER(memcached_server_response_count(NULL)));
  IN_CHILD(NUMBER(memcached_server_major_version(NULL)));
  IN_CHILD(NUMBER(memcached_server_minor_version(NULL)));
  IN_CHILD(NUMBER(memcached_server_micro_version(NULL)));
  IN_CHILD(NOTHING(memcached_instance_next_retry(NULL, 0)));
  memcached_free(memc);
}

void servers_sorted(void) {
  memcached_st *memc = handle_on(0);
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SORT_HOSTS, 1));
  RC(memc, memcached_server_add(memc, "c.example", 3));
  RC(memc, memcached_server_add(memc, "a.example", 2));
  RC(memc, memcached_server_add(memc, "b.example", 1));
  RC(memc, memcached_server_add(memc, "a.example", 1));
  print_servers(memc);
  memcached_free(memc);
  memc = handle_on(0);
  RC(memc, memcached_server_add(memc, "c.example", 3));
  RC(memc, memcached_server_add(memc, "a.example", 2));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SORT_HOSTS, 1));
  print_servers(memc);
  memcached_free(memc);
}

void servers_udp(void) {
  memcached_st *memc = handle_on(0);
  RC(memc, memcached_server_add_udp(memc, "127.0.0.1", 1));
  RC(memc, memcached_server_add_udp_with_weight(memc, "127.0.0.1", 1, 3));
  NUMBER(memcached_server_count(memc));
  RC(memc, memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_USE_UDP, 1));
  RC(memc, memcached_server_add_udp(memc, "127.0.0.1", 1));
  NUMBER(memcached_server_count(memc));
  memcached_free(memc);
}

void servers_pushed(void) {
  memcached_st *memc = handle_on(2), *other = handle_on(0);
  RC(other, memcached_push(other, memc));
  print_servers(other);
  RC(other, memcached_push(other, memc));
  NUMBER(memcached_server_count(other));
  RC(other, memcached_set(other, S("key"), S("value"), 0, 0));
  IN_CHILD(RC(other, memcached_push(other, NULL)));
  IN_CHILD(RC(memc, memcached_push(NULL, memc)));
  memcached_free(other);
  memcached_free(memc);
}
