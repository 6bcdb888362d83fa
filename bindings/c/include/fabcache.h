/* libfabcache: a client of memcached servers that reads from the memory of those on its own host.
 *
 * libfabcache(7) tells how to use it, and each function has its page.
 * Made by `cargo xtask header`. */

#ifndef FABCACHE_H
#define FABCACHE_H

#include <stddef.h>
#include <stdint.h>

/* What every function takes for true
 *
 * Where an argument points, it is NULL, or points to what its type says (a handle: one that was made by this library and is
 * not freed), or to as many bytes or elements as the argument beside it says. That must not change until the function
 * returns. Texts end with a NUL and are UTF-8; keys and values have a length and may hold any byte.
 *
 * NULL is FABCACHE_INVALID_ARGUMENT where there must be something. Where a function says that a result goes into *result, it
 * is written only if there is one.
 *
 * Threads: all may call with the same fabcache and the same fabcache_options at once, but for what frees or changes it. A
 * fabcache_request belongs to one thread at a time, and so does a fabcache_buffer. */

/*
 What a function came to. Up to FABCACHE_BUFFER_TOO_SMALL these are answers; from FABCACHE_INVALID_ARGUMENT on they are
 failures, of which fabcache_last_error() tells more.
 */
typedef enum {
  /* It is done, or found. */
  FABCACHE_OK = 0,
  /* There is no such key. */
  FABCACHE_NOT_FOUND = 1,
  /*
   It is not stored: the key was there for fabcache_add(), or was not for fabcache_replace(), fabcache_append() or
   fabcache_prepend().
   */
  FABCACHE_NOT_STORED = 2,
  /* It is not stored: another changed the item since it was read (fabcache_cas()). */
  FABCACHE_EXISTS = 3,
  /* The operation is not over yet. */
  FABCACHE_IN_PROGRESS = 4,
  /* The value was found and is longer than the buffer, into which nothing was written. */
  FABCACHE_BUFFER_TOO_SMALL = 5,
  /* An argument is NULL that must not be, or a number is out of its range. */
  FABCACHE_INVALID_ARGUMENT = 16,
  /* A server address is invalid. */
  FABCACHE_BAD_ADDRESS = 17,
  /* No server is named. */
  FABCACHE_NO_SERVERS = 18,
  /* A key has 1 to 250 bytes. */
  FABCACHE_BAD_KEY = 19,
  /* A value is longer than any server takes. */
  FABCACHE_BAD_VALUE = 20,
  /* Nothing was asked for with this request object. */
  FABCACHE_NOTHING_ASKED = 21,
  /* The server cannot be reached. */
  FABCACHE_UNREACHABLE = 22,
  /* The connection broke. Whether the server did what was asked is not known. */
  FABCACHE_BROKEN = 23,
  /* No answer came in time. Whether the server did what was asked is not known. */
  FABCACHE_TIMED_OUT = 24,
  /* The server answered what the protocol does not know. Whether it did what was asked is not known. */
  FABCACHE_PROTOCOL = 25,
  /* The server failed of late and is not asked again yet. */
  FABCACHE_DOWN = 26,
  /* All servers failed of late. */
  FABCACHE_ALL_DOWN = 27,
  /*
   The server refuses: its memory is full or not shared, the value is too large for it, the stored value is not a
   number, or as its text says.
   */
  FABCACHE_REFUSED = 28,
  /* Some servers failed; what the others answered was told. */
  FABCACHE_PARTIAL = 29,
  /* There is no memory for the value. */
  FABCACHE_OUT_OF_MEMORY = 30,
  /* A fault of the library. */
  FABCACHE_INTERNAL = 31
} fabcache_code;

/* Whether servers that are reached by a Unix socket are asked for their memory: fabcache_options_shared_memory(). */
typedef enum {
  /* Where they share it; else the socket does. So it is if nothing is set. */
  FABCACHE_SHARED_MEMORY_OFFERED = 0,
  /* It must be shared: otherwise calls fail with FABCACHE_REFUSED, and fabcache_last_error() says why. */
  FABCACHE_SHARED_MEMORY_REQUIRED = 1,
  /* Never. */
  FABCACHE_SHARED_MEMORY_NEVER = 2
} fabcache_shared_memory;

