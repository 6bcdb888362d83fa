// Prints libmemcached's names: codes, behaviors, distributions, hashes, its release.
#include <libmemcached-1.0/memcached.h>
#include <libhashkit-1.0/hashkit.h>

#include <stdio.h>

int main(void) {
  // A few more than exist, on both sides.
  for (int i = -1; i < MEMCACHED_MAXIMUM_RETURN + 2; i++) {
    printf("memcached_strerror %d %s\n", i, memcached_strerror(NULL, (memcached_return_t)i));
  }
  for (int i = -1; i < MEMCACHED_BEHAVIOR_MAX + 2; i++) {
    printf("libmemcached_string_behavior %d %s\n", i, libmemcached_string_behavior((memcached_behavior_t)i));
  }
  for (int i = -1; i < MEMCACHED_DISTRIBUTION_CONSISTENT_MAX + 2; i++) {
    printf("libmemcached_string_distribution %d %s\n", i,
           libmemcached_string_distribution((memcached_server_distribution_t)i));
  }
  for (int i = -1; i < MEMCACHED_HASH_MAX + 2; i++) {
    printf("libmemcached_string_hash %d %s\n", i, libmemcached_string_hash((memcached_hash_t)i));
    printf("libhashkit_string_hash %d %s\n", i, libhashkit_string_hash((hashkit_hash_algorithm_t)i));
  }
  for (int i = -1; i < HASHKIT_MAXIMUM_RETURN + 2; i++) {
    printf("hashkit_strerror %d %s\n", i, hashkit_strerror(NULL, (hashkit_return_t)i));
  }
  printf("memcached_lib_version %s\n", memcached_lib_version());
  return 0;
}
