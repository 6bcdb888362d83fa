/* What the C tests share. */

#ifndef CHECK_H
#define CHECK_H

#include <fabcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program, telling where, if something is not so. */
#define CHECK(condition) ((condition) ? (void)0 : failed(__FILE__, __LINE__, #condition))

/* A call must come to a code. */
#define COMES_TO(wanted, call) comes_to(__FILE__, __LINE__, #call, (wanted), (call))

static void failed(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s: not so (%s)\n", file, line, what, fabcache_last_error());
  exit(EXIT_FAILURE);
}

static void comes_to(const char *file, int line, const char *call, fabcache_code wanted, fabcache_code code) {
  if (code == wanted)
    return;
  fprintf(stderr, "%s:%d: %s: %d, %s (%s), not %d\n", file, line, call, (int)code, fabcache_error_text(code),
          fabcache_last_error(), (int)wanted);
  exit(EXIT_FAILURE);
}

#endif
