/* The lines that are compared. */

#include "trace.h"

#include <ctype.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAMES_MAX = 32, LINE_MAX_BYTES = 4096, CAS_MAX = 8192, SHOWN_MAX = 80, CHILD_TIME_MAX_S = 20 };

static struct {
  char actual[128], name[32];
} names[NAMES_MAX];
static size_t name_count;

static const char *scenario = "none";
static uint64_t cas_seen[CAS_MAX];
static unsigned cas_count;

void trace_name(const char *actual, const char *name) {
  if (name_count == NAMES_MAX) {
    fprintf(stderr, "more than %d names\n", NAMES_MAX);
    exit(2);
  }
  snprintf(names[name_count].actual, sizeof names->actual, "%s", actual);
  snprintf(names[name_count++].name, sizeof names->name, "%s", name);
}

void trace_scenario(const char *name) {
  scenario = name;
  cas_count = 0;
}

/* Where a match of the actual text ends, if it stands there alone: 8001 is no match in 18001. */
static size_t match(const char *text, const char *at, const char *actual) {
  size_t length = strlen(actual);
  if (strncmp(at, actual, length) != 0)
    return 0;
  bool number = isdigit((unsigned char) actual[0]);
  if (number && ((at > text && isdigit((unsigned char) at[-1])) || isdigit((unsigned char) at[length])))
    return 0;
  return length;
}

/* The end of "(0x...)" or " -> ./src/...:123", which are positions in the library and not results. */
static size_t skipped(const char *at, const char **instead) {
  *instead = "";
  if (!strncmp(at, "(0x", 3)) {
    *instead = "(handle)";
    return strcspn(at, ")") + (strchr(at, ')') != NULL);
  }
  if (strncmp(at, " -> ./src/", 10) != 0)
    return 0;
  size_t length = strcspn(at, ":");
  return length + strspn(at + length, ":0123456789");
}

static void normalise(char *to, size_t size, const char *text) {
  size_t used = 0;
  for (const char *at = text; *at && used + 64 < size;) {
    const char *instead;
    size_t length = skipped(at, &instead);
    for (size_t n = 0; !length && n < name_count; n++) {
      length = match(text, at, names[n].actual);
      instead = names[n].name;
    }
    if (length) {
      used += (size_t) snprintf(to + used, size - used, "%s", instead);
      at += length;
    } else {
      to[used++] = *at++;
    }
  }
  to[used] = '\0';
}

/* The function that a call's text names: its first word that one of the libraries could have. */
static void function_of(char *to, size_t size, const char *call) {
  static const char *const prefixes[] = {"memcached", "libmemcached_", "hashkit_", "libhashkit_"};
  size_t length;
  for (const char *word = call; *word; word += length ? length : 1) {
    length = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    for (size_t n = 0; n < COUNT(prefixes); n++)
      if (!strncmp(word, prefixes[n], strlen(prefixes[n]))) {
        snprintf(to, size, "%.*s", (int) length, word);
        return;
      }
  }
  snprintf(to, size, "%s", call);
}

