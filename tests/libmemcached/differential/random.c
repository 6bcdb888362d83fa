/* Random sequences of calls over few keys, determined by a seed. */

#include "scenarios.h"
#include "servers.h"

enum { CALLS = 1500, KEYS = 8, TEXT_MAX = 96, BATCH_MAX = 6 };

static uint64_t state;
static bool binary, quiet, replicated;

/* SplitMix64. */
static uint64_t next(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static unsigned below(unsigned limit) {
  return (unsigned) (next() % limit);
}

static const char *const keys[KEYS] = {"a", "b", "key", "number", "another-number", "long-key-that-goes-on", "x", "y"};
static uint64_t last_cas[KEYS];

/* A value: numbers, short texts, texts with every byte, now and then a long one.

   No number starts with 0, and no text starts with what may stand before, in or after a number. So no sequence of
   stores makes a number that gets shorter when it is counted: memcached pads such a number if nothing else refers to
   the item, and that depends on its other threads. */
static char *any_value(size_t *length) {
  static char bytes[70000];
  switch (below(6)) {
  case 0:
  case 1:
    *length = (size_t) sprintf(bytes, "%llu", (unsigned long long) (next() >> below(64) | 1));
    return bytes;
  case 2:
    *length = 0;
    return bytes;
  case 3:
    *length = below(20) == 0 ? 20000 + below(50000) : below(2000);
    break;
  default:
    *length = below(40);
  }
  for (size_t n = 0; n < *length; n++)
    bytes[n] = (char) next();
  if ((unsigned char) bytes[0] <= '9')
    bytes[0] = (char) (bytes[0] | 0x80);
  return bytes;
}

static memcached_return_t store(memcached_st *memc, unsigned kind, unsigned key, const char *value, size_t length,
                                uint32_t flags) {
  const char *name = keys[key];
  size_t name_length = strlen(name);
  switch (kind) {
  case 0:
    return memcached_set(memc, name, name_length, value, length, 0, flags);
  case 1:
    return memcached_add(memc, name, name_length, value, length, 0, flags);
  case 2:
    return memcached_replace(memc, name, name_length, value, length, 0, flags);
  case 3:
    return memcached_append(memc, name, name_length, value, length, 0, flags);
  case 4:
    return memcached_prepend(memc, name, name_length, value, length, 0, flags);
  case 5:
    return memcached_cas(memc, name, name_length, value, length, 0, flags, last_cas[key]);
  default:
    return memcached_set_by_key(memc, S("group"), name, name_length, value, length, 0, flags);
  }
}

static void random_store(memcached_st *memc) {
  static const char *const kinds[] = {"memcached_set",     "memcached_add", "memcached_replace",   "memcached_append",
                                      "memcached_prepend", "memcached_cas", "memcached_set_by_key"};
  size_t length;
  unsigned kind = replicated ? 0 : below(COUNT(kinds)), key = below(KEYS);
  uint32_t flags = (uint32_t) next();
  char *value = any_value(&length), call[TEXT_MAX];
  snprintf(call, sizeof call, "%s(%s, %zu bytes)", kinds[kind], keys[key], length);
  trace_rc(memc, call, store(memc, kind, key, value, length, flags));
}

static void random_get(memcached_st *memc) {
  unsigned key = below(KEYS);
  size_t length = 0;
  uint32_t flags = 0;
  memcached_return_t rc = MEMCACHED_MAXIMUM_RETURN;
  char call[TEXT_MAX], *value;
  if (below(8)) {
    snprintf(call, sizeof call, "memcached_get(%s)", keys[key]);
    value = memcached_get(memc, keys[key], strlen(keys[key]), &length, &flags, &rc);
  } else {
    snprintf(call, sizeof call, "memcached_get_by_key(%s)", keys[key]);
    value = memcached_get_by_key(memc, S("group"), keys[key], strlen(keys[key]), &length, &flags, &rc);
  }
  trace_value(memc, call, value, length, flags, rc);
  free(value);
}

static int by_text(const void *first, const void *second) {
  return strcmp(*(char *const *) first, *(char *const *) second);
}

static unsigned key_number(const memcached_result_st *result) {
  for (unsigned n = 0; n < KEYS; n++)
    if (strlen(keys[n]) == memcached_result_key_length(result)
        && !memcmp(keys[n], memcached_result_key_value(result), strlen(keys[n])))
      return n;
  return KEYS;
}

static void random_mget(memcached_st *memc) {
  const char *names[BATCH_MAX];
  size_t lengths[BATCH_MAX];
  unsigned count = 1 + below(BATCH_MAX), start = below(KEYS), step = 1 + 2 * below(3), found = 0;
  char *lines[BATCH_MAX * 3], call[TEXT_MAX];
  for (unsigned n = 0; n < count; n++) {
    names[n] = keys[(start + n * step) % KEYS];
    lengths[n] = strlen(names[n]);
  }
  snprintf(call, sizeof call, "memcached_mget(%u of %s...)", count, names[0]);
  trace_rc(memc, call, memcached_mget(memc, names, lengths, count));
  memcached_return_t rc = MEMCACHED_SUCCESS;
  /* libmemcached may mistake one binary answer for another, unless all are fetched. */
  unsigned limit = below(10) || binary ? BATCH_MAX * 3 : 1;
  while (found < limit) {
    memcached_result_st *result = memcached_fetch_result(memc, NULL, &rc);
    if (!result)
      break;
    unsigned key = key_number(result);
    if (key < KEYS && limit > 1)
      last_cas[key] = memcached_result_cas(result) ? memcached_result_cas(result) : NO_TOKEN;
    char *value = quoted(memcached_result_value(result), memcached_result_length(result));
    lines[found] = malloc(TEXT_MAX + strlen(value));
    sprintf(lines[found++], "%u is %s, flags %u, cas %d", key, value, memcached_result_flags(result),
            memcached_result_cas(result) != 0);
    free(value);
    memcached_result_free(result);
  }
  qsort(lines, found, sizeof *lines, by_text);
  /* Which one of several comes first depends on the servers. */
  for (unsigned n = 0; n < found; n++) {
    if (limit > 1)
      trace_line("memcached_fetch_result", "%s", lines[n]);
    free(lines[n]);
  }
  if (limit > 1)
    trace_line("memcached_fetch_result", "%u; %s; %s", found, rc_name(rc), errors_of(memc));
}

static memcached_return_t count_one(memcached_st *memc, unsigned kind, unsigned key, uint64_t offset, uint64_t *value) {
  const char *name = keys[key];
  size_t length = strlen(name);
  switch (kind) {
  case 0:
    return memcached_increment(memc, name, length, (uint32_t) offset, value);
  case 1:
    return memcached_decrement(memc, name, length, (uint32_t) offset, value);
  case 2:
    return memcached_increment_with_initial(memc, name, length, offset, 100, 0, value);
  default:
    return memcached_decrement_with_initial(memc, name, length, offset, 100, 0, value);
  }
}

static void random_count(memcached_st *memc) {
  static const char *const kinds[] = {"memcached_increment", "memcached_decrement", "memcached_increment_with_initial",
                                      "memcached_decrement_with_initial"};
  unsigned kind = below(binary ? 4 : 2), key = below(KEYS);
  uint64_t value = 4711, offset = next() >> (32 + below(32));
  /* See any_value: a number that gets shorter is padded or not. */
  if (kind & 1)
    offset = 0;
  char call[TEXT_MAX];
  memcached_return_t rc = count_one(memc, kind, key, offset, &value);
  snprintf(call, sizeof call, "%s(%s, %llu)", kinds[kind], keys[key], (unsigned long long) offset);
  trace_line(call, "%s, %llu; %s", rc_name(rc), (unsigned long long) value, errors_of(memc));
}

static void random_other(memcached_st *memc) {
  unsigned key = below(KEYS);
  const char *name = keys[key];
  size_t length = strlen(name);
  char call[TEXT_MAX];
  /* After a get without replies to stores, libmemcached's text protocol leaves the end of the answer to the
     next call that reads; and unanswered requests may outlast a connection. */
  switch (below(quiet ? 4 : 12)) {
  case 0:
  case 1:
  case 2:
    snprintf(call, sizeof call, "memcached_delete(%s)", name);
    trace_rc(memc, call, memcached_delete(memc, name, length, 0));
    break;
  case 3:
    snprintf(call, sizeof call, "memcached_delete_by_key(%s)", name);
    trace_rc(memc, call, memcached_delete_by_key(memc, S("group"), name, length, 0));
    break;
  case 4:
  case 5:
    snprintf(call, sizeof call, "memcached_exist(%s)", name);
    trace_rc(memc, call, memcached_exist(memc, name, length));
    break;
  case 6:
  case 7:
    snprintf(call, sizeof call, "memcached_touch(%s)", name);
    trace_rc(memc, call, memcached_touch(memc, name, length, below(3) ? 1000 : 0));
    break;
  case 8:
    RC(memc, memcached_flush_buffers(memc));
    break;
  case 9:
    if (below(4) == 0)
      RC(memc, memcached_flush(memc, 0));
    break;
  case 10:
    RC(memc, memcached_version(memc));
    break;
  default:
    if (below(3) == 0)
      NOTHING(memcached_quit(memc));
  }
}

static void sequence(memcached_st *memc, unsigned number) {
  const char *seed = getenv("SEED");
  binary = memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL);
  quiet = memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_NOREPLY);
  replicated = memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS) > 0;
  state = (seed ? strtoull(seed, NULL, 10) : 1) * 1000 + number;
  for (unsigned n = 0; n < KEYS; n++)
    last_cas[n] = NO_TOKEN;
  for (unsigned n = 0; n < CALLS; n++) {
    /* libmemcached mistakes a replica's error for the answer to another call, so these stores succeed. */
    unsigned kind = below(replicated ? 72 : 100);
    if (kind < 35)
      random_store(memc);
    else if (kind < 60)
      random_get(memc);
    else if (kind < 72)
      random_mget(memc);
    else if (kind < 85)
      random_count(memc);
    else
      random_other(memc);
  }
  memcached_free(memc);
}

