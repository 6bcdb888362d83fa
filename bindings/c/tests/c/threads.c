/* Eight threads share a client: each sees its own values and its own errors, and none takes another's; counters that all of them
 * change lose nothing. */

#include "check.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 250
#define WINDOW 8

static fabcache *cache;

static void blocking(unsigned long thread, unsigned long round) {
  char key[40], value[40], wrong[40], *read;
  fabcache_item item;
  size_t key_length = (size_t)sprintf(key, "key %lu of %lu", round, thread);
  size_t length = (size_t)sprintf(value, "value %lu of %lu", round, thread);
  COMES_TO(FABCACHE_OK, fabcache_set(cache, key, key_length, value, length, 0, (uint32_t)thread));
  COMES_TO(FABCACHE_OK, fabcache_get_alloc(cache, key, key_length, &read, &item));
  CHECK(item.flags == thread && strcmp(read, value) == 0);
  fabcache_free(read);
  COMES_TO(FABCACHE_OK, fabcache_incr_or_set(cache, "count", 5, 1, 1, 0, NULL));
  /* An error is told to the thread that made it, and to no other. */
  memset(wrong, 'x', sizeof wrong);
  COMES_TO(FABCACHE_BAD_KEY, fabcache_delete(cache, wrong, 0));
  CHECK(strcmp(fabcache_last_error(), "a key has 1 to 250 bytes, not 0") == 0);
  sprintf(wrong, "topic\n%lu", thread);
  COMES_TO(FABCACHE_INVALID_ARGUMENT, fabcache_stats(cache, wrong, NULL, NULL));
  CHECK(strcmp(fabcache_last_error(), "stat is NULL") == 0);
}

static void window(fabcache_request **requests, unsigned long thread, unsigned long round) {
  char keys[WINDOW][40], values[WINDOW][40], buffers[WINDOW][40];
  fabcache_item item;
  int i;
  for (i = 0; i < WINDOW; i++) {
    sprintf(keys[i], "request %d of %lu", i, thread);
    sprintf(values[i], "value %lu.%d of %lu", round, i, thread);
    COMES_TO(FABCACHE_IN_PROGRESS,
             fabcache_iset(requests[i], keys[i], strlen(keys[i]), values[i], strlen(values[i]), 0, 0));
  }
  for (i = 0; i < WINDOW; i++)
    COMES_TO(FABCACHE_OK, fabcache_wait(requests[i]));
  for (i = 0; i < WINDOW; i++)
    COMES_TO(FABCACHE_IN_PROGRESS, fabcache_iget(requests[i], keys[i], strlen(keys[i]), buffers[i], sizeof buffers[i]));
  for (i = WINDOW - 1; i >= 0; i--) {
    while (fabcache_test(requests[i]) == FABCACHE_IN_PROGRESS)
      ;
    COMES_TO(FABCACHE_OK, fabcache_wait(requests[i]));
    CHECK(fabcache_request_value(requests[i], &item) != NULL);
    CHECK(item.length == strlen(values[i]) && memcmp(buffers[i], values[i], item.length) == 0);
  }
}

static void *run(void *number) {
  unsigned long thread = *(unsigned long *)number, round;
  fabcache_request *requests[WINDOW];
  int i;
  for (i = 0; i < WINDOW; i++)
    requests[i] = fabcache_request_new(cache);
  for (round = 0; round < ROUNDS; round++) {
    blocking(thread, round);
    window(requests, thread, round);
  }
  for (i = 0; i < WINDOW; i++)
    fabcache_request_free(requests[i]);
  return NULL;
}

int main(int argc, char **argv) {
  const char *address = argv[1];
  pthread_t threads[THREADS];
  unsigned long numbers[THREADS];
  uint64_t count;
  int i;
  CHECK(argc == 2);
  COMES_TO(FABCACHE_OK, fabcache_open(&address, 1, NULL, &cache));
  COMES_TO(FABCACHE_OK, fabcache_flush(cache, 0));
  for (i = 0; i < THREADS; i++) {
    numbers[i] = (unsigned long)i;
    CHECK(pthread_create(&threads[i], NULL, run, &numbers[i]) == 0);
  }
  for (i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  COMES_TO(FABCACHE_OK, fabcache_decr(cache, "count", 5, 0, &count));
  CHECK(count == THREADS * ROUNDS);
  fabcache_close(cache);
  puts("eight threads shared a client");
  return EXIT_SUCCESS;
}