void trace_line(const char *call, const char *format, ...) {
  char answer[LINE_MAX_BYTES], line[LINE_MAX_BYTES], function[64], plain_call[LINE_MAX_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(answer, sizeof answer, format, arguments);
  va_end(arguments);
  function_of(function, sizeof function, call);
  normalise(line, sizeof line, answer);
  normalise(plain_call, sizeof plain_call, call);
  for (char *at = line; *at; at++)
    if (*at == '\n' || *at == '\t' || *at == '\r')
      *at = ' ';
  printf("%s\t%s\t%s\t%s\n", scenario, function, plain_call, line);
  fflush(stdout);
}

const char *errors_of(const memcached_st *memc) {
  static char text[LINE_MAX_BYTES / 2];
  if (!memc)
    return "no handle";
  const char *message = memcached_last_error_message(memc);
  snprintf(text, sizeof text, "last %s, errno %d, %s", rc_name(memcached_last_error(memc)),
           memcached_last_error_errno(memc), message ? message : "(null)");
  return text;
}

memcached_return_t trace_rc(const memcached_st *memc, const char *call, memcached_return_t rc) {
  trace_line(call, "%s; %s", rc_name(rc), errors_of(memc));
  return rc;
}

unsigned long long trace_number(const char *call, unsigned long long number) {
  trace_line(call, "%llu", number);
  return number;
}

const char *trace_text(const char *call, const char *text) {
  if (text)
    trace_line(call, "\"%s\"", text);
  else
    trace_line(call, "null");
  return text;
}

const void *trace_pointer(const char *call, const void *pointer) {
  trace_line(call, "%s", pointer ? "pointer" : "null");
  return pointer;
}

void trace_value(const memcached_st *memc, const char *call, const char *value, size_t length, uint32_t flags,
                 memcached_return_t rc) {
  char *text = quoted(value, length);
  /* Callers may rely on the byte after the value. */
  bool terminated = !value || value[length] == '\0';
  trace_line(call, "%s, %s%s, length %zu, flags %u; %s", rc_name(rc), text, terminated ? "" : " NOT TERMINATED",
             length, flags, errors_of(memc));
  free(text);
}

void trace_result(const memcached_st *memc, const char *call, const memcached_result_st *result,
                  memcached_return_t rc) {
  if (!result) {
    trace_line(call, "%s, no result; %s", rc_name(rc), errors_of(memc));
    return;
  }
  char *key = quoted(memcached_result_key_value(result), memcached_result_key_length(result));
  char *value = quoted(memcached_result_value(result), memcached_result_length(result));
  trace_line(call, "%s, key %s, value %s, length %zu, flags %u, cas #%u; %s", rc_name(rc), key, value,
             memcached_result_length(result), memcached_result_flags(result), cas_number(memcached_result_cas(result)),
             errors_of(memc));
  free(key);
  free(value);
}

void trace_server(const char *call, const memcached_instance_st *server, memcached_return_t rc) {
  if (server)
    trace_line(call, "%s:%u", memcached_server_name(server), memcached_server_port(server));
  else
    trace_line(call, "none, %s", rc_name(rc));
}

unsigned cas_number(uint64_t cas) {
  if (cas == 0)
    return 0;
  for (unsigned n = 0; n < cas_count; n++)
    if (cas_seen[n] == cas)
      return n + 1;
  if (cas_count == CAS_MAX) {
    fprintf(stderr, "more than %d CAS values\n", CAS_MAX);
    exit(2);
  }
  cas_seen[cas_count++] = cas;
  return cas_count;
}

char *quoted(const char *bytes, size_t length) {
  if (!bytes)
    return strdup("null");
  char *text = malloc(length > SHOWN_MAX ? 64 : 4 * length + 3), *to = text;
  if (length > SHOWN_MAX) {
    uint32_t sum = 2166136261u;
    for (size_t n = 0; n < length; n++)
      sum = (sum ^ (unsigned char) bytes[n]) * 16777619u;
    sprintf(text, "%zu bytes of sum %08x", length, sum);
    return text;
  }
  *to++ = '"';
  for (size_t n = 0; n < length; n++)
    if (isprint((unsigned char) bytes[n]))
      *to++ = bytes[n];
    else
      to += sprintf(to, "\\x%02x", (unsigned char) bytes[n]);
  strcpy(to, "\"");
  return text;
}

static const char *const rc_names[MEMCACHED_MAXIMUM_RETURN] = {
#define NAMED(rc) [MEMCACHED_##rc] = #rc
    NAMED(SUCCESS), NAMED(FAILURE), NAMED(HOST_LOOKUP_FAILURE), NAMED(CONNECTION_FAILURE),
    NAMED(CONNECTION_BIND_FAILURE), NAMED(WRITE_FAILURE), NAMED(READ_FAILURE), NAMED(UNKNOWN_READ_FAILURE),
    NAMED(PROTOCOL_ERROR), NAMED(CLIENT_ERROR), NAMED(SERVER_ERROR), NAMED(ERROR), NAMED(DATA_EXISTS),
    NAMED(DATA_DOES_NOT_EXIST), NAMED(NOTSTORED), NAMED(STORED), NAMED(NOTFOUND), NAMED(MEMORY_ALLOCATION_FAILURE),
    NAMED(PARTIAL_READ), NAMED(SOME_ERRORS), NAMED(NO_SERVERS), NAMED(END), NAMED(DELETED), NAMED(VALUE), NAMED(STAT),
    NAMED(ITEM), NAMED(ERRNO), NAMED(FAIL_UNIX_SOCKET), NAMED(NOT_SUPPORTED), NAMED(NO_KEY_PROVIDED),
    NAMED(FETCH_NOTFINISHED), NAMED(TIMEOUT), NAMED(BUFFERED), NAMED(BAD_KEY_PROVIDED), NAMED(INVALID_HOST_PROTOCOL),
    NAMED(SERVER_MARKED_DEAD), NAMED(UNKNOWN_STAT_KEY), NAMED(E2BIG), NAMED(INVALID_ARGUMENTS), NAMED(KEY_TOO_BIG),
    NAMED(AUTH_PROBLEM), NAMED(AUTH_FAILURE), NAMED(AUTH_CONTINUE), NAMED(PARSE_ERROR), NAMED(PARSE_USER_ERROR),
    NAMED(DEPRECATED), NAMED(IN_PROGRESS), NAMED(SERVER_TEMPORARILY_DISABLED),
    NAMED(SERVER_MEMORY_ALLOCATION_FAILURE),
#undef NAMED
};

const char *rc_name(memcached_return_t rc) {
  static char unknown[32];
  if ((unsigned) rc < MEMCACHED_MAXIMUM_RETURN)
    return rc_names[rc];
  snprintf(unknown, sizeof unknown, "code %u", (unsigned) rc);
  return unknown;
}

static pid_t child;

bool trace_fork(void) {
  fflush(NULL);
  child = fork();
  if (child < 0) {
    perror("fork");
    exit(2);
  }
  if (child == 0)
    alarm(CHILD_TIME_MAX_S);
  return child == 0;
}

void trace_exit(void) {
  fflush(NULL);
  _exit(0);
}

void trace_end(const char *what, int status) {
  if (WIFSIGNALED(status))
    trace_line(what, "crashed by signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0)
    trace_line(what, "ended with status %d", WEXITSTATUS(status));
  else
    trace_line(what, "ended");
}

void trace_wait(const char *statement) {
  int status = 0;
  waitpid(child, &status, 0);
  trace_end(statement, status);
}
