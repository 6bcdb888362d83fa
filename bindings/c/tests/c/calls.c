/* Every function, with good arguments and with bad ones, as C compiles it. */

#include "check.h"

#define BAD FABCACHE_INVALID_ARGUMENT
#define BEYOND ((size_t)-1)

static fabcache *cache;

struct told {
  unsigned count;
  size_t bytes;
};

static void found(void *context, size_t key, const void *value, const fabcache_item *item) {
  struct told *told = context;
  /* It may call the library. */
  COMES_TO(FABCACHE_OK, fabcache_exists(cache, key == 0 ? "a" : "b", 1));
  CHECK(item->length == (key == 0 ? 1u : 3u) && memcmp(value, "222", item->length) == 0 && item->flags == 9);
  told->count++;
  told->bytes += item->length;
}

static void stat_told(void *context, const char *server, const char *name, const char *value) {
  struct told *told = context;
  CHECK(strcmp(server, fabcache_server_address(cache, 0)) == 0 && name[0] != '\0' && value != NULL);
  told->count++;
}

static void version_told(void *context, const char *server, const char *version) {
  stat_told(context, server, version, version);
}

static void transport_told(void *context, const char *server, int transport, const char *why) {
  stat_told(context, server, server, server);
  CHECK(why == NULL);
  CHECK(transport == (server[0] == 't' ? FABCACHE_TRANSPORT_TCP : FABCACHE_TRANSPORT_SHARED_MEMORY));
}

static void options(void) {
  fabcache_options *options = fabcache_options_new();
  CHECK(options != NULL);
  COMES_TO(FABCACHE_OK, fabcache_options_connect_timeout_ms(options, 2000));
  COMES_TO(FABCACHE_OK, fabcache_options_timeout_ms(options, 20000));
  COMES_TO(FABCACHE_OK, fabcache_options_failures(options, 2, 100, 1));
  COMES_TO(FABCACHE_OK, fabcache_options_shared_memory(options, FABCACHE_SHARED_MEMORY_REQUIRED));
  COMES_TO(FABCACHE_OK, fabcache_options_fabric(options, FABCACHE_FABRIC_MODE_REQUEST, "tcp;ofi_rxm", "lo", 1));
  COMES_TO(FABCACHE_OK, fabcache_options_fabric(options, FABCACHE_FABRIC_MODE_AUTO, NULL, NULL, 0));
  COMES_TO(FABCACHE_OK, fabcache_options_protocol(options, FABCACHE_PROTOCOL_BINARY));
  COMES_TO(FABCACHE_OK, fabcache_options_protocol(options, FABCACHE_PROTOCOL_AUTO));
  COMES_TO(FABCACHE_OK, fabcache_options_distribution(options, FABCACHE_DISTRIBUTION_KETAMA_WEIGHTED));
  COMES_TO(FABCACHE_OK, fabcache_options_hash(options, FABCACHE_HASH_MURMUR3));
  COMES_TO(FABCACHE_OK, fabcache_options_mapping(options, 1, 1));
  COMES_TO(FABCACHE_OK, fabcache_options_credentials(options, "user", "password"));
  COMES_TO(FABCACHE_OK, fabcache_options_credentials(options, NULL, NULL));
  COMES_TO(BAD, fabcache_options_connect_timeout_ms(options, 0));
  COMES_TO(BAD, fabcache_options_timeout_ms(options, 0));
  COMES_TO(BAD, fabcache_options_failures(options, 0, 100, 1));
  COMES_TO(BAD, fabcache_options_shared_memory(options, 3));
  COMES_TO(BAD, fabcache_options_fabric(options, 3, NULL, NULL, 0));
  COMES_TO(BAD, fabcache_options_fabric(options, 0, "\xff", NULL, 0));
  COMES_TO(BAD, fabcache_options_fabric(NULL, 0, NULL, NULL, 0));
  COMES_TO(BAD, fabcache_options_protocol(options, 4));
  COMES_TO(BAD, fabcache_options_protocol(NULL, 0));
  COMES_TO(BAD, fabcache_options_distribution(options, -1));
  COMES_TO(BAD, fabcache_options_hash(options, 10));
  COMES_TO(BAD, fabcache_options_credentials(options, "user", NULL));
  COMES_TO(BAD, fabcache_options_credentials(options, "\xff", ""));
  COMES_TO(BAD, fabcache_options_connect_timeout_ms(NULL, 1));
  COMES_TO(BAD, fabcache_options_timeout_ms(NULL, 1));
  COMES_TO(BAD, fabcache_options_failures(NULL, 1, 1, 1));
  COMES_TO(BAD, fabcache_options_shared_memory(NULL, 0));
  COMES_TO(BAD, fabcache_options_distribution(NULL, 0));
  COMES_TO(BAD, fabcache_options_hash(NULL, 0));
  COMES_TO(BAD, fabcache_options_mapping(NULL, 0, 0));
  COMES_TO(BAD, fabcache_options_credentials(NULL, NULL, NULL));
  fabcache_options_free(options);
  fabcache_options_free(NULL);
}