/* How values are got from servers whose address begins with fab://: fabcache_options_fabric(). */
typedef enum {
  /*
   As has taken less time lately; by requests where the provider needs the server's help with reads. So it is if nothing
   is set.
   */
  FABCACHE_FABRIC_MODE_AUTO = 0,
  /* They are read from the server's memory, without the server. */
  FABCACHE_FABRIC_MODE_ONE_SIDED = 1,
  /* The server is asked. */
  FABCACHE_FABRIC_MODE_REQUEST = 2
} fabcache_fabric_mode;

/* How keys are mapped to servers, as libmemcached does: fabcache_options_distribution(). */
typedef enum {
  /* The hash modulo the number of servers. So it is if nothing is set. */
  FABCACHE_DISTRIBUTION_MODULA = 0,
  /* Consistent hashing, where weights count as soon as one is not 1. */
  FABCACHE_DISTRIBUTION_KETAMA = 1,
  /* Consistent hashing with weights, and with MD5 unless fabcache_options_hash() says otherwise. */
  FABCACHE_DISTRIBUTION_KETAMA_WEIGHTED = 2,
  /* Consistent hashing, with the names that spymemcached gives to servers. */
  FABCACHE_DISTRIBUTION_KETAMA_SPY = 3,
  /* Each time any server. */
  FABCACHE_DISTRIBUTION_RANDOM = 4
} fabcache_distribution;

/* The hash of keys: fabcache_options_hash(). */
typedef enum {
  /* Bob Jenkins's one at a time, libmemcached's default. */
  FABCACHE_HASH_ONE_AT_A_TIME = 0,
  /* MD5. */
  FABCACHE_HASH_MD5 = 1,
  /* CRC-32. */
  FABCACHE_HASH_CRC = 2,
  /* FNV-1 of 64 bits. */
  FABCACHE_HASH_FNV1_64 = 3,
  /* FNV-1a of 64 bits. */
  FABCACHE_HASH_FNV1A_64 = 4,
  /* FNV-1 of 32 bits. */
  FABCACHE_HASH_FNV1_32 = 5,
  /* FNV-1a of 32 bits. */
  FABCACHE_HASH_FNV1A_32 = 6,
  /* MurmurHash2. */
  FABCACHE_HASH_MURMUR = 7,
  /* Bob Jenkins's lookup3. */
  FABCACHE_HASH_JENKINS = 8,
  /* MurmurHash3 of 32 bits. */
  FABCACHE_HASH_MURMUR3 = 9
} fabcache_hash;

/* What is spoken with servers over sockets: fabcache_options_protocol(). */
typedef enum {
  /* The meta protocol, or the text protocol with servers and proxies that do not know it. So it is if nothing is set. */
  FABCACHE_PROTOCOL_AUTO = 0,
  /* The meta protocol, of memcached from 1.6 on. */
  FABCACHE_PROTOCOL_META = 1,
  /* The binary protocol. fabcache_options_credentials() are those of SASL then. */
  FABCACHE_PROTOCOL_BINARY = 2,
  /* The text protocol, in which a key with a space or a control character is FABCACHE_BAD_KEY. */
  FABCACHE_PROTOCOL_TEXT = 3
} fabcache_protocol;

/* How a server is reached: fabcache_transports(). */
typedef enum {
  /* Nothing was connected yet. */
  FABCACHE_TRANSPORT_NONE = 0,
  /* Over TCP. */
  FABCACHE_TRANSPORT_TCP = 1,
  /* Over a Unix socket. */
  FABCACHE_TRANSPORT_UNIX = 2,
  /* Items are read from its memory, and requests go through a channel in memory. */
  FABCACHE_TRANSPORT_SHARED_MEMORY = 3,
  /* Over the fabric. */
  FABCACHE_TRANSPORT_FABRIC = 4
} fabcache_transport;

/* Memory for values, used again and again. */
typedef struct fabcache_buffer fabcache_buffer;

