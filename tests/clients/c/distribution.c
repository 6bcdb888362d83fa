/* Prints where libmemcached looks for keys: a line for each distribution and set of servers, for
 * crates/client/tests/distribution.txt. Build and run:
 *   cc -O2 -Wall -Wextra -o distribution distribution.c -lmemcached && ./distribution
 */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 300, SERVERS_MAX = 12 };

struct server {
    const char *host;
    in_port_t port;
    uint32_t weight;
};

static const struct server SETS[][SERVERS_MAX] = {
    {{"10.0.1.1", 11211, 1}, {"10.0.1.2", 11211, 1}, {"10.0.1.3", 11211, 1}},
    {{"a", 11211, 1}, {"b", 11212, 2}, {"c", 1, 5}},
    {{"cache.example.org", 11211, 1}, {"cache.example.org", 11311, 1}},
    {{"n1", 11211, 600}, {"n2", 11211, 300}, {"n3", 11211, 200}, {"n4", 11211, 350}, {"n5", 11211, 1000},
     {"n6", 11211, 800}, {"n7", 11211, 950}, {"n8", 11211, 100}},
    {{"/run/a.sock", 0, 1}, {"b", 11211, 1}, {"/run/c.sock", 0, 1}, {"d", 11212, 1}},
};

static void print(const char *name, int behavior, const struct server *servers) {
    memcached_st *memc = memcached_create(NULL);
    if (behavior >= 0) memcached_behavior_set(memc, (memcached_behavior_t)behavior, 1);
    printf("%s", name);
    for (int i = 0; i < SERVERS_MAX && servers[i].host; i++) {
        const struct server *s = &servers[i];
        if (s->port == 0) {
            memcached_server_add_unix_socket_with_weight(memc, s->host, s->weight);
            printf(" unix://%s?weight=%u", s->host, s->weight);
        } else {
            memcached_server_add_with_weight(memc, s->host, s->port, s->weight);
            printf(" tcp://%s:%u?weight=%u", s->host, s->port, s->weight);
        }
    }
    printf(" |");
    for (int i = 0; i < KEYS; i++) {
        char key[32];
        int len = snprintf(key, sizeof key, "key-%d", i * 7919);
        printf(" %u", memcached_generate_hash(memc, key, (size_t)len));
    }
    printf("\n");
    memcached_free(memc);
}

int main(void) {
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        print("modula", -1, SETS[i]);
        print("ketama", MEMCACHED_BEHAVIOR_KETAMA, SETS[i]);
        print("ketama-weighted", MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, SETS[i]);
    }
    return 0;
}
