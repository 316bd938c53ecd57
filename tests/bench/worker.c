// The program of the overhead benchmark: a fixed amount of work in steps, each told to Muster where there is one. The
// same program under Muster and under plain srun.
//   bench_worker STEPS
// Prints the CPU time that the steps took, in milliseconds, and when they began and ended (CLOCK_MONOTONIC, ns).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/muster.h"

enum { kNumbers = 8192, kRounds = 400 };

// A few milliseconds in the first-level cache, without system calls.
static uint32_t Compute(uint32_t seed) {
  static uint32_t numbers[kNumbers];
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kNumbers; ++i) {
      seed = seed * 1664525U + 1013904223U;
      numbers[i] ^= seed;
    }
  }
  return numbers[seed % kNumbers];
}

static long long Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char** argv) {
  const long steps = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
  if (steps <= 0) {
    fprintf(stderr, "usage: bench_worker STEPS\n");
    return 2;
  }
  muster_handle* muster = NULL;
  const int opened = muster_open(&muster);
  if (opened != MUSTER_OK && opened != MUSTER_E_NO_GANG) {
    fprintf(stderr, "bench_worker: %s\n", muster_last_error(muster));
    return 1;
  }
  struct timespec begin;
  struct timespec end;
  uint32_t value = 1;
  const long long began = Now();
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  for (long step = 0; step < steps; ++step) {
    value = Compute(value);
    if (opened == MUSTER_OK && muster_step(muster, (uint64_t)step + 1, NULL) != MUSTER_OK) {
      fprintf(stderr, "bench_worker: %s\n", muster_last_error(muster));
      return 1;
    }
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  const long long ended = Now();
  const double ms = 1e3 * (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  printf("%.3f %lld %lld %u\n", ms, began, ended, value & 1U);
  if (opened == MUSTER_OK) muster_close(muster);
  return 0;
}