/* Many servers as one cache. It may be shared among threads, all of which may call at once. */
typedef struct fabcache fabcache;

/*
 Options of a client: made by fabcache_options_new(), read by fabcache_open(). One thread at a time may change
 them.
 */
typedef struct fabcache_options fabcache_options;

/*
 An operation that nobody need wait for: one at a time, and then the object can be used again. It belongs to one thread at a
 time, which need not be the same always.
 */
typedef struct fabcache_request fabcache_request;

/* The metadata of a found value. */
typedef struct {
  /* Bytes of the value. */
  size_t length;
  /* Tells this version of it from others, for fabcache_cas(). */
  uint64_t cas;
  /* The flags that it was stored with, for the client's own use. */
  uint32_t flags;
} fabcache_item;

/*
 Told of each value that fabcache_get_many() finds: context is the caller's, key the number of the key. value and item are
 valid until it returns, and value is not NUL-terminated. It may call the library, but must not close the client that calls
 it, and must return: by longjmp() or a C++ exception it must not leave.
 */
typedef void (*fabcache_found_callback)(void *context,
                                        size_t key,
                                        const void *value,
                                        const fabcache_item *item);

/*
 Told of each statistic by fabcache_stats(): of which server, what it is called, and its value. The texts are valid until it
 returns. It may call the library, and must return: by longjmp() or a C++ exception it must not leave.
 */
typedef void (*fabcache_stat_callback)(void *context,
                                       const char *server,
                                       const char *name,
                                       const char *value);

/* Told of each server's version by fabcache_versions(). What holds for fabcache_stat_callback does for this. */
typedef void (*fabcache_version_callback)(void *context, const char *server, const char *version);

/*
 Told by fabcache_transports() how each server is reached: transport is one of FABCACHE_TRANSPORT_NONE and so on. why is NULL,
 or why memory is not shared, or the fabric not used, though that was asked for. What holds for fabcache_stat_callback does for this.
 */
typedef void (*fabcache_transport_callback)(void *context,
                                            const char *server,
                                            int transport,
                                            const char *why);

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/* A code in words: a constant, never NULL, also for numbers that are no code. */
const char *fabcache_error_text(int code);

/*
 What made the last call of this thread that failed do so, with the server's name and the cause; empty if none has. Valid
 until the thread's next call that fails, or its end.
 */
const char *fabcache_last_error(void);

/* The library's version, such as "0.1.0". */
const char *fabcache_version(void);

/* Options with their defaults, to be freed with fabcache_options_free(). NULL only for a fault of the library. */
fabcache_options *fabcache_options_new(void);

/* Frees options; NULL is allowed. Clients that were opened with them keep their settings. */
void fabcache_options_free(fabcache_options *options);

/* How long connecting may take, in milliseconds from 1 on; 1000 if not set. */
fabcache_code fabcache_options_connect_timeout_ms(fabcache_options *options, uint32_t ms);

/* How long a call may take, for each server that it asks, in milliseconds from 1 on; 5000 if not set. */
fabcache_code fabcache_options_timeout_ms(fabcache_options *options, uint32_t ms);

/*
 After how many failures, one after the other, a server is down, from 1 on (1 if not set), and for how many milliseconds
 (2000). Calls for its keys fail at once meanwhile; or, with auto_eject not 0, its keys belong to the other servers.
 */
fabcache_code fabcache_options_failures(fabcache_options *options,
                                        uint32_t failures_max,
                                        uint32_t retry_after_ms,
                                        int auto_eject);

/*
 Whether servers that are reached by a Unix socket are asked for their memory: one of FABCACHE_SHARED_MEMORY_OFFERED,
 _REQUIRED, _NEVER.
 */
fabcache_code fabcache_options_shared_memory(fabcache_options *options,
                                             int shared_memory);

/*
 Sets how servers are used whose address begins with fab://. mode is one of FABCACHE_FABRIC_MODE_AUTO, _ONE_SIDED,
 _REQUEST. provider and interface are libfabric's names, or NULL for the server's provider and the interface that
 leads there; both are copied. With or_tcp not 0, TCP is used where the fabric is not available, and
 fabcache_transports() says why; otherwise calls fail with FABCACHE_REFUSED then.
 */
