// A member of the restart benchmark: writes down when it was exec'd, before anything else, then becomes the
// program in its arguments, or waits to be killed. The same program under Muster and under torchrun, so that
// "the member's exec" is one definition for both.
//
// BENCH_LOG names a file that all nodes share; each start appends one line to it in one write:
//   exec RANK CLOCK_REALTIME-in-ns
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char* Required(const char* name) {
  const char* value = getenv(name);
  if (value == NULL) {
    fprintf(stderr, "bench_member: %s is not set\n", name);
    exit(2);
  }
  return value;
}

int main(int argc, char** argv) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const char* path = Required("BENCH_LOG");
  const int log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (log < 0) {
    perror(path);
    return 2;
  }
  char line[128];
  const int size = snprintf(line, sizeof(line), "exec %s %lld\n", Required("RANK"),
                            now.tv_sec * 1000000000LL + now.tv_nsec);
  if (write(log, line, (size_t)size) != size) {
    perror(path);
    return 2;
  }
  if (argc > 1) {
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
  }
  for (;;) pause();
}
