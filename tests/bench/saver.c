// The member of the checkpoint benchmark: saves and restores a state of one size, and says how long each took.
//   bench_saver BYTES ROUNDS, bench_saver BYTES SECONDS EVERY, bench_saver BYTES ROUNDS changed PERCENT
// The first generation prints for each round "memcpy NS", "save NS", "committed NS" (a copy of the state to memory that is
// mapped already; how long the program was kept by a save; from there until the checkpoint was committed), the first save
// as "first NS", and ends with code 7. The second prints "memory NS" for the restore of the newest checkpoint, which its
// node still has in memory, then for each round "restore NS" for the one before, which it has not (until the shard can be
// read) and "get NS" (the copy out of it), and ends with 0; for the first of these, which takes memory as it finds it,
// "restore_first NS". With EVERY it trains for SECONDS and saves every so many:
// "stall NS" for each save, "elapsed NS" for all. With PERCENT that much of the state, in one piece, changes before each
// save: "digest NS" for the time of a core that the digests of all of it take, "musterd NS" for what its node's musterd
// took of a core for the save, "step N".
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ceph/catalog/xxh3.h"
#include "client/muster.h"

enum { kPage = 4096, kAgain = 7, kPerRound = 2 };

static muster_handle* muster;

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void Check(int status) {
  if (status == MUSTER_OK) return;
  fprintf(stderr, "bench_saver: %s\n", muster_last_error(muster));
  exit(1);
}

static char* Mapped(size_t bytes) {
  char* data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) {
    perror("bench_saver: mmap");
    exit(1);
  }
  return data;
}

// So much free memory is at hand from now on, as on bare metal. Of a virtual machine's the host takes back what is free for a
// few seconds, and to have a GiB again takes seconds: that would be measured, and nothing else.
static void HaveAtHand(size_t bytes) {
  // What is touched is not always what was given back last.
  for (int time = 0; time < 3; ++time) {
    char* data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return;
    madvise(data, bytes, MADV_HUGEPAGE);
    memset(data, 1, bytes);
    munmap(data, bytes);
  }
}

// Every page is another one than in the step before.
static void Train(char* state, size_t bytes, uint64_t step) {
  for (size_t at = 0; at + sizeof(step) <= bytes; at += kPage) memcpy(state + at, &step, sizeof(step));
}

static void Say(const char* what, int64_t since) {
  printf("%s %lld\n", what, (long long)(Now() - since));
  fflush(stdout);
}

static void Save(const char* what, const char* state, size_t bytes, uint64_t step) {
  const int64_t since = Now();
  Check(muster_save_begin(muster, step, bytes));
  Check(muster_save_add(muster, "state", NULL, state, bytes));
  Check(muster_save_commit(muster));
  Say(what, since);
}

static void SaveAndWait(const char* what, const char* state, size_t bytes, uint64_t step) {
  Save(what, state, bytes, step);
  const int64_t since = Now();
  Check(muster_wait(muster, step, -1));
  Say("committed", since);
}

static void SaveRounds(size_t bytes, int rounds) {
  char* state = Mapped(bytes);
  char* copy = Mapped(bytes);
  uint32_t seed = 1;
  for (size_t at = 0; at + sizeof(seed) <= bytes; at += sizeof(seed)) {
    seed = seed * 1664525U + 1013904223U;
    memcpy(state + at, &seed, sizeof(seed));
  }
  uint64_t step = 0;
  // Each staging buffer has a first time.
  for (int i = 0; i < kPerRound; ++i) SaveAndWait("first", state, bytes, ++step);
  for (int round = 0; round < rounds; ++round) {
    Train(state, bytes, ++step);
    const int64_t since = Now();
    memcpy(copy, state, bytes);
    Say("memcpy", since);
    SaveAndWait("save", state, bytes, step);
  }
}

static void RestoreRounds(size_t bytes, int rounds) {
  char* state = Mapped(bytes);
  muster_restore* newest = NULL;
  const int64_t began = Now();
  Check(muster_restore_open(muster, MUSTER_LATEST, &newest));
  Say("memory", began);
  const uint64_t step = muster_restore_open_step(newest);
  Check(muster_restore_get(newest, "state", state, bytes));
  muster_restore_close(newest);
  for (int round = 0; round <= rounds; ++round) {
    muster_restore* restore = NULL;
    if (round > 0) HaveAtHand(bytes + bytes / 2);  // musterd's buffers too
    int64_t since = Now();
    Check(muster_restore_open(muster, step - 1, &restore));
    Say(round > 0 ? "restore" : "restore_first", since);
    since = Now();
    Check(muster_restore_get(restore, "state", state, bytes));
    Say("get", since);
    muster_restore_close(restore);
  }
}