void random_text(void) {
  memcached_st *memc = handle_on(1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  sequence(memc, 1);
}

void random_binary(void) {
  memcached_st *memc = handle_binary(1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  sequence(memc, 2);
}

void random_unbuffered(void) {
  memcached_st *memc = handle_with(3, MEMCACHED_BEHAVIOR_TCP_NODELAY);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_VERIFY_KEY, 1);
  sequence(memc, 3);
}

void random_noreply(void) {
  memcached_st *memc = handle_with(2, MEMCACHED_BEHAVIOR_NOREPLY);
  sequence(memc, 4);
}

void random_buffered(void) {
  memcached_st *memc = handle_with(2, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
  sequence(memc, 5);
}

void random_consistent(void) {
  memcached_st *memc = handle_with(3, MEMCACHED_BEHAVIOR_SUPPORT_CAS);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, MEMCACHED_DISTRIBUTION_CONSISTENT);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_HASH, MEMCACHED_HASH_MD5);
  sequence(memc, 6);
}

void random_ketama(void) {
  memcached_st *memc = handle_binary(3);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
  sequence(memc, 7);
}

void random_namespace(void) {
  memcached_st *memc = handle_with(2, MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  memcached_callback_set(memc, MEMCACHED_CALLBACK_NAMESPACE, "name:");
  sequence(memc, 8);
}

void random_replicas(void) {
  memcached_st *memc = handle_binary(3);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1);
  sequence(memc, 9);
}

void random_noblock(void) {
  memcached_st *memc = handle_with(2, MEMCACHED_BEHAVIOR_NO_BLOCK);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_CORK, 1);
  sequence(memc, 10);
}
