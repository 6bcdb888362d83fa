/* Prints libmemcached's hashes of bytes: a line for each hash, for crates/client/tests/hashes.txt. Build and run:
 *   cc -O2 -Wall -Wextra -o hashes hashes.c -lmemcached -lhashkit && ./hashes
 */
#include <libhashkit-1.0/hashkit.h>
#include <libmemcached/memcached.h>
#include <stdio.h>

enum { LENGTH_MAX = 70 };

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

int main(void) {
    for (size_t i = 0; i < sizeof HASHES / sizeof *HASHES; i++) {
        if (!libhashkit_has_algorithm((hashkit_hash_algorithm_t)HASHES[i].hash)) {
            printf("# %s is not in this library.\n", HASHES[i].name);
            continue;
        }
        printf("%s", HASHES[i].name);
        for (int length = 0; length <= LENGTH_MAX; length++) {
            char bytes[LENGTH_MAX];
            /* Each length has ASCII alone and all bytes. */
            for (int mask = 0x7f; mask <= 0xff; mask += 0x80) {
                for (int j = 0; j < length; j++) bytes[j] = (char)((length * 37 + j * 151) & mask);
                printf(" %08x", memcached_generate_hash_value(bytes, (size_t)length, HASHES[i].hash));
            }
        }
        printf("\n");
    }
    return 0;
}
