/* The servers of a run, and functions that create handles for them. */

#ifndef SERVERS_H
#define SERVERS_H

#include "trace.h"

enum { SERVERS_MAX = 3 };

/* Reads SERVERS (addresses with commas between: HOST:PORT or the paths of Unix sockets) and names them. */
void servers_read(void);

/* Whether they are reached by Unix sockets. */
bool servers_local(void);
const char *server_host(unsigned n);
in_port_t server_port(unsigned n);
/* In the format of the options string, and of the list parser. */
const char *server_address(unsigned n);

/* Flushes all servers directly, without the library. */
void servers_flush(void);

/* A handle with this many servers. */
memcached_st *handle_on(unsigned servers);
/* The same with a behaviour set to 1 before the servers are added. */
memcached_st *handle_with(unsigned servers, memcached_behavior_t flag);
memcached_st *handle_binary(unsigned servers);

/* Adds a server of the run; one that refuses connections; one that takes connections and never answers. */
memcached_return_t add_server(memcached_st *memc, unsigned n);
memcached_return_t add_server_with_weight(memcached_st *memc, unsigned n, uint32_t weight);
memcached_return_t add_dead(memcached_st *memc);
memcached_return_t add_silent(memcached_st *memc);

/* Returns whether a server has a key, and its value, read directly in the text protocol. */
void peek(unsigned n, const char *key);

#endif
