/* Calls every public function of libmemcached, libmemcachedutil and libhashkit, and prints each result.

   differential             all scenarios
   differential NAME...     these
   differential --list      their names
   differential --providers NAME...  which library each of these functions comes from

   SERVERS names three servers, SCRATCH_DIR a folder; SEED is the seed of the random scenarios. */

#define _GNU_SOURCE
#include "scenarios.h"
#include "servers.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SCENARIO_TIME_MAX_S = 60 };

static const struct {
  const char *name;
  void (*run)(void);
} scenarios[] = {
#define LISTED(name) {#name, name},
    SCENARIOS(LISTED)
#undef LISTED
};

static int list_providers(char **names, int count) {
  for (int n = 0; n < count; n++) {
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, names[n]);
    if (address && dladdr(address, &info))
      printf("%s\t%s\n", names[n], info.dli_fname);
    else
      printf("%s\tnone\n", names[n]);
  }
  return 0;
}

static void run(unsigned n) {
  trace_scenario(scenarios[n].name);
  servers_flush();
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(2);
  }
  if (child == 0) {
    alarm(SCENARIO_TIME_MAX_S);
    scenarios[n].run();
    fflush(NULL);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  trace_end(scenarios[n].name, status);
}

int main(int count, char **words) {
  if (count > 1 && !strcmp(words[1], "--list")) {
    for (unsigned n = 0; n < COUNT(scenarios); n++)
      puts(scenarios[n].name);
    return 0;
  }
  if (count > 1 && !strcmp(words[1], "--providers"))
    return list_providers(words + 2, count - 2);
  signal(SIGPIPE, SIG_IGN);
  servers_read();
  unsigned wanted = 0;
  for (unsigned n = 0; n < COUNT(scenarios); n++) {
    bool chosen = count == 1;
    for (int word = 1; word < count; word++)
      chosen |= !strcmp(words[word], scenarios[n].name);
    if (chosen) {
      run(n);
      wanted++;
    }
  }
  if (count > 1 && wanted != (unsigned) count - 1) {
    fprintf(stderr, "a scenario is unknown (see --list)\n");
    return 2;
  }
  return 0;
}
