/* Helpers of a C client program: the servers' addresses and counted assertions. */
#ifndef CHECKS_H
#define CHECKS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The first is below the 1 MiB item limit and leaves room for the item's overhead; the second
 * is one byte more than a whole item may take. */
enum { NEAR_LIMIT = 1024 * 1024 - 1024, TOO_LARGE = 1024 * 1024 + 1 };

/* The shortest time to live that cannot end at the very next tick of the clock. */
enum { SHORT_TTL_S = 2 };

static unsigned passed;
static const char *context = "";

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "FAILED after %u checks: %s: ", passed, context);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  exit(1);
}

static void holds(const char *what, bool condition) {
  if (!condition)
    fail("%s", what);
  passed++;
}

static void equal(const char *what, unsigned long long actual, unsigned long long expected) {
  if (actual != expected)
    fail("%s: expected %llu, got %llu", what, expected, actual);
  passed++;
}

static void same_bytes(const char *what, const char *actual, size_t actual_length, const char *expected,
                       size_t expected_length) {
  if (actual_length != expected_length)
    fail("%s: expected %zu bytes, got %zu", what, expected_length, actual_length);
  if (actual_length && memcmp(actual, expected, actual_length))
    fail("%s: the bytes differ", what);
  passed++;
}

static void sleep_s(double seconds) {
  struct timespec time = {(time_t) seconds, (long) ((seconds - (double) (time_t) seconds) * 1e9)};
  nanosleep(&time, NULL);
}

static const char *environment(const char *name) {
  const char *value = getenv(name);
  if (!value)
    fail("%s is not set", name);
  return value;
}

#endif