static void TrainAndSave(size_t bytes, int seconds, int every) {
  const int64_t second = 1000000000;
  char* state = Mapped(bytes);
  uint64_t step = 0;
  int saves = 0;
  const int64_t began = Now();
  for (int64_t next = began + every * second; Now() < began + seconds * second;) {
    Train(state, bytes, ++step);
    if (Now() < next) continue;
    next += every * second;
    if (saves++ < kPerRound) HaveAtHand(bytes + bytes / 2);  // the staging buffers are new then
    Save("stall", state, bytes, step);
  }
  Say("elapsed", began);
  if (saves > 0) Check(muster_wait(muster, MUSTER_LATEST, -1));
}

// What the node's musterd has taken of cores so far, in nanoseconds.
static int64_t MusterdTime(void) {
  int64_t ticks = -1;
  DIR* processes = opendir("/proc");
  const struct dirent* entry = NULL;
  while (processes != NULL && (entry = readdir(processes)) != NULL) {
    char path[300];
    char line[512] = "";
    snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
    FILE* file = fopen(path, "re");
    if (file == NULL) continue;
    const char* read = fgets(line, sizeof(line), file);
    fclose(file);
    long long user = 0;
    long long system = 0;
    const char* rest = read != NULL ? strstr(line, " (musterd) ") : NULL;
    if (rest != NULL && sscanf(rest, " (musterd) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld",
                               &user, &system) == 2) {
      ticks = user + system;
      break;
    }
  }
  if (processes != NULL) closedir(processes);
  if (ticks < 0) {
    fprintf(stderr, "bench_saver: there is no musterd here\n");
    exit(1);
  }
  return ticks * (1000000000 / sysconf(_SC_CLK_TCK));
}

static int64_t ThreadTime(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void SaveChanged(size_t bytes, int rounds, int percent) {
  enum { kChunk = 4 << 20, kFull = 3 };
  const size_t piece = bytes / 100 * (size_t)percent;
  char* state = Mapped(bytes);
  for (size_t at = 0; at + sizeof(size_t) <= bytes; at += sizeof(size_t)) {
    const size_t value = at * 0x9e3779b97f4a7c15U;
    memcpy(state + at, &value, sizeof(value));
  }
  uint64_t step = 0;
  for (int round = -kFull; round < rounds; ++round) {
    const size_t from = piece * (size_t)(round + kFull) % (bytes - piece);
    Train(state + from, piece, ++step);
    const int64_t before = MusterdTime();
    Check(muster_save_begin(muster, step, bytes));
    Check(muster_save_add(muster, "state", NULL, state, bytes));
    Check(muster_save_commit(muster));
    Check(muster_wait(muster, step, -1));
    // The first ones are of new memory, and find out what changes.
    if (round < 0) continue;
    printf("musterd %lld\nstep %llu\n", (long long)(MusterdTime() - before), (unsigned long long)step);
    const int64_t since = ThreadTime();
    uint64_t digests = 0;
    for (size_t at = 0; at < bytes; at += kChunk)
      digests ^= XXH3_128bits(state + at, bytes - at < kChunk ? bytes - at : kChunk).low64;
    printf("digest %lld\ndigests %llu\n", (long long)(ThreadTime() - since), (unsigned long long)digests);
  }
}

int main(int argc, char** argv) {
  const long long bytes = argc >= 3 ? strtoll(argv[1], NULL, 10) : 0;
  const int rounds = argc >= 3 ? atoi(argv[2]) : 0;
  const int every = argc == 4 ? atoi(argv[3]) : 0;
  const int percent = argc == 5 && strcmp(argv[3], "changed") == 0 ? atoi(argv[4]) : 0;
  if (bytes < kPage || rounds <= 0 || argc > 5 || (argc == 4 && every <= 0) ||
      (argc == 5 && (percent <= 0 || percent > 50))) {
    fprintf(stderr, "usage: bench_saver BYTES ROUNDS | BYTES SECONDS EVERY | BYTES ROUNDS changed PERCENT\n");
    return 2;
  }
  Check(muster_open(&muster));
  if (percent > 0) {
    SaveChanged((size_t)bytes, rounds, percent);
    muster_close(muster);
    return 0;
  }
  if (every > 0) {
    TrainAndSave((size_t)bytes, rounds, every);
    muster_close(muster);
    return 0;
  }
  const int again = muster_generation(muster) > 1;
  if (again) {
    RestoreRounds((size_t)bytes, rounds);
  } else {
    SaveRounds((size_t)bytes, rounds);
  }
  muster_close(muster);
  return again ? 0 : kAgain;
}
