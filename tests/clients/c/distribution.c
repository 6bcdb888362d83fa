/* Prints the servers that libmemcached maps keys to, for crates/distribution/tests/servers.txt: the servers, then a line for each
 * hash and distribution with a digit or letter for each key. Build and run:
 *   cc -O2 -Wall -Wextra -o distribution distribution.c -lmemcached -lhashkit && ./distribution
 */
#include "hashes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 64, SERVERS_MAX = 26 };

struct server {
    const char *host;
    in_port_t port;
    uint32_t weight;
};

/* A socket that does not exist. */
#define EJECTED "/run/none.sock"

static const struct server SETS[][SERVERS_MAX] = {
    {{"10.0.1.1", 11211, 1}},
    {{"10.0.1.3", 11211, 1}, {"10.0.1.1", 11211, 1}, {"10.0.1.2", 11211, 1}},
    {{"a", 11211, 1}, {"b", 11212, 2}, {"c", 1, 5}},
    {{"cache.example.org", 11311, 1}, {"cache.example.org", 11211, 1}},
    {{"n1", 11211, 600}, {"n2", 11211, 300}, {"n3", 11211, 200}, {"n4", 11211, 350}, {"n5", 11211, 1000},
     {"n6", 11211, 800}, {"n7", 11211, 950}, {"n8", 11211, 100}},
    {{"/run/a.sock", 0, 1}, {"d", 11211, 1}, {"/run/c.sock", 0, 1}, {"b", 11212, 1}},
    {{EJECTED, 0, 3}, {"h", 11211, 1}, {"i", 11212, 1}, {"j", 11211, 1}},
    /* 25: libmemcached's single-precision result differs from a double-precision one. */
    {{"m1", 11211, 1},  {"m2", 11211, 1},  {"m3", 11211, 1},  {"m4", 11211, 1},  {"m5", 11211, 1},
     {"m6", 11211, 1},  {"m7", 11211, 1},  {"m8", 11211, 1},  {"m9", 11211, 1},  {"m10", 11211, 1},
     {"m11", 11211, 1}, {"m12", 11211, 1}, {"m13", 11211, 1}, {"m14", 11211, 1}, {"m15", 11211, 1},
     {"m16", 11211, 1}, {"m17", 11211, 1}, {"m18", 11211, 1}, {"m19", 11211, 1}, {"m20", 11211, 1},
     {"m21", 11211, 1}, {"m22", 11211, 1}, {"m23", 11211, 1}, {"m24", 11211, 1}, {"m25", 11211, 1}},
};

enum { NO_BUCKETS = -1, NO_MAP = 0 };

static const struct way {
    const char *name;
    memcached_server_distribution_t distribution;
    bool weighted_before;  /* KETAMA_WEIGHTED is set first. */
    bool behind;           /* It is set after the servers. */
    bool sorted;           /* SORT_HOSTS */
    bool with_namespace;
    bool namespace_hashed; /* HASH_WITH_PREFIX_KEY */
    int buckets;
} WAYS[] = {
    {"modula", MEMCACHED_DISTRIBUTION_MODULA, .buckets = NO_BUCKETS},
    {"modula sorted", MEMCACHED_DISTRIBUTION_MODULA, .sorted = true, .buckets = NO_BUCKETS},
    {"modula namespace", MEMCACHED_DISTRIBUTION_MODULA, .with_namespace = true, .buckets = NO_BUCKETS},
    {"modula namespace-hashed", MEMCACHED_DISTRIBUTION_MODULA, .with_namespace = true, .namespace_hashed = true,
     .buckets = NO_BUCKETS},
    {"consistent", MEMCACHED_DISTRIBUTION_CONSISTENT, .buckets = NO_BUCKETS},
    {"consistent behind", MEMCACHED_DISTRIBUTION_CONSISTENT, .behind = true, .buckets = NO_BUCKETS},
    {"consistent-ketama", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA, .buckets = NO_BUCKETS},
    {"consistent-ketama behind", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA, .behind = true,
     .buckets = NO_BUCKETS},
    {"consistent-ketama sorted", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA, .sorted = true,
     .buckets = NO_BUCKETS},
    {"consistent-ketama namespace", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA, .with_namespace = true,
     .buckets = NO_BUCKETS},
    {"consistent-weighted", MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED, .buckets = NO_BUCKETS},
    {"consistent-weighted behind", MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED, .behind = true,
     .buckets = NO_BUCKETS},
    {"spy", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY, .buckets = NO_BUCKETS},
    {"spy behind", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY, .behind = true, .buckets = NO_BUCKETS},
    {"spy weighted", MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY, .weighted_before = true,
     .buckets = NO_BUCKETS},
    {"buckets 0", MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET, .buckets = NO_MAP},
    {"buckets 64", MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET, .buckets = 64},
    {"buckets 13", MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET, .buckets = 13},
    {"buckets 64 sorted", MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET, .sorted = true, .buckets = 64},
};

static void set(memcached_st *memc, memcached_behavior_t behavior, uint64_t value) {
    memcached_return_t rc = memcached_behavior_set(memc, behavior, value);
    if (rc != MEMCACHED_SUCCESS) {
        fprintf(stderr, "behavior %d: %s\n", behavior, memcached_strerror(memc, rc));
        exit(1);
    }
}