fabcache_code fabcache_options_fabric(fabcache_options *options,
                                      int mode,
                                      const char *provider,
                                      const char *interface,
                                      int or_tcp);

/*
 What is spoken with servers over sockets: one of FABCACHE_PROTOCOL_AUTO, _META, _BINARY, _TEXT. Through shared memory it
 makes no difference.
 */
fabcache_code fabcache_options_protocol(fabcache_options *options,
                                        int protocol);

/* How keys are mapped to servers: one of FABCACHE_DISTRIBUTION_MODULA and so on. Clients of one cache must agree. */
fabcache_code fabcache_options_distribution(fabcache_options *options,
                                            int distribution);

/* The hash of keys: one of FABCACHE_HASH_ONE_AT_A_TIME and so on. */
fabcache_code fabcache_options_hash(fabcache_options *options, int hash);

/*
 So many bytes at a key's start are not hashed (0 if not set), as libmemcached does with its namespace; and with sort_hosts
 not 0, servers are taken in the order of host and port rather than as they are given.
 */
fabcache_code fabcache_options_mapping(fabcache_options *options,
                                       size_t namespace_length,
                                       int sort_hosts);

/* Sets the user and password for servers whose clients authenticate. Both texts are copied; user NULL removes them. */
fabcache_code fabcache_options_credentials(fabcache_options *options,
                                           const char *user,
                                           const char *password);

/*
 Opens a client of count servers: "tcp://HOST:PORT", "HOST:PORT", "HOST" or "unix:///PATH", each with "?weight=N"
 behind it to give it more keys than others. Connections are made when they are needed. options may be NULL. *cache
 receives the client, or NULL after a failure; close it with fabcache_close().

 After fork(), parent and child may both use a client, which makes new connections in the child, if no other thread
 was in a call with it during the fork. Operations in flight complete in the parent; in the child they have failed.
 */
fabcache_code fabcache_open(const char *const *addresses,
                            size_t count,
                            const fabcache_options *options,
                            fabcache **cache);

/*
 Closes a client; NULL is allowed. No other thread may be in a call with it. Its request objects may still be used:
 they hold what they need.
 */
void fabcache_close(fabcache *cache);

/* How many servers the client has; 0 for NULL. */
size_t fabcache_server_count(const fabcache *cache);

/*
 The address of a server, which are numbered from 0 on as they were given. Valid until the client is closed; NULL if there
 is no such server.
 */
const char *fabcache_server_address(const fabcache *cache,
                                    size_t server);

/* The number of the server that has a key is put into *server. */
fabcache_code fabcache_server_of(const fabcache *cache,
                                 const char *key,
                                 size_t key_length,
                                 size_t *server);

/*
 Reads a key's value into the caller's buffer. Its metadata goes into *item, unless that is NULL, also if the
 buffer is too small: FABCACHE_BUFFER_TOO_SMALL, and item->length is the length needed. The value is not
 NUL-terminated.
 */
fabcache_code fabcache_get(const fabcache *cache,
                           const char *key,
                           size_t key_length,
                           void *buffer,
                           size_t buffer_size,
                           fabcache_item *item);

/* As fabcache_get(), and from now on the item expires as expiration says (see fabcache_set()), also if the buffer is too small. */
fabcache_code fabcache_get_and_touch(const fabcache *cache,
                                     const char *key,
                                     size_t key_length,
                                     int64_t expiration,
                                     void *buffer,
                                     size_t buffer_size,
                                     fabcache_item *item);

/*
 Reads a key's value into memory of its own, which is put into *value and to be freed with fabcache_free(). A NUL that
 item->length does not count follows the value. After anything but FABCACHE_OK, *value is NULL.
 */
fabcache_code fabcache_get_alloc(const fabcache *cache,
                                 const char *key,
                                 size_t key_length,
                                 char **value,
                                 fabcache_item *item);