static void opening(const char *address) {
  const char *addresses[2];
  fabcache *other;
  fabcache_options *options = fabcache_options_new();
  addresses[0] = address;
  addresses[1] = "ftp://nowhere";
  COMES_TO(BAD, fabcache_open(NULL, 1, NULL, &other));
  CHECK(other == NULL);
  COMES_TO(BAD, fabcache_open(addresses, 1, NULL, NULL));
  COMES_TO(FABCACHE_NO_SERVERS, fabcache_open(addresses, 0, NULL, &other));
  COMES_TO(FABCACHE_BAD_ADDRESS, fabcache_open(addresses, 2, NULL, &other));
  CHECK(strstr(fabcache_last_error(), "ftp://nowhere") != NULL);
  addresses[1] = NULL;
  COMES_TO(BAD, fabcache_open(addresses, 2, NULL, &other));
  addresses[1] = "tcp://127.0.0.1:1";
  COMES_TO(FABCACHE_OK, fabcache_open(addresses, 2, options, &other));
  fabcache_options_free(options);
  CHECK(fabcache_server_count(other) == 2 && fabcache_server_count(NULL) == 0);
  CHECK(strcmp(fabcache_server_address(other, 1), addresses[1]) == 0);
  CHECK(fabcache_server_address(other, 2) == NULL && fabcache_server_address(NULL, 0) == NULL);
  COMES_TO(FABCACHE_UNREACHABLE, fabcache_flush(other, 3600));
  CHECK(strncmp(fabcache_last_error(), addresses[1], strlen(addresses[1])) == 0);
  COMES_TO(FABCACHE_OK, fabcache_flush(other, 0) == FABCACHE_DOWN ? FABCACHE_OK : FABCACHE_INTERNAL);
  COMES_TO(FABCACHE_PARTIAL, fabcache_verbosity(other, 0));
  fabcache_close(other);
  fabcache_close(NULL);
}

