// Prints how libmemcached parses configuration strings: those of the recorded text given as argument, in lines that
// start with "> ", where \t, \n and \0 stand for these bytes. For each string: the code and the text of
// libmemcached_check_configuration(), and the settings of memcached()'s handle that differ from the defaults. `cargo
// xtask libmemcached` compares it with the recorded text, and a test of fabcache-c compares the recorded text with the
// library's own.
#include <libmemcached-1.0/memcached.h>

#include <stdio.h>
#include <string.h>

static size_t unescape(char *out, const char *line) {
  size_t length = 0;
  for (; *line != '\0'; line++) {
    char next = *line == '\\' ? line[1] : ' ';
    switch (next) {
    case 't': out[length++] = '\t'; line++; break;
    case 'n': out[length++] = '\n'; line++; break;
    case '0': out[length++] = '\0'; line++; break;
    default: out[length++] = *line;
    }
  }
  return length;
}

// Without the addresses of handles and the positions in libmemcached's sources.
static void print_plain(const char *text) {
  while (*text != '\0') {
    if (strncmp(text, "(0x", 3) == 0) {
      text = strchr(text, ')') + 2;
    } else if (strncmp(text, " -> ./", 6) == 0) {
      text += 4 + strcspn(text + 4, " ");
    } else {
      putchar(*text++);
    }
  }
  putchar('\n');
}

static void print_handle(const memcached_st *handle, const memcached_st *fresh) {
  printf("  hosts");
  for (uint32_t i = 0; i < memcached_server_count(handle); i++) {
    const memcached_instance_st *server = memcached_server_instance_by_position(handle, i);
    printf(" %s:%d:%s", memcached_server_name(server), memcached_server_port(server), memcached_server_type(server));
  }
  printf("\n  behaviors");
  for (int behavior = 0; behavior < MEMCACHED_BEHAVIOR_MAX; behavior++) {
    // With servers, libmemcached reads the buffer sizes from the first one's socket.
    if ((behavior == MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE || behavior == MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE)
        && memcached_server_count(handle) > 0) {
      continue;
    }
    if (behavior == MEMCACHED_BEHAVIOR_USER_DATA) {
      continue;
    }
    unsigned long long value = memcached_behavior_get((memcached_st *)handle, behavior);
    if (value != memcached_behavior_get((memcached_st *)fresh, behavior)) {
      printf(" %s=%llu", libmemcached_string_behavior(behavior), value);
    }
  }
  const char *name = memcached_callback_get((memcached_st *)handle, MEMCACHED_CALLBACK_NAMESPACE, NULL);
  printf("\n  namespace %s, pool %u to %u, weighted %d, fetching version %d\n", name == NULL ? "none" : name,
         handle->configure.initial_pool_size, handle->configure.max_pool_size, handle->ketama.weighted_,
         handle->flags.is_fetching_version);
}

int main(int argc, char **argv) {
  FILE *strings = argc == 2 ? fopen(argv[1], "r") : NULL;
  if (strings == NULL) {
    fprintf(stderr, "usage: configuration FILE\n");
    return 2;
  }
  memcached_st *fresh = memcached_create(NULL);
  char line[4096];
  while (fgets(line, sizeof line, strings) != NULL) {
    if (strncmp(line, "> ", 2) != 0) {
      continue;
    }
    line[strcspn(line, "\n")] = '\0';
    char string[4096];
    size_t length = unescape(string, line + 2);
    char error[2048] = "";
    memcached_return_t rc = libmemcached_check_configuration(string, length, error, sizeof error);
    printf("%s\n%d ", line, rc);
    print_plain(error);
    memcached_st *handle = memcached(string, length);
    if (handle == NULL) {
      printf("  no handle\n");
    } else {
      print_handle(handle, fresh);
      memcached_free(handle);
    }
  }
  memcached_free(fresh);
  fclose(strings);
  return 0;
}