/* As fabcache_get_alloc(), and from now on the item expires as expiration says (see fabcache_set()). */
fabcache_code fabcache_get_and_touch_alloc(const fabcache *cache,
                                           const char *key,
                                           size_t key_length,
                                           int64_t expiration,
                                           char **value,
                                           fabcache_item *item);

/* Frees what fabcache_get_alloc() or fabcache_get_and_touch_alloc() gave; NULL is nothing. */
void fabcache_free(void *value);

/*
 Reads many keys, asking all servers at once, and calls found for each key that exists, in any order. The keys are
 those at keys, their lengths at key_lengths; both have count elements. Absent keys are not reported.

 FABCACHE_PARTIAL: some of the servers failed, and their keys were not reported. If all failed, the code is that of
 the first.
 */
fabcache_code fabcache_get_many(const fabcache *cache,
                                const char *const *keys,
                                const size_t *key_lengths,
                                size_t count,
                                fabcache_found_callback found,
                                void *context);

/* Whether there is anything for a key: FABCACHE_OK or FABCACHE_NOT_FOUND. Over a socket no value comes for it. */
fabcache_code fabcache_exists(const fabcache *cache,
                              const char *key,
                              size_t key_length);

/*
 Stores a value. expiration is as in memcached's protocols: 0 is for ever, below 0 it has expired at once, up to thirty days
 it is seconds from now, and beyond that a Unix time. flags are for the client's own use. value may be NULL if its length is
 0.
 */
fabcache_code fabcache_set(const fabcache *cache,
                           const char *key,
                           size_t key_length,
                           const void *value,
                           size_t value_length,
                           int64_t expiration,
                           uint32_t flags);

/* Stores a value if the key is not there; otherwise FABCACHE_NOT_STORED. */
fabcache_code fabcache_add(const fabcache *cache,
                           const char *key,
                           size_t key_length,
                           const void *value,
                           size_t value_length,
                           int64_t expiration,
                           uint32_t flags);

/* Stores a value if the key is there; otherwise FABCACHE_NOT_STORED. */
fabcache_code fabcache_replace(const fabcache *cache,
                               const char *key,
                               size_t key_length,
                               const void *value,
                               size_t value_length,
                               int64_t expiration,
                               uint32_t flags);

/* Adds bytes behind a value, whose expiration and flags stay; FABCACHE_NOT_STORED if the key is absent. */
fabcache_code fabcache_append(const fabcache *cache,
                              const char *key,
                              size_t key_length,
                              const void *value,
                              size_t value_length);

/* Adds bytes before a value, whose expiration and flags stay; FABCACHE_NOT_STORED if the key is absent. */
fabcache_code fabcache_prepend(const fabcache *cache,
                               const char *key,
                               size_t key_length,
                               const void *value,
                               size_t value_length);

/*
 Stores a value if the item is still the one that was read with this cas; FABCACHE_EXISTS if another changed it,
 FABCACHE_NOT_FOUND if it is gone.
 */
fabcache_code fabcache_cas(const fabcache *cache,
                           const char *key,
                           size_t key_length,
                           const void *value,
                           size_t value_length,
                           int64_t expiration,
                           uint32_t flags,
                           uint64_t cas);

/*
 Adds to a number that is stored in decimal digits; beyond 64 bits it begins again at 0. The new one is put into *number,
 unless that is NULL. FABCACHE_REFUSED if what is stored is no number.
 */
fabcache_code fabcache_incr(const fabcache *cache,
                            const char *key,
                            size_t key_length,
                            uint64_t delta,
                            uint64_t *number);

/* As fabcache_incr(), but subtracts, and does not go below 0. */
fabcache_code fabcache_decr(const fabcache *cache,
                            const char *key,
                            size_t key_length,
                            uint64_t delta,
                            uint64_t *number);

/*
 As fabcache_incr(); where there is no such key, initial is stored and put into *number, and expires as expiration says (see
 fabcache_set()).
 */
fabcache_code fabcache_incr_or_set(const fabcache *cache,
                                   const char *key,
                                   size_t key_length,
                                   uint64_t delta,
                                   uint64_t initial,
                                   int64_t expiration,
                                   uint64_t *number);

