/* The results of all calls, one per line, independent of the run: "FUNCTION<tab>call<tab>answer".
   Addresses of servers, ports and pointers get names; CAS values are numbered in the order of their appearance. */

#ifndef TRACE_H
#define TRACE_H

#include <libhashkit-1.0/hashkit.h>
#include <libmemcached/memcached.h>
#include <libmemcached/util.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A CAS token that no item has; not 0, which the text protocol refuses. */
#define NO_TOKEN (1ULL << 60)

/* A text constant and its length, as most functions take a key. */
#define S(text) (text), (sizeof(text) - 1)

/* A call that returns a return code; the handle's last error is printed with it. */
#define RC(memc, call) trace_rc((memc), #call, (call))
/* A call that returns a number, a text, a pointer (of which only null counts), or nothing. */
#define NUMBER(call) trace_number(#call, (unsigned long long) (call))
#define TEXT(call) trace_text(#call, (call))
#define POINTER(call) trace_pointer(#call, (call))
#define NOTHING(call)                                                                                            \
  do {                                                                                                           \
    (call);                                                                                                      \
    trace_line(#call, "returned");                                                                               \
  } while (0)

/* For calls that may crash one of the libraries: runs in a child process; its exit is the answer. */
#define IN_CHILD(...)                                                                                            \
  do {                                                                                                           \
    if (trace_fork()) {                                                                                          \
      __VA_ARGS__;                                                                                               \
      trace_exit();                                                                                              \
    }                                                                                                            \
    trace_wait(#__VA_ARGS__);                                                                                    \
  } while (0)

/* Before anything else: names for what differs from run to run. */
void trace_name(const char *actual, const char *name);

/* The scenario's name comes first on each of its lines. */
void trace_scenario(const char *name);

/* One line. The call's text starts with the function's name, maybe after "IN_CHILD" or a variable. */
void trace_line(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

memcached_return_t trace_rc(const memcached_st *memc, const char *call, memcached_return_t rc);
unsigned long long trace_number(const char *call, unsigned long long number);
const char *trace_text(const char *call, const char *text);
const void *trace_pointer(const char *call, const void *pointer);

/* An answer of bytes and a return code. */
void trace_value(const memcached_st *memc, const char *call, const char *value, size_t length, uint32_t flags,
                 memcached_return_t rc);

/* The contents of a result object. */
void trace_result(const memcached_st *memc, const char *call, const memcached_result_st *result,
                  memcached_return_t rc);

/* A server that a key goes to, or why there is none: libmemcached leaves the code as it was if there is one. */
void trace_server(const char *call, const memcached_instance_st *server, memcached_return_t rc);

/* The enumerator's name. */
const char *rc_name(memcached_return_t rc);

/* The number by which a CAS value is known, from 1; 0 is 0. */
unsigned cas_number(uint64_t cas);

/* "last error, errno, message" of a handle, in a buffer that the next call reuses. */
const char *errors_of(const memcached_st *memc);

/* Bytes with what is not printable escaped, and long ones as length and checksum. The text is the caller's to free. */
char *quoted(const char *bytes, size_t length);

bool trace_fork(void);
void trace_exit(void) __attribute__((noreturn));
void trace_wait(const char *statement);
/* How a child ended: "ended", "ended with status N", "crashed by signal N". */
void trace_end(const char *what, int status);

#endif