static void storing(void) {
  fabcache_item item;
  char buffer[8];
  COMES_TO(FABCACHE_NOT_STORED, fabcache_replace(cache, "a", 1, "1", 1, 0, 9));
  COMES_TO(FABCACHE_NOT_STORED, fabcache_append(cache, "a", 1, "1", 1));
  COMES_TO(FABCACHE_NOT_STORED, fabcache_prepend(cache, "a", 1, "1", 1));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_cas(cache, "a", 1, "1", 1, 0, 9, 1));
  COMES_TO(FABCACHE_OK, fabcache_add(cache, "a", 1, "1", 1, 0, 9));
  COMES_TO(FABCACHE_NOT_STORED, fabcache_add(cache, "a", 1, "1", 1, 0, 9));
  COMES_TO(FABCACHE_OK, fabcache_get(cache, "a", 1, buffer, sizeof buffer, &item));
  CHECK(item.length == 1 && item.flags == 9 && buffer[0] == '1');
  COMES_TO(FABCACHE_EXISTS, fabcache_cas(cache, "a", 1, "2", 1, 0, 9, item.cas + 1));
  COMES_TO(FABCACHE_OK, fabcache_cas(cache, "a", 1, "2", 1, 0, 9, item.cas));
  COMES_TO(FABCACHE_OK, fabcache_set(cache, "b", 1, "2", 1, 100, 9));
  COMES_TO(FABCACHE_OK, fabcache_append(cache, "b", 1, "2", 1));
  COMES_TO(FABCACHE_OK, fabcache_prepend(cache, "b", 1, "2", 1));
  COMES_TO(FABCACHE_OK, fabcache_set(cache, "empty", 5, NULL, 0, 0, 0));
  COMES_TO(FABCACHE_OK, fabcache_replace(cache, "empty", 5, NULL, 0, 0, 0));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_set(cache, "", 0, "1", 1, 0, 0));
  COMES_TO(BAD, fabcache_set(NULL, "a", 1, "1", 1, 0, 0));
  COMES_TO(BAD, fabcache_set(cache, NULL, 1, "1", 1, 0, 0));
  COMES_TO(BAD, fabcache_set(cache, "a", 1, NULL, 1, 0, 0));
  COMES_TO(BAD, fabcache_set(cache, "a", 1, "1", BEYOND, 0, 0));
  COMES_TO(BAD, fabcache_add(NULL, "a", 1, "1", 1, 0, 0));
  COMES_TO(BAD, fabcache_replace(NULL, "a", 1, "1", 1, 0, 0));
  COMES_TO(BAD, fabcache_append(NULL, "a", 1, "1", 1));
  COMES_TO(BAD, fabcache_prepend(NULL, "a", 1, "1", 1));
  COMES_TO(BAD, fabcache_cas(NULL, "a", 1, "1", 1, 0, 0, 1));
}

static void reading(void) {
  static const char *const keys[] = {"a", "b", "none"};
  static const size_t lengths[] = {1, 1, 4};
  struct told told = {0, 0};
  fabcache_item item;
  char buffer[3], *value;
  memset(buffer, '-', sizeof buffer);
  COMES_TO(FABCACHE_BUFFER_TOO_SMALL, fabcache_get(cache, "b", 1, buffer, 2, &item));
  CHECK(item.length == 3 && memcmp(buffer, "---", 3) == 0);
  COMES_TO(FABCACHE_OK, fabcache_get(cache, "b", 1, buffer, 3, NULL));
  CHECK(memcmp(buffer, "222", 3) == 0);
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_get(cache, "none", 4, buffer, 3, &item));
  COMES_TO(FABCACHE_OK, fabcache_get(cache, "empty", 5, NULL, 0, &item));
  CHECK(item.length == 0);
  COMES_TO(FABCACHE_OK, fabcache_get_and_touch(cache, "b", 1, 50, buffer, 3, &item));
  COMES_TO(FABCACHE_OK, fabcache_get_alloc(cache, "b", 1, &value, &item));
  CHECK(item.length == 3 && strcmp(value, "222") == 0);
  fabcache_free(value);
  COMES_TO(FABCACHE_OK, fabcache_get_and_touch_alloc(cache, "empty", 5, 50, &value, NULL));
  CHECK(strcmp(value, "") == 0);
  fabcache_free(value);
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_get_alloc(cache, "none", 4, &value, &item));
  CHECK(value == NULL);
  fabcache_free(value);
  COMES_TO(FABCACHE_OK, fabcache_get_many(cache, keys, lengths, 3, found, &told));
  CHECK(told.count == 2 && told.bytes == 4);
  COMES_TO(FABCACHE_OK, fabcache_get_many(cache, NULL, NULL, 0, found, &told));
  COMES_TO(FABCACHE_OK, fabcache_exists(cache, "a", 1));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_exists(cache, "none", 4));
  COMES_TO(BAD, fabcache_get(NULL, "a", 1, buffer, 3, &item));
  COMES_TO(BAD, fabcache_get(cache, "a", 1, NULL, 3, &item));
  COMES_TO(BAD, fabcache_get(cache, "a", BEYOND, buffer, 3, &item));
  COMES_TO(BAD, fabcache_get_and_touch(NULL, "a", 1, 0, buffer, 3, &item));
  COMES_TO(BAD, fabcache_get_alloc(NULL, "a", 1, &value, &item));
  COMES_TO(BAD, fabcache_get_alloc(cache, "a", 1, NULL, &item));
  COMES_TO(BAD, fabcache_get_and_touch_alloc(cache, NULL, 1, 0, &value, &item));
  COMES_TO(BAD, fabcache_get_many(NULL, keys, lengths, 3, found, &told));
  COMES_TO(BAD, fabcache_get_many(cache, NULL, lengths, 3, found, &told));
  COMES_TO(BAD, fabcache_get_many(cache, keys, NULL, 3, found, &told));
  COMES_TO(BAD, fabcache_get_many(cache, keys, lengths, 3, NULL, &told));
  COMES_TO(BAD, fabcache_exists(NULL, "a", 1));
}