/*
 As fabcache_decr(); where there is no such key, initial is stored and put into *number, and expires as expiration says (see
 fabcache_set()).
 */
fabcache_code fabcache_decr_or_set(const fabcache *cache,
                                   const char *key,
                                   size_t key_length,
                                   uint64_t delta,
                                   uint64_t initial,
                                   int64_t expiration,
                                   uint64_t *number);

/* From now on the item expires as expiration says (see fabcache_set()). */
fabcache_code fabcache_touch(const fabcache *cache,
                             const char *key,
                             size_t key_length,
                             int64_t expiration);

/* Removes a key. */
fabcache_code fabcache_delete(const fabcache *cache, const char *key, size_t key_length);

/*
 Forgets everything on all servers, after delay seconds. The code is that of the first server that fails or refuses; the
 others were asked all the same.
 */
fabcache_code fabcache_flush(const fabcache *cache,
                             uint32_t delay);

/*
 Calls stat for each statistic of each server, in their order: of a topic such as "items", or with topic NULL the usual ones.

 FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
 */
fabcache_code fabcache_stats(const fabcache *cache,
                             const char *topic,
                             fabcache_stat_callback stat,
                             void *context);

/*
 Calls version for each server's version, in their order.

 FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
 */
fabcache_code fabcache_versions(const fabcache *cache,
                                fabcache_version_callback version,
                                void *context);

/*
 Has all servers log more, or less: 0 is little.

 FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
 */
fabcache_code fabcache_verbosity(const fabcache *cache, uint32_t level);

/* Calls transport for each server, in their order: how it was last connected to. Nothing is connected for it. */
fabcache_code fabcache_transports(const fabcache *cache,
                                  fabcache_transport_callback transport,
                                  void *context);

/* A request object of a client, to be freed with fabcache_request_free(). NULL if cache is. */
fabcache_request *fabcache_request_new(const fabcache *cache);

/*
 Frees a request object; NULL is allowed. An unfinished operation is abandoned: it is carried out or not, and no
 one is notified. Its buffers are the caller's again when this returns: for that it waits for a long value of
 fabcache_iset() and for an operation on a fabcache_buffer.
 */
void fabcache_request_free(fabcache_request *request);

/*
 Stores a value as fabcache_set() does, but returns once that is asked for. key and value belong to the operation until
 fabcache_test() or fabcache_wait() says that it is over. FABCACHE_IN_PROGRESS is the usual answer, also where it is known
 already what it came to: fabcache_test() and fabcache_wait() tell. FABCACHE_INVALID_ARGUMENT: nothing was asked for; also if
 the operation before is not over.

 It waits only where there is no connection to the server yet, or 1024 requests are in flight on it. So do the other three.
 A value is sent from where it lies; one of 4096 bytes or less that does not go at once is copied.
 */
fabcache_code fabcache_iset(fabcache_request *request,
                            const char *key,
                            size_t key_length,
                            const void *value,
                            size_t value_length,
                            int64_t expiration,
                            uint32_t flags);

/*
 As fabcache_iset(), but key and value are the caller's again when it returns: a value that does not go at once is copied. The
 operation itself may still be in flight.
 */
fabcache_code fabcache_bset(fabcache_request *request,
                            const char *key,
                            size_t key_length,
                            const void *value,
                            size_t value_length,
                            int64_t expiration,
                            uint32_t flags);

/*
 Asks for a value, and returns once that is done. key and buffer belong to the operation until fabcache_test() or
 fabcache_wait() says that it is over; then the value is in the buffer, if there is one and it is large enough. buffer may be
 NULL with a size of 0: the value is found with fabcache_request_value(), without a copy. Returns as fabcache_iset().
 */
fabcache_code fabcache_iget(fabcache_request *request,
                            const char *key,
                            size_t key_length,
                            void *buffer,
                            size_t buffer_size);

