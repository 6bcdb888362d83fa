/* Calls that do not wait: 32 requests are in flight at a time, first to store 10,000 values, then to read them.
 *
 *     cc window.c $(pkg-config --cflags --libs fabcache) -o window
 *     ./window unix:///tmp/fabcached.sock */

#include <fabcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 32
#define KEYS 10000

/* A request and the buffers that belong to its operation until that is over. */
struct slot {
  fabcache_request *request;
  char key[24];
  char value[64];
  unsigned long number;
};

static void fail(const char *what, fabcache_code code) {
  fprintf(stderr, "%s: %s (%s)\n", what, fabcache_error_text(code), fabcache_last_error());
  exit(EXIT_FAILURE);
}

static size_t value_of(unsigned long number, char *value) {
  return (size_t)sprintf(value, "value of %lu", number);
}

/* The operation is over when this returns: so many values of the last round were as they had been stored. */
static unsigned finish(struct slot *slot, int reads) {
  char wanted[64];
  fabcache_item item;
  fabcache_code code = fabcache_wait(slot->request);
  if (code == FABCACHE_NOT_FOUND)
    return 0; /* It was evicted. */
  if (code != FABCACHE_OK)
    fail(slot->key, code);
  if (!reads)
    return 1;
  if (fabcache_request_value(slot->request, &item) == NULL)
    fail(slot->key, FABCACHE_INTERNAL);
  return item.length == value_of(slot->number, wanted) && memcmp(wanted, slot->value, item.length) == 0;
}

/* Asks for all keys, and returns for how many that came to what it should. */
static unsigned long round_of(struct slot *slots, int reads) {
  unsigned long number, good = 0;
  for (number = 0; number < KEYS; number++) {
    struct slot *slot = &slots[number % WINDOW];
    fabcache_code code;
    size_t key_length;
    if (number >= WINDOW)
      good += finish(slot, reads);
    slot->number = number;
    key_length = (size_t)sprintf(slot->key, "key%lu", number);
    if (reads)
      code = fabcache_iget(slot->request, slot->key, key_length, slot->value, sizeof slot->value);
    else
      code = fabcache_iset(slot->request, slot->key, key_length, slot->value, value_of(number, slot->value), 0, 0);
    if (code != FABCACHE_IN_PROGRESS)
      fail(slot->key, code);
  }
  for (number = 0; number < WINDOW; number++)
    good += finish(&slots[number], reads);
  return good;
}

int main(int argc, char **argv) {
  static struct slot slots[WINDOW];
  fabcache *cache;
  fabcache_code code;
  unsigned long stored, found;
  int i;

  if (argc < 2) {
    fprintf(stderr, "usage: %s ADDRESS...\n", argv[0]);
    return EXIT_FAILURE;
  }
  code = fabcache_open((const char *const *)(argv + 1), (size_t)(argc - 1), NULL, &cache);
  if (code != FABCACHE_OK)
    fail("open", code);
  for (i = 0; i < WINDOW; i++)
    slots[i].request = fabcache_request_new(cache);

  stored = round_of(slots, 0);
  found = round_of(slots, 1);
  printf("%lu of %d values stored, %lu found as they were stored\n", stored, KEYS, found);

  for (i = 0; i < WINDOW; i++)
    fabcache_request_free(slots[i].request);
  fabcache_close(cache);
  return stored == KEYS && found == KEYS ? EXIT_SUCCESS : EXIT_FAILURE;
}