static void changing(void) {
  uint64_t number = 1;
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_incr(cache, "n", 1, 1, &number));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_decr(cache, "n", 1, 1, &number));
  COMES_TO(FABCACHE_OK, fabcache_decr_or_set(cache, "n", 1, 1, 7, 0, &number));
  CHECK(number == 7);
  COMES_TO(FABCACHE_OK, fabcache_incr_or_set(cache, "n", 1, 3, 0, 0, &number));
  CHECK(number == 10);
  COMES_TO(FABCACHE_OK, fabcache_incr(cache, "n", 1, 5, NULL));
  COMES_TO(FABCACHE_OK, fabcache_decr(cache, "n", 1, 1, &number));
  CHECK(number == 14);
  COMES_TO(FABCACHE_REFUSED, fabcache_incr(cache, "empty", 5, 1, &number));
  COMES_TO(FABCACHE_OK, fabcache_touch(cache, "n", 1, 100));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_touch(cache, "none", 4, 100));
  COMES_TO(FABCACHE_OK, fabcache_delete(cache, "n", 1));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_delete(cache, "n", 1));
  COMES_TO(BAD, fabcache_incr(NULL, "n", 1, 1, &number));
  COMES_TO(BAD, fabcache_decr(cache, NULL, 1, 1, &number));
  COMES_TO(BAD, fabcache_incr_or_set(NULL, "n", 1, 1, 1, 0, &number));
  COMES_TO(BAD, fabcache_decr_or_set(NULL, "n", 1, 1, 1, 0, &number));
  COMES_TO(BAD, fabcache_touch(NULL, "n", 1, 1));
  COMES_TO(BAD, fabcache_delete(NULL, "n", 1));
}

static void servers(void) {
  struct told told = {0, 0};
  size_t server = 9;
  COMES_TO(FABCACHE_OK, fabcache_server_of(cache, "a", 1, &server));
  CHECK(server == 0);
  COMES_TO(FABCACHE_OK, fabcache_stats(cache, NULL, stat_told, &told));
  CHECK(told.count > 20);
  COMES_TO(FABCACHE_OK, fabcache_stats(cache, "settings", stat_told, &told));
  told.count = 0;
  COMES_TO(FABCACHE_OK, fabcache_versions(cache, version_told, &told));
  COMES_TO(FABCACHE_OK, fabcache_transports(cache, transport_told, &told));
  CHECK(told.count == 2);
  COMES_TO(FABCACHE_OK, fabcache_verbosity(cache, 0));
  COMES_TO(BAD, fabcache_server_of(NULL, "a", 1, &server));
  COMES_TO(BAD, fabcache_server_of(cache, "a", 1, NULL));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_server_of(cache, "", 0, &server));
  COMES_TO(BAD, fabcache_stats(NULL, NULL, stat_told, &told));
  COMES_TO(BAD, fabcache_stats(cache, "a\r\nb", stat_told, &told));
  COMES_TO(BAD, fabcache_stats(cache, NULL, NULL, &told));
  COMES_TO(BAD, fabcache_versions(NULL, version_told, &told));
  COMES_TO(BAD, fabcache_versions(cache, NULL, &told));
  COMES_TO(BAD, fabcache_transports(NULL, transport_told, &told));
  COMES_TO(BAD, fabcache_transports(cache, NULL, &told));
  COMES_TO(BAD, fabcache_verbosity(NULL, 0));
  COMES_TO(FABCACHE_OK, fabcache_flush(cache, 0));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_exists(cache, "a", 1));
  COMES_TO(BAD, fabcache_flush(NULL, 0));
}