/* As fabcache_iget(), but the key is the caller's again when it returns; the buffer when the operation is over. */
fabcache_code fabcache_bget(fabcache_request *request,
                            const char *key,
                            size_t key_length,
                            void *buffer,
                            size_t buffer_size);

/*
 FABCACHE_IN_PROGRESS, or what the operation came to, as often as it is asked. It makes progress with everything that is in
 flight on the connection. FABCACHE_BUFFER_TOO_SMALL: the value was found, and fabcache_request_value() has it.
 */
fabcache_code fabcache_test(fabcache_request *request);

/*
 Waits until the operation is over, and returns what it came to, as often as it is asked. It is over at the latest when the
 server has not answered for the time that fabcache_options_timeout_ms() set; then all that is in flight on the connection has
 failed.
 */
fabcache_code fabcache_wait(fabcache_request *request);

/*
 The value that a get found, in memory of the request object; what it is goes into *item, unless that is NULL. Valid until the
 request object is used again or freed. NULL if no value was found, or the operation is not known to be over. It is not
 NUL-terminated.
 */
const void *fabcache_request_value(const fabcache_request *request,
                                   fabcache_item *item);

/*
 Memory for values of up to size bytes, to be freed with fabcache_buffer_free(). Over a fabric values are read into it, and those
 of 16384 bytes or more sent from it, without a copy. Where a provider needs that, it is registered when it is first used and
 stays so: at most 1024 buffers of a client, of 1 GiB together, of which those used longest ago give way. In one that is not
 registered values are copied; so they are where servers are reached otherwise. NULL if cache is.

 A server that was sent a value out of a buffer can read all of the buffer, and write none of it, as long as it stays registered.
 */
fabcache_buffer *fabcache_register(const fabcache *cache,
                                   size_t size);

/* Frees a buffer; NULL is allowed. An operation that has it continues with its memory. */
void fabcache_buffer_free(fabcache_buffer *buffer);

/*
 Returns the value that was last found, or stored in the buffer; its length goes into *length, unless that is NULL.
 Valid until the buffer is used again or freed. An empty buffer gives a length of 0 and a pointer that is not NULL.
 NULL while an operation has the buffer.
 */
const void *fabcache_buffer_value(const fabcache_buffer *buffer,
                                  size_t *length);

/*
 Makes the buffer's value one of length bytes, which are to be written: what is in them is not said. Valid until the buffer is
 used again or freed. A value longer than the buffer is copied when it is sent. NULL while an operation has the buffer, and for
 more than 1 GiB.
 */
void *fabcache_buffer_resize(fabcache_buffer *buffer,
                             size_t length);

/*
 Reads a key's value into a buffer, where fabcache_buffer_value() finds it. Its metadata goes into *item, unless
 that is NULL. After anything but FABCACHE_OK the buffer has no value.
 */
fabcache_code fabcache_get_registered(const fabcache *cache,
                                      const char *key,
                                      size_t key_length,
                                      fabcache_buffer *buffer,
                                      fabcache_item *item);

/* Stores a buffer's value as fabcache_set() does. The buffer has it afterwards as before, whatever came of it. */
fabcache_code fabcache_set_registered(const fabcache *cache,
                                      const char *key,
                                      size_t key_length,
                                      fabcache_buffer *buffer,
                                      int64_t expiration,
                                      uint32_t flags);

/*
 As fabcache_iget(), into a buffer, which belongs to the operation until fabcache_test() or fabcache_wait() says that it is
 over. The key is the caller's again when it returns. fabcache_request_value() finds the value as well.
 */
fabcache_code fabcache_iget_registered(fabcache_request *request,
                                       const char *key,
                                       size_t key_length,
                                       fabcache_buffer *buffer);

/*
 As fabcache_iset(), a buffer's value: the buffer belongs to the operation until fabcache_test() or fabcache_wait() says that it
 is over, and has its value then as before. The key is the caller's again when it returns.
 */
fabcache_code fabcache_iset_registered(fabcache_request *request,
                                       const char *key,
                                       size_t key_length,
                                       fabcache_buffer *buffer,
                                       int64_t expiration,
                                       uint32_t flags);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* FABCACHE_H */
