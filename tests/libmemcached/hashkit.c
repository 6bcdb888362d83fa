// Prints the results of libhashkit's calls with valid and invalid arguments, without encryption.
#include <libhashkit-1.0/hashkit.h>

#include <stdio.h>
#include <string.h>

static uint32_t own(const char *key, size_t length, void *context) {
  return (uint32_t)(key[0] + length) + *(uint32_t *)context;
}

static void print_kit(const char *what, const hashkit_st *kit) {
  printf("%s: base %d distribution %d same %d allocated %d digest %u\n", what, hashkit_get_function(kit),
         hashkit_get_distribution_function(kit), kit->flags.is_base_same_distributed, kit->options.is_allocated,
         hashkit_digest(kit, "abc", 3));
}

static void print_hashes(const char *key) {
  size_t length = strlen(key);
  // Only text is recorded.
  const char *name = (signed char)key[0] < 0 ? "bytes above 127" : key;
  for (int algorithm = -1; algorithm < HASHKIT_HASH_MAX + 2; algorithm++) {
    printf("digest of \"%s\" by %d: %u\n", name, algorithm,
           libhashkit_digest(key, length, (hashkit_hash_algorithm_t)algorithm));
  }
  printf("functions of \"%s\": %u %u %u %u %u %u %u %u %u %u %u\n", name, libhashkit_one_at_a_time(key, length),
         libhashkit_fnv1_64(key, length), libhashkit_fnv1a_64(key, length), libhashkit_fnv1_32(key, length),
         libhashkit_fnv1a_32(key, length), libhashkit_crc32(key, length), libhashkit_hsieh(key, length),
         libhashkit_murmur(key, length), libhashkit_murmur3(key, length), libhashkit_jenkins(key, length),
         libhashkit_md5(key, length));
  unsigned char signature[16];
  libhashkit_md5_signature((const unsigned char *)key, length, signature);
  printf("signature of \"%s\":", name);
  for (size_t i = 0; i < sizeof signature; i++) {
    printf(" %02x", signature[i]);
  }
  printf("\n");
}

int main(void) {
  hashkit_st memory;
  hashkit_st *kit = hashkit_create(&memory);
  printf("in place %d\n", kit == &memory);
  print_kit("created", kit);
  for (int i = -1; i < HASHKIT_HASH_MAX + 2; i++) {
    char what[64];
    snprintf(what, sizeof what, "function %d %d", i, hashkit_set_function(kit, (hashkit_hash_algorithm_t)i));
    print_kit(what, kit);
    snprintf(what, sizeof what, "distribution %d %d", i,
             hashkit_set_distribution_function(kit, (hashkit_hash_algorithm_t)i));
    print_kit(what, kit);
    printf("has %d %d\n", i, libhashkit_has_algorithm((hashkit_hash_algorithm_t)i));
  }
  uint32_t context = 7;
  printf("no custom %d %d\n", hashkit_set_custom_function(kit, NULL, NULL),
         hashkit_set_custom_distribution_function(kit, NULL, NULL));
  printf("custom %d\n", hashkit_set_custom_function(kit, own, &context));
  print_kit("custom", kit);
  printf("custom distribution %d\n", hashkit_set_custom_distribution_function(kit, own, &context));
  print_kit("custom distribution", kit);

  hashkit_st *other = hashkit_create(NULL);
  print_kit("other", other);
  printf("compared %d %d %d %d %d %d\n", hashkit_compare(kit, kit), hashkit_compare(kit, other),
         hashkit_compare(other, other), hashkit_compare(NULL, other), hashkit_compare(other, NULL),
         hashkit_compare(NULL, NULL));
  hashkit_st copied;
  hashkit_st *copy = hashkit_clone(&copied, kit);
  printf("copy in place %d, equal %d\n", copy == &copied, hashkit_compare(copy, kit));
  print_kit("copy", copy);
  hashkit_free(copy);
  copy = hashkit_clone(NULL, kit);
  print_kit("copy of its own", copy);
  hashkit_free(copy);
  copy = hashkit_clone(NULL, NULL);
  print_kit("copy of nothing", copy);
  hashkit_free(copy);
  printf("after a custom one %d\n", hashkit_set_function(kit, HASHKIT_HASH_MD5));
  print_kit("after a custom one", kit);
  hashkit_free(other);
  hashkit_free(kit);

  print_hashes("hello");
  print_hashes("");
  print_hashes("a longer key, of more than one block of any of these: 0123456789 0123456789 0123456789 0123456789");
  print_hashes("\xe4\xf6\xfc");
  return 0;
}
