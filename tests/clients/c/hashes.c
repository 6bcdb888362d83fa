/* Prints libmemcached's hashes of bytes: a line for each hash, for crates/distribution/tests/hashes.txt. Build and run:
 *   cc -O2 -Wall -Wextra -o hashes hashes.c -lmemcached -lhashkit && ./hashes
 */
#include "hashes.h"

#include <stdio.h>

enum { LENGTH_MAX = 70 };

int main(void) {
    for (size_t i = 0; i < HASHES_COUNT; i++) {
        if (!is_there(&HASHES[i])) {
            printf("# %s is not in this library.\n", HASHES[i].name);
            continue;
        }
        printf("%s", HASHES[i].name);
        for (int length = 0; length <= LENGTH_MAX; length++) {
            char bytes[LENGTH_MAX];
            /* Each length has one text of ASCII and one of all bytes. */
            for (int mask = 0x7f; mask <= 0xff; mask += 0x80) {
                for (int j = 0; j < length; j++) bytes[j] = (char)((length * 37 + j * 151) & mask);
                printf(" %08x", memcached_generate_hash_value(bytes, (size_t)length, HASHES[i].hash));
            }
        }
        printf("\n");
    }
    return 0;
}
