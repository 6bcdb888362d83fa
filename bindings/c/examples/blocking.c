/* Calls that block: what is stored is read again, as often as nobody else changes it meanwhile.
 *
 *     cc blocking.c $(pkg-config --cflags --libs fabcache) -o blocking
 *     ./blocking unix:///tmp/fabcached.sock */

#include <fabcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program where a call failed: the code says what kind of failure it is, the last error what it was. */
static void must(fabcache_code code, const char *what) {
  if (code != FABCACHE_OK) {
    fprintf(stderr, "%s: %s", what, fabcache_error_text(code));
    if (code >= FABCACHE_INVALID_ARGUMENT)
      fprintf(stderr, " (%s)", fabcache_last_error());
    fputc('\n', stderr);
    exit(EXIT_FAILURE);
  }
}

static void print_found(void *context, size_t key, const void *value, const fabcache_item *item) {
  const char *const *keys = context;
  printf("%s = %.*s\n", keys[key], (int)item->length, (const char *)value);
}

static void print_transport(void *context, const char *server, int transport, const char *why) {
  static const char *const names[] = {"not at all yet", "TCP", "a Unix socket", "shared memory", "the fabric"};
  (void)context;
  printf("%s is reached over %s", server, names[transport]);
  if (why != NULL)
    printf(" (not as asked for: %s)", why);
  putchar('\n');
}

/* Puts "!" behind a value, unless another program changes it between the get and the cas: then once more. */
static void exclaim(fabcache *cache, const char *key) {
  for (;;) {
    char value[64];
    fabcache_item item;
    fabcache_code code;
    must(fabcache_get(cache, key, strlen(key), value, sizeof value - 1, &item), "get");
    value[item.length] = '!';
    code = fabcache_cas(cache, key, strlen(key), value, item.length + 1, 0, item.flags, item.cas);
    if (code != FABCACHE_EXISTS) {
      must(code, "cas");
      return;
    }
  }
}

int main(int argc, char **argv) {
  static const char *const keys[] = {"greeting", "nobody", "count"};
  static const size_t lengths[] = {8, 6, 5};
  fabcache *cache;
  char *value;
  uint64_t count;

  if (argc < 2) {
    fprintf(stderr, "usage: %s ADDRESS...\n", argv[0]);
    return EXIT_FAILURE;
  }
  must(fabcache_open((const char *const *)(argv + 1), (size_t)(argc - 1), NULL, &cache), "open");

  must(fabcache_set(cache, "greeting", 8, "hello", 5, 60, 0), "set");
  exclaim(cache, "greeting");
  must(fabcache_get_alloc(cache, "greeting", 8, &value, NULL), "get");
  printf("the greeting is %s\n", value);
  fabcache_free(value);

  must(fabcache_incr_or_set(cache, "count", 5, 1, 1, 0, &count), "incr");
  printf("run %lu times\n", (unsigned long)count);

  if (fabcache_delete(cache, "nobody", 6) != FABCACHE_NOT_FOUND)
    fprintf(stderr, "nobody was there\n");
  must(fabcache_get_many(cache, keys, lengths, 3, print_found, (void *)keys), "get_many");
  must(fabcache_transports(cache, print_transport, NULL), "transports");

  fabcache_close(cache);
  return EXIT_SUCCESS;
}
