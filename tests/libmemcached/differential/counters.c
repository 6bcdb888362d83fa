/* Arithmetic, touch, exist, delete, flush, dump. */

#include "scenarios.h"
#include "servers.h"

static void counted(const memcached_st *memc, const char *call, memcached_return_t rc, uint64_t value) {
  trace_line(call, "%s, %llu; %s", rc_name(rc), (unsigned long long) value, errors_of(memc));
}

#define COUNTED(call)                                                                                            \
  do {                                                                                                           \
    uint64_t value = 4711;                                                                                       \
    memcached_return_t rc = (call);                                                                              \
    counted(memc, #call, rc, value);                                                                             \
  } while (0)

static void arithmetic(memcached_st *memc) {
  COUNTED(memcached_increment(memc, S("absent"), 1, &value));
  COUNTED(memcached_decrement(memc, S("absent"), 1, &value));
  RC(memc, memcached_set(memc, S("number"), S("10"), 0, 3));
  COUNTED(memcached_increment(memc, S("number"), 5, &value));
  COUNTED(memcached_increment(memc, S("number"), 0, &value));
  COUNTED(memcached_decrement(memc, S("number"), 6, &value));
  peek(0, "number");
  COUNTED(memcached_decrement(memc, S("number"), 1000, &value));
  COUNTED(memcached_increment(memc, S("number"), 0xffffffff, &value));
  /* Overflow. memcached rejects a number of 2^63 and more if a `-` follows it, in memory that is not its own. */
  RC(memc, memcached_set(memc, S("number"), S("1"), 0, 0));
  COUNTED(memcached_increment_by_key(memc, S("number"), S("number"), 18446744073709551615ULL, &value));
  COUNTED(memcached_increment(memc, S("number"), 7, &value));
}

static void without_value(memcached_st *memc) {
  IN_CHILD(RC(memc, memcached_increment(memc, S("number"), 7, NULL)));
  memcached_free(memc);
}

void arithmetic_text(void) {
  memcached_st *memc = handle_on(1);
  arithmetic(memc);
  COUNTED(memcached_increment_with_initial(memc, S("initial"), 5, 77, 0, &value));
  COUNTED(memcached_decrement_with_initial(memc, S("initial"), 5, 77, 0, &value));
  COUNTED(memcached_increment_with_initial(memc, S("number"), 5, 77, 0, &value));
  COUNTED(memcached_increment_with_initial_by_key(memc, S("group"), S("initial"), 5, 77, 0, &value));
  COUNTED(memcached_decrement_with_initial_by_key(memc, S("group"), S("initial"), 5, 77, 0, &value));
  memcached_free(memc);
  without_value(handle_on(1));
  /* Values that are not numbers, each on its own connection. */
  memc = handle_on(1);
  RC(memc, memcached_set(memc, S("text"), S("text"), 0, 0));
  COUNTED(memcached_increment(memc, S("text"), 1, &value));
  memcached_free(memc);
  memc = handle_on(1);
  COUNTED(memcached_decrement(memc, S("text"), 1, &value));
  memcached_free(memc);
}

void arithmetic_binary(void) {
  memcached_st *memc = handle_binary(1);
  arithmetic(memc);
  COUNTED(memcached_increment_with_initial(memc, S("initial"), 5, 77, 0, &value));
  COUNTED(memcached_increment_with_initial(memc, S("initial"), 5, 77, 0, &value));
  COUNTED(memcached_decrement_with_initial(memc, S("initial"), 2, 77, 0, &value));
  COUNTED(memcached_decrement_with_initial(memc, S("down"), 2, 88, 0, &value));
  COUNTED(memcached_increment_with_initial(memc, S("not"), 2, 88, MEMCACHED_EXPIRATION_NOT_ADD, &value));
  COUNTED(memcached_increment_with_initial_by_key(memc, S("group"), S("keyed"), 5, 77, 0, &value));
  COUNTED(memcached_increment_with_initial_by_key(memc, S("group"), S("keyed"), 5, 77, 0, &value));
  COUNTED(memcached_decrement_with_initial_by_key(memc, S("group"), S("keyed"), 1, 77, 0, &value));
  RC(memc, memcached_set(memc, S("text"), S("text"), 0, 0));
  COUNTED(memcached_increment(memc, S("text"), 1, &value));
  COUNTED(memcached_decrement_with_initial(memc, S("text"), 1, 2, 0, &value));
  RC(memc, memcached_exist(memc, S("text")));
  memcached_free(memc);
  without_value(handle_binary(1));
}

void arithmetic_by_key(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    RC(memc, memcached_set_by_key(memc, S("group"), S("number"), S("10"), 0, 0));
    COUNTED(memcached_increment_by_key(memc, S("group"), S("number"), 5000000000ULL, &value));
    COUNTED(memcached_decrement_by_key(memc, S("group"), S("number"), 3000000000ULL, &value));
    COUNTED(memcached_increment_by_key(memc, S("other"), S("number"), 1, &value));
    COUNTED(memcached_decrement_by_key(memc, S("third"), S("number"), 1, &value));
    COUNTED(memcached_decrement_by_key(memc, S(""), S("number"), 1, &value));
    memcached_free(memc);
  }
}