static void requests(void) {
  fabcache_request *request = fabcache_request_new(cache);
  fabcache_item item;
  static char large[600000];
  char value[] = "value", buffer[5], small[1];
  const char *own;
  COMES_TO(FABCACHE_NOTHING_ASKED, fabcache_test(request));
  COMES_TO(FABCACHE_NOTHING_ASKED, fabcache_wait(request));
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_bset(request, "r", 1, value, 5, 0, 3));
  memset(value, '-', 5); /* It is ours again. */
  COMES_TO(BAD, fabcache_bset(request, "r", 1, value, 5, 0, 3));
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  CHECK(fabcache_request_value(request, &item) == NULL);
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_bget(request, "r", 1, buffer, 5));
  while (fabcache_test(request) == FABCACHE_IN_PROGRESS)
    ;
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  CHECK(memcmp(buffer, "value", 5) == 0);
  own = fabcache_request_value(request, &item);
  CHECK(own != NULL && item.length == 5 && item.flags == 3 && memcmp(own, "value", 5) == 0);
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset(request, "r", 1, "other", 5, 0, 4));
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget(request, "r", 1, small, 1));
  COMES_TO(FABCACHE_BUFFER_TOO_SMALL, fabcache_wait(request));
  own = fabcache_request_value(request, NULL);
  CHECK(own != NULL && memcmp(own, "other", 5) == 0);
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget(request, "none", 4, NULL, 0));
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_wait(request));
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget(request, "", 0, NULL, 0));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_wait(request));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_test(request));
  COMES_TO(BAD, fabcache_iset(NULL, "r", 1, value, 5, 0, 0));
  COMES_TO(BAD, fabcache_iset(request, "r", 1, NULL, 5, 0, 0));
  COMES_TO(BAD, fabcache_bset(NULL, "r", 1, value, 5, 0, 0));
  COMES_TO(BAD, fabcache_iget(NULL, "r", 1, buffer, 5));
  COMES_TO(BAD, fabcache_iget(request, "r", 1, NULL, 5));
  COMES_TO(BAD, fabcache_bget(NULL, "r", 1, buffer, 5));
  COMES_TO(BAD, fabcache_test(NULL));
  COMES_TO(BAD, fabcache_wait(NULL));
  CHECK(fabcache_request_new(NULL) == NULL && fabcache_request_value(NULL, &item) == NULL);
  memset(large, 'x', sizeof large);
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset(request, "large", 5, large, sizeof large, 0, 0));
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  memset(large, '-', sizeof large); /* It is ours again. */
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_bset(request, "large", 5, large, sizeof large, 0, 0));
  memset(large, ' ', sizeof large);
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget(request, "large", 5, large, sizeof large));
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  CHECK(large[0] == '-' && memcmp(large, large + 1, sizeof large - 1) == 0);
  /* In flight, it is freed all the same. */
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset(request, "r", 1, "again", 5, 0, 0));
  fabcache_request_free(request);
  fabcache_request_free(NULL);
}

static void put(fabcache_buffer *buffer, size_t length, char byte) {
  char *value = fabcache_buffer_resize(buffer, length);
  CHECK(value != NULL);
  memset(value, byte, length);
}

static int has(const fabcache_buffer *buffer, size_t length, char byte) {
  size_t found = BEYOND;
  const char *value = fabcache_buffer_value(buffer, &found);
  CHECK(value != NULL);
  return found == length && (length == 0 || (value[0] == byte && memcmp(value, value + 1, length - 1) == 0));
}

