/* Hashes, libhashkit, and the servers that keys go to. */

#include "scenarios.h"
#include "servers.h"

static const struct {
  const char *text;
  size_t length;
} samples[] = {
    {S("")},     {S("a")},   {S("key")},           {S("a longer key with spaces")},
    {S("1234")}, {S("12345")}, {S("\xff\xfe\x80\0z")}, {S("http://example.org/a/rather/long/path?with=a&query=string")},
};

void hashes(void) {
  for (unsigned n = 0; n < COUNT(samples); n++) {
    const char *text = samples[n].text;
    size_t length = samples[n].length;
    for (unsigned hash = 0; hash <= MEMCACHED_HASH_MAX; hash++) {
      NUMBER(memcached_generate_hash_value(text, length, hash));
      NUMBER(libhashkit_digest(text, length, hash));
    }
    NUMBER(libhashkit_one_at_a_time(text, length));
    NUMBER(libhashkit_fnv1_64(text, length));
    NUMBER(libhashkit_fnv1a_64(text, length));
    NUMBER(libhashkit_fnv1_32(text, length));
    NUMBER(libhashkit_fnv1a_32(text, length));
    NUMBER(libhashkit_crc32(text, length));
    NUMBER(libhashkit_hsieh(text, length));
    NUMBER(libhashkit_murmur(text, length));
    NUMBER(libhashkit_murmur3(text, length));
    NUMBER(libhashkit_jenkins(text, length));
    NUMBER(libhashkit_md5(text, length));
    unsigned char signature[16] = "";
    libhashkit_md5_signature((const unsigned char *) text, length, signature);
    char *quote = quoted((const char *) signature, sizeof signature);
    trace_line("libhashkit_md5_signature", "%s", quote);
    free(quote);
  }
  for (unsigned hash = 0; hash <= HASHKIT_HASH_MAX; hash++) {
    NUMBER(libhashkit_has_algorithm(hash));
    TEXT(libhashkit_string_hash(hash));
  }
  for (unsigned rc = 0; rc <= HASHKIT_MAXIMUM_RETURN; rc++)
    IN_CHILD(TEXT(hashkit_strerror(NULL, rc)));
}

static uint32_t by_length(const char *key, size_t length, void *context) {
  (void) key;
  return (uint32_t) length * *(uint32_t *) context;
}

void hashkit(void) {
  hashkit_st memory;
  uint32_t factor = 7;
  hashkit_st *made[] = {hashkit_create(NULL), hashkit_create(&memory)};
  for (unsigned n = 0; n < COUNT(made); n++) {
    hashkit_st *kit = made[n];
    if (!trace_pointer("hashkit_create", kit))
      continue;
    NUMBER(hashkit_digest(kit, S("key")));
    NUMBER(hashkit_get_function(kit));
    NUMBER(hashkit_get_distribution_function(kit));
    for (unsigned hash = 0; hash <= HASHKIT_HASH_MAX; hash++) {
      NUMBER(hashkit_set_function(kit, hash));
      NUMBER(hashkit_get_function(kit));
      NUMBER(hashkit_digest(kit, S("key")));
      NUMBER(hashkit_set_distribution_function(kit, hash));
      NUMBER(hashkit_get_distribution_function(kit));
    }
    NUMBER(hashkit_set_custom_function(kit, by_length, &factor));
    NUMBER(hashkit_get_function(kit));
    NUMBER(hashkit_digest(kit, S("key")));
    NUMBER(hashkit_set_custom_distribution_function(kit, by_length, &factor));
    NUMBER(hashkit_get_distribution_function(kit));
    NUMBER(hashkit_set_custom_function(kit, NULL, NULL));
    hashkit_st *copy = hashkit_clone(NULL, kit);
    NUMBER(hashkit_compare(copy, kit));
    NUMBER(hashkit_set_function(copy, HASHKIT_HASH_MD5));
    NUMBER(hashkit_compare(copy, kit));
    NOTHING(hashkit_free(copy));
    NOTHING(hashkit_free(kit));
  }
  IN_CHILD(NUMBER(hashkit_digest(NULL, S("key"))));
  IN_CHILD(POINTER(hashkit_clone(NULL, NULL)));
  IN_CHILD(NUMBER(hashkit_compare(NULL, NULL)));
  memcached_st *memc = handle_on(3);
  const hashkit_st *kit = memcached_get_hashkit(memc);
  trace_pointer("memcached_get_hashkit(memc)", kit);
  hashkit_st *own = hashkit_create(NULL);
  hashkit_set_function(own, HASHKIT_HASH_CRC);
  RC(memc, memcached_set_hashkit(memc, own));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_HASH));
  NUMBER(memcached_generate_hash(memc, S("key")));
  hashkit_set_custom_function(own, by_length, &factor);
  RC(memc, memcached_set_hashkit(memc, own));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_HASH));
  NUMBER(memcached_generate_hash(memc, S("key")));
  NUMBER(memcached_generate_hash(memc, S("a key")));
  RC(memc, memcached_set(memc, S("key"), S("value"), 0, 0));
  RC(memc, memcached_set_hashkit(memc, NULL));
  hashkit_free(own);
  memcached_free(memc);
}