static void touch(memcached_st *memc) {
  RC(memc, memcached_touch(memc, S("absent"), 100));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_touch(memc, S("key"), 100));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, memcached_touch(memc, S("key"), 0));
  RC(memc, memcached_touch_by_key(memc, S("group"), S("key"), 100));
  RC(memc, memcached_touch_by_key(memc, S("group"), S("absent"), 100));
  RC(memc, memcached_touch(memc, S("key"), -1));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, memcached_touch(memc, S(""), 100));
}

void touch_text(void) {
  memcached_st *memc = handle_on(1);
  touch(memc);
  memcached_free(memc);
}

void touch_binary(void) {
  memcached_st *memc = handle_binary(1);
  touch(memc);
  memcached_free(memc);
}

static void exist(memcached_st *memc) {
  RC(memc, memcached_exist(memc, S("absent")));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_exist(memc, S("key")));
  peek(0, "key");
  peek(0, "absent");
  RC(memc, memcached_exist_by_key(memc, S("group"), S("key")));
  RC(memc, memcached_exist_by_key(memc, S("group"), S("absent")));
  RC(memc, memcached_exist_by_key(memc, S(""), S("key")));
  RC(memc, memcached_exist(memc, S("")));
}

void exist_text(void) {
  memcached_st *memc = handle_on(1);
  exist(memc);
  memcached_free(memc);
}

void exist_binary(void) {
  memcached_st *memc = handle_binary(1);
  exist(memc);
  memcached_free(memc);
}

static void delete(memcached_st *memc) {
  RC(memc, memcached_delete(memc, S("absent"), 0));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_delete(memc, S("key"), 0));
  RC(memc, memcached_exist(memc, S("key")));
  RC(memc, memcached_delete(memc, S("key"), 0));
  RC(memc, memcached_set_by_key(memc, S("group"), S("key"), S("value"), 0, 0));
  RC(memc, memcached_delete_by_key(memc, S("group"), S("key"), 0));
  RC(memc, memcached_delete_by_key(memc, S("group"), S("key"), 0));
  RC(memc, memcached_delete(memc, S(""), 0));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_delete(memc, S("key"), 100));
  RC(memc, memcached_delete_by_key(memc, S("group"), S("key"), 100));
  RC(memc, memcached_exist(memc, S("key")));
}

void delete_text(void) {
  memcached_st *memc = handle_on(1);
  delete (memc);
  memcached_free(memc);
}

void delete_binary(void) {
  memcached_st *memc = handle_binary(1);
  delete (memc);
  memcached_free(memc);
}

void flush(void) {
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(3) : handle_on(3);
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    for (unsigned n = 0; n < COUNT(names); n++)
      RC(memc, memcached_set(memc, names[n], 1, S("value"), 0, 0));
    RC(memc, memcached_flush(memc, 0));
    for (unsigned n = 0; n < COUNT(names); n++)
      RC(memc, memcached_exist(memc, names[n], 1));
    for (unsigned n = 0; n < COUNT(names); n++)
      RC(memc, memcached_set(memc, names[n], 1, S("value"), 0, 0));
    RC(memc, memcached_flush(memc, 1000));
    for (unsigned n = 0; n < COUNT(names); n++)
      RC(memc, memcached_exist(memc, names[n], 1));
    /* Cancels the delayed flush. */
    RC(memc, memcached_flush(memc, 0));
    memcached_free(memc);
  }
}

static memcached_return_t count_key(const memcached_st *memc, const char *key, size_t length, void *counter) {
  (void) memc;
  *(unsigned *) counter += length > 0 && key != NULL;
  return MEMCACHED_SUCCESS;
}

/* The keys of a dump depend on the servers; its end and return code depend on the library. */
void dump(void) {
  memcached_dump_fn callbacks[] = {count_key};
  for (int binary = 0; binary < 2; binary++) {
    memcached_st *memc = binary ? handle_binary(2) : handle_on(2);
    unsigned count = 0;
    RC(memc, memcached_dump(memc, callbacks, &count, 1));
    for (char key = 'a'; key < 'k'; key++)
      RC(memc, memcached_set(memc, &key, 1, S("value"), 0, 0));
    RC(memc, memcached_dump(memc, callbacks, &count, 1));
    RC(memc, memcached_dump(memc, NULL, &count, 0));
    RC(memc, memcached_exist(memc, S("a")));
    memcached_free(memc);
  }
  memcached_st *memc = handle_on(0);
  unsigned count = 0;
  RC(memc, memcached_dump(memc, callbacks, &count, 1));
  memcached_free(memc);
}
