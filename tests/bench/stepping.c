// The program of the benchmark of steps: what muster_step costs a member when nothing is asked.
//   bench_stepping BATCHES STEPS
// Prints for each batch the CPU time of a step, in nanoseconds.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/muster.h"

static long long Spent(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char** argv) {
  const long batches = argc == 3 ? strtol(argv[1], NULL, 10) : 0;
  const long steps = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
  if (batches <= 0 || steps <= 0) {
    fprintf(stderr, "usage: bench_stepping BATCHES STEPS\n");
    return 2;
  }
  muster_handle* muster = NULL;
  if (muster_open(&muster) != MUSTER_OK) {
    fprintf(stderr, "bench_stepping: %s\n", muster_last_error(NULL));
    return 1;
  }
  uint64_t step = 0;
  for (long batch = 0; batch < batches; ++batch) {
    muster_wish wish;
    const long long before = Spent();
    for (long i = 0; i < steps; ++i) {
      if (muster_step(muster, ++step, &wish) != MUSTER_OK || wish.save != 0 || wish.exit != 0) {
        fprintf(stderr, "bench_stepping: step %llu: %s\n", (unsigned long long)step, wish.reason);
        return 1;
      }
    }
    printf("%.1f\n", (double)(Spent() - before) / (double)steps);
  }
  muster_close(muster);
  return 0;
}