void hashkit_keys(void) {
  hashkit_st *kit = hashkit_create(NULL);
  IN_CHILD(POINTER(hashkit_encrypt(kit, S("no key yet"))));
  NUMBER(hashkit_key(kit, S("secret")));
  for (unsigned n = 0; n < COUNT(samples); n++) {
    hashkit_string_st *secret = hashkit_encrypt(kit, samples[n].text, samples[n].length);
    if (!POINTER(secret))
      continue;
    char *quote = quoted(hashkit_string_c_str(secret), hashkit_string_length(secret));
    trace_line("hashkit_encrypt", "%zu: %s", hashkit_string_length(secret), quote);
    free(quote);
    hashkit_string_st *plain = hashkit_decrypt(kit, hashkit_string_c_str(secret), hashkit_string_length(secret));
    if (POINTER(plain)) {
      quote = quoted(hashkit_string_c_str(plain), hashkit_string_length(plain));
      trace_line("hashkit_decrypt", "%zu: %s", hashkit_string_length(plain), quote);
      free(quote);
      NOTHING(hashkit_string_free(plain));
    }
    NOTHING(hashkit_string_free(secret));
  }
  IN_CHILD(POINTER(hashkit_decrypt(kit, S("nonsense"))));
  IN_CHILD(NOTHING(hashkit_string_free(NULL)));
  IN_CHILD(NUMBER(hashkit_string_length(NULL)));
  IN_CHILD(TEXT(hashkit_string_c_str(NULL)));
  hashkit_free(kit);
}

/* Every distribution with every hash, weighted and not. */
void distributions(void) {
  for (unsigned type = 0; type < MEMCACHED_DISTRIBUTION_CONSISTENT_MAX; type++) {
    if (type == MEMCACHED_DISTRIBUTION_RANDOM || type == MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET)
      continue;
    for (unsigned hash = 0; hash < MEMCACHED_HASH_CUSTOM; hash++)
      for (unsigned weighted = 0; weighted < 2; weighted++) {
        memcached_st *memc = handle_on(0);
        memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, type);
        if (weighted)
          memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
        memcached_behavior_set_key_hash(memc, hash);
        char where[32] = "", call[96];
        for (unsigned n = 0; n < SERVERS_MAX; n++)
          add_server_with_weight(memc, n, weighted ? n + 1 : 1);
        for (unsigned n = 0; n < 24; n++) {
          char key[16];
          size_t length = (size_t) snprintf(key, sizeof key, "key-%u", n);
          where[n] = (char) ('0' + memcached_generate_hash(memc, key, length));
        }
        snprintf(call, sizeof call, "memcached_generate_hash(distribution %u, hash %u, weighted %u)", type, hash,
                 weighted);
        trace_line(call, "%s", where);
        memcached_free(memc);
      }
  }
}