static void registered(void) {
  fabcache_buffer *buffer = fabcache_register(cache, 100000), *other = fabcache_register(cache, 0);
  fabcache_request *request = fabcache_request_new(cache);
  fabcache_item item;
  size_t lengths[] = {0, 1, 5000, 100000, 300000}, length, i;
  CHECK(buffer != NULL && other != NULL && has(buffer, 0, 0));
  for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    length = lengths[i];
    put(buffer, length, 'a');
    COMES_TO(FABCACHE_OK, fabcache_set_registered(cache, "b", 1, buffer, 0, 5));
    CHECK(has(buffer, length, 'a'));
    COMES_TO(FABCACHE_OK, fabcache_get_registered(cache, "b", 1, other, &item));
    CHECK(has(other, length, 'a') && item.length == length && item.flags == 5);
    put(buffer, length, 'c');
    COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset_registered(request, "b", 1, buffer, 0, 6));
    CHECK(fabcache_buffer_value(buffer, NULL) == NULL && fabcache_buffer_resize(buffer, 1) == NULL);
    COMES_TO(BAD, fabcache_set_registered(cache, "b", 1, buffer, 0, 5));
    COMES_TO(BAD, fabcache_iset_registered(request, "b", 1, other, 0, 5));
    CHECK(has(other, length, 'a'));
    COMES_TO(FABCACHE_OK, fabcache_wait(request));
    CHECK(has(buffer, length, 'c') && fabcache_request_value(request, &item) == NULL);
    COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget_registered(request, "b", 1, other));
    while (fabcache_test(request) == FABCACHE_IN_PROGRESS)
      CHECK(fabcache_buffer_value(other, NULL) == NULL);
    COMES_TO(FABCACHE_OK, fabcache_wait(request));
    CHECK(has(other, length, 'c'));
    CHECK(fabcache_request_value(request, &item) == fabcache_buffer_value(other, NULL));
    CHECK(item.length == length && item.flags == 6);
  }
  COMES_TO(FABCACHE_NOT_FOUND, fabcache_get_registered(cache, "none", 4, buffer, &item));
  CHECK(has(buffer, 0, 0));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_get_registered(cache, "", 0, buffer, &item));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_set_registered(cache, "", 0, buffer, 0, 0));
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset_registered(request, "", 0, buffer, 0, 0));
  COMES_TO(FABCACHE_BAD_KEY, fabcache_wait(request));
  COMES_TO(BAD, fabcache_get_registered(NULL, "b", 1, buffer, &item));
  COMES_TO(BAD, fabcache_get_registered(cache, "b", 1, NULL, &item));
  COMES_TO(BAD, fabcache_set_registered(NULL, "b", 1, buffer, 0, 0));
  COMES_TO(BAD, fabcache_set_registered(cache, "b", 1, NULL, 0, 0));
  COMES_TO(BAD, fabcache_iget_registered(NULL, "b", 1, buffer));
  COMES_TO(BAD, fabcache_iget_registered(request, "b", 1, NULL));
  COMES_TO(BAD, fabcache_iset_registered(NULL, "b", 1, buffer, 0, 0));
  COMES_TO(BAD, fabcache_iset_registered(request, "b", 1, NULL, 0, 0));
  CHECK(fabcache_register(NULL, 1) == NULL && fabcache_buffer_value(NULL, NULL) == NULL);
  CHECK(fabcache_buffer_resize(NULL, 1) == NULL && fabcache_buffer_resize(buffer, BEYOND) == NULL);
  /* With a request in flight that has the buffer, either is freed. */
  put(buffer, 100000, 'd');
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iset_registered(request, "b", 1, buffer, 0, 0));
  fabcache_request_free(request);
  CHECK(has(buffer, 100000, 'd'));
  request = fabcache_request_new(cache);
  COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget_registered(request, "b", 1, buffer));
  fabcache_buffer_free(buffer);
  COMES_TO(FABCACHE_OK, fabcache_wait(request));
  CHECK(memcmp(fabcache_request_value(request, &item), "dddd", 4) == 0 && item.length == 100000);
  fabcache_request_free(request);
  fabcache_buffer_free(other);
  fabcache_buffer_free(NULL);
}

int main(int argc, char **argv) {
  const char *address = argv[1];
  CHECK(argc == 2);
  CHECK(strcmp(fabcache_last_error(), "") == 0);
  CHECK(strcmp(fabcache_error_text(FABCACHE_NOT_FOUND), "not found") == 0 && fabcache_error_text(-7)[0] != '\0');
  CHECK(fabcache_version()[0] != '\0');
  options();
  COMES_TO(FABCACHE_OK, fabcache_open(&address, 1, NULL, &cache));
  COMES_TO(FABCACHE_OK, fabcache_flush(cache, 0));
  storing();
  reading();
  changing();
  requests();
  registered();
  servers();
  opening(address);
  fabcache_close(cache);
  puts("every function answers as it should");
  return EXIT_SUCCESS;
}