static int add(memcached_st *memc, const struct server *servers) {
    int count = 0;
    for (const struct server *s = servers; count < SERVERS_MAX && s->host; s++, count++) {
        if (s->port == 0) {
            memcached_server_add_unix_socket_with_weight(memc, s->host, s->weight);
        } else {
            memcached_server_add_with_weight(memc, s->host, s->port, s->weight);
        }
    }
    return count;
}

/* Returns the number of a server in the set. */
static int number_of(const memcached_st *memc, uint32_t position, const struct server *servers) {
    const memcached_instance_st *instance = memcached_server_instance_by_position(memc, position);
    for (int i = 0; i < SERVERS_MAX && servers[i].host; i++) {
        if (memcached_server_port(instance) == servers[i].port
            && strcmp(memcached_server_name(instance), servers[i].host) == 0) {
            return i;
        }
    }
    fprintf(stderr, "server %u is none of the set\n", position);
    exit(1);
}

static void print_keys(const memcached_st *memc, const struct server *servers) {
    printf(" | ");
    for (int i = 0; i < KEYS; i++) {
        char key[32];
        int len = snprintf(key, sizeof key, "key-%d", i * 7919);
        uint32_t position = memcached_generate_hash(memc, key, (size_t)len);
        printf("%c", "0123456789abcdefghijklmnopqrstuvwxyz"[number_of(memc, position, servers)]);
    }
    printf("\n");
}

static void print(const struct hash *hash, const struct way *way, const struct server *servers) {
    memcached_st *memc = memcached_create(NULL);
    int count = way->behind ? add(memc, servers) : 0;
    if (way->weighted_before) set(memc, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
    set(memc, MEMCACHED_BEHAVIOR_HASH, hash->hash);
    /* Different from that of keys, which should change nothing. */
    set(memc, MEMCACHED_BEHAVIOR_KETAMA_HASH,
        hash->hash == MEMCACHED_HASH_CRC ? MEMCACHED_HASH_MURMUR : MEMCACHED_HASH_CRC);
    set(memc, MEMCACHED_BEHAVIOR_DISTRIBUTION, way->distribution);
    set(memc, MEMCACHED_BEHAVIOR_SORT_HOSTS, way->sorted);
    set(memc, MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY, way->namespace_hashed);
    if (way->with_namespace) memcached_callback_set(memc, MEMCACHED_CALLBACK_NAMESPACE, "space:");
    if (!way->behind) count = add(memc, servers);
    if (way->buckets > 0) {
        uint32_t map[64];
        for (int i = 0; i < way->buckets; i++) map[i] = (uint32_t)(i * 5 / 3 % count);
        memcached_bucket_set(memc, map, NULL, (uint32_t)way->buckets, 0);
    }
    printf("%s %s", hash->name, way->name);
    print_keys(memc, servers);
    memcached_free(memc);
}

/* Distributions that a single behavior selects. */
static void print_usual(const char *name, int behavior, const struct server *servers) {
    memcached_st *memc = memcached_create(NULL);
    if (behavior >= 0) set(memc, (memcached_behavior_t)behavior, 1);
    add(memc, servers);
    printf("usual %s", name);
    print_keys(memc, servers);
    memcached_free(memc);
}

/* The same after the first server was found to be down, and was ejected. */
static void print_without_first(const char *name, int behavior, const struct server *servers) {
    memcached_st *memc = memcached_create(NULL);
    set(memc, MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS, 1);
    set(memc, MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, 1);
    set(memc, MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 1000);
    set(memc, (memcached_behavior_t)behavior, 1);
    add(memc, servers);
    char key[32];
    int len, i = 0;
    do {
        len = snprintf(key, sizeof key, "%d", i++);
    } while (memcached_generate_hash(memc, key, (size_t)len) != 0);
    memcached_set(memc, key, (size_t)len, "", 0, 0, 0);
    /* Updates the mapping. */
    set(memc, MEMCACHED_BEHAVIOR_SORT_HOSTS, 0);
    printf("without-first %s", name);
    print_keys(memc, servers);
    memcached_free(memc);
}

int main(void) {
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        printf("servers");
        for (const struct server *s = SETS[i]; s < SETS[i] + SERVERS_MAX && s->host; s++) {
            if (s->port == 0) printf(" unix://%s?weight=%u", s->host, s->weight);
            else printf(" tcp://%s:%u?weight=%u", s->host, s->port, s->weight);
        }
        printf("\n");
        print_usual("modula", -1, SETS[i]);
        print_usual("ketama", MEMCACHED_BEHAVIOR_KETAMA, SETS[i]);
        print_usual("ketama-weighted", MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, SETS[i]);
        if (strcmp(SETS[i][0].host, EJECTED) == 0) {
            print_without_first("ketama", MEMCACHED_BEHAVIOR_KETAMA, SETS[i]);
            print_without_first("ketama-weighted", MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, SETS[i]);
        }
        for (size_t h = 0; h < HASHES_COUNT; h++) {
            if (!is_there(&HASHES[h])) continue;
            for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) print(&HASHES[h], &WAYS[w], SETS[i]);
        }
    }
    return 0;
}
