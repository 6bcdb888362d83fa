/*
 * RDMA-Memcached's calls that do not wait, beside libmemcached's own.
 *
 * They are functions of libfabcache.so. A program of RDMA-Memcached, which looks for them in <libmemcached-1.0/memcached.h>,
 * is compiled with `-include libmemcached/requests.h`.
 *
 * A request is made once and used many times: memcached_iset() and its like begin what is asked for; memcached_test() and
 * memcached_wait() tell what it came to, as does `response`. Many may be in progress, and share a value that is stored.
 * A request belongs to the thread of its handle. While it is in progress it cannot be begun again.
 *
 *   memcached_iset, memcached_iget: key and value must be left alone until the request is over.
 *   memcached_bset, memcached_bget: what is stored and the key are the caller's again when the call returns.
 */
#ifndef LIBMEMCACHED_REQUESTS_H
#define LIBMEMCACHED_REQUESTS_H

#include <libmemcached-1.0/memcached.h>

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A request. What else it consists of is not for programs; memcached_request_create() makes it. */
typedef struct memcached_request_st {
  /* What is stored, or where what is found goes. If it is null when a value is asked for, memory is allocated for that with
   * the handle's allocator, with a zero behind the value; the caller frees it. */
  char *value;
  /* The length of what is stored; the room that there is for what is found, and then the length of that. Who puts another
   * value or length here gives other room for the next; otherwise that is as before. */
  size_t value_length;
  /* The item's flags. */
  uint32_t flags;
  /* What the request came to: MEMCACHED_IN_PROGRESS before, then MEMCACHED_SUCCESS, MEMCACHED_NOTFOUND, or what failed. */
  memcached_return_t response;
} memcached_request_st;

/* A new request, with a value to be stored, or room for values that are found; null if there is no handle.
 * Where there is room for one byte more than a value, a zero is put behind it. A longer value than there is room for is not
 * copied: the request comes to MEMCACHED_E2BIG. Room whose length is given as 0 is taken to be enough for any value and
 * its zero, as in RDMA-Memcached; give its length, and nothing can be written behind it. */
memcached_request_st *memcached_request_create(memcached_st *memc, char *value, size_t value_length, uint32_t flags);

/* Lets a request go. What it asked for is done all the same; memory that was allocated for a value stays the caller's. */
void memcached_request_free(memcached_st *memc, memcached_request_st *request);

/* Begins to store the request's value: MEMCACHED_SUCCESS, or why it cannot be begun. */
memcached_return_t memcached_iset(memcached_st *memc, const char *key, size_t key_length,
                                  memcached_request_st *request, time_t expiration, uint32_t flags);
memcached_return_t memcached_bset(memcached_st *memc, const char *key, size_t key_length,
                                  memcached_request_st *request, time_t expiration, uint32_t flags);

/* Begins to ask for a value: MEMCACHED_SUCCESS, or why it cannot be begun. */
memcached_return_t memcached_iget(memcached_st *memc, const char *key, size_t key_length,
                                  memcached_request_st *request);
memcached_return_t memcached_bget(memcached_st *memc, const char *key, size_t key_length,
                                  memcached_request_st *request);

/* What the request came to, or MEMCACHED_IN_PROGRESS. */
memcached_return_t memcached_test(memcached_st *memc, memcached_request_st *request);

/* Waits until the request is over: what it came to. */
memcached_return_t memcached_wait(memcached_st *memc, memcached_request_st *request);

#ifdef __cplusplus
}
#endif

#endif
