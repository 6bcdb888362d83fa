/* libmemcached's hashes, with their names in crates/distribution/tests. */
#ifndef HASHES_H
#define HASHES_H

#include <libhashkit-1.0/hashkit.h>
#include <libmemcached/memcached.h>
#include <stdbool.h>

static const struct hash {
    const char *name;
    memcached_hash_t hash;
} HASHES[] = {
    {"default", MEMCACHED_HASH_DEFAULT},   {"md5", MEMCACHED_HASH_MD5},
    {"crc", MEMCACHED_HASH_CRC},           {"fnv1_64", MEMCACHED_HASH_FNV1_64},
    {"fnv1a_64", MEMCACHED_HASH_FNV1A_64}, {"fnv1_32", MEMCACHED_HASH_FNV1_32},
    {"fnv1a_32", MEMCACHED_HASH_FNV1A_32}, {"hsieh", MEMCACHED_HASH_HSIEH},
    {"murmur", MEMCACHED_HASH_MURMUR},     {"jenkins", MEMCACHED_HASH_JENKINS},
    {"murmur3", MEMCACHED_HASH_MURMUR3},
};

enum { HASHES_COUNT = sizeof HASHES / sizeof *HASHES };

/* Some are optional when the library is built. */
static bool is_there(const struct hash *hash) {
    return libhashkit_has_algorithm((hashkit_hash_algorithm_t)hash->hash);
}

#endif
