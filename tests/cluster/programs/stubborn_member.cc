// A member that leaves processes behind that are hard to get rid of, and looks for those of older generations.
//
//   stubborn_member DIRECTORY BEHAVIOUR DEATH ROUNDS
//
// The first thing it does is to look through its node's /proc for processes of this gang with another generation in
// their environment; what it finds goes into DIRECTORY/alive.*. In the generations 1 to ROUNDS one member ends by
// DEATH (exit or kill) when all have behaved; the generation after that ends well. Each generation reports progress, so
// that the gang is not given up for making none.
//
// BEHAVIOUR: plain     nothing
//            helpers   children that ignore SIGTERM, called setsid, forked twice, or all of it, some of them busy
//            forker    a child that forks and dies without end, so that its pid is never the same for long
//            stopped   stops itself by SIGSTOP (all but the one that ends)
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "client/muster.h"

namespace {

std::string directory;
std::string gang;
long generation = 0;
int rank = 0;
int world = 0;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Write(const std::string& name, const std::string& text) {
  const std::string path = directory + "/" + name;
  std::ofstream(path + ".part") << text;
  std::rename((path + ".part").c_str(), path.c_str());
}

bool Exists(const std::string& name) {
  struct stat info {};
  return ::stat((directory + "/" + name).c_str(), &info) == 0;
}

void Pause() {
  ::usleep(2000);
}

// The value of a variable in a block of NUL-terminated strings, "" when it is not there.
std::string ValueIn(const std::string& block, const std::string& key) {
  const std::string wanted = std::string(1, '\0') + key + "=";
  const size_t at = (std::string(1, '\0') + block).find(wanted);
  if (at == std::string::npos) return "";
  const size_t begin = at + wanted.size() - 1;
  return block.substr(begin, block.find('\0', begin) - begin);
}

// Processes of this gang and of another generation that run on this node. A zombie runs no more.
void LookForOlderGenerations() {
  DIR* proc = ::opendir("/proc");
  int found = 0;
  while (const dirent* entry = ::readdir(proc)) {
    const long pid = std::strtol(entry->d_name, nullptr, 10);
    if (pid <= 0) continue;
    const std::string at = "/proc/" + std::to_string(pid);
    const std::string environment = Read(at + "/environ");
    if (ValueIn(environment, "MUSTER_GANG") != gang) continue;
    const std::string other = ValueIn(environment, "MUSTER_GENERATION");
    if (other == std::to_string(generation)) continue;
    const std::string stat = Read(at + "/stat");
    const size_t state = stat.rfind(')');
    if (state == std::string::npos || stat[state + 2] == 'Z' || stat[state + 2] == 'X') continue;
    Write("alive." + std::to_string(generation) + "." + std::to_string(rank) + "." + std::to_string(++found),
          "generation " + std::to_string(generation) + ", rank " + std::to_string(rank) + " found pid " +
              std::to_string(pid) + " of generation " + other + ": " + stat + "\n");
  }
  ::closedir(proc);
}

void IgnoreEverything() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
}

[[noreturn]] void Linger(bool busy) {
  for (unsigned long turns = 1;; ++turns) {
    if (busy && turns % 100'000 != 0) {
      asm volatile("");  // kept by the optimiser
    } else {
      ::usleep(busy ? 1000 : 100'000);
    }
  }
}

// Every kind of helper: bit 0 ignores all signals, bit 1 leads a session of its own, bit 2 has lost its parent, bit 3
// is busy.
void StartHelper(unsigned kind) {
  if (::fork() != 0) return;
  if ((kind & 4) != 0 && ::fork() != 0) ::_exit(0);
  if ((kind & 2) != 0) ::setsid();
  if ((kind & 1) != 0) IgnoreEverything();
  Linger((kind & 8) != 0);
}

// A chain of processes each of which lives only until it has forked the next one.
void StartForker() {
  if (::fork() != 0) return;
  IgnoreEverything();
  ::signal(SIGCHLD, SIG_DFL);
  ::setsid();
  for (;;) {
    const pid_t child = ::fork();
    if (child > 0) ::_exit(0);
    ::usleep(200);
  }
}

void Behave(const std::string& behaviour, bool victim) {
  if (behaviour == "helpers") {
    for (unsigned kind = 0; kind < 16; kind += 1 + (kind & 8) / 8) StartHelper(kind);
    Write("helpers." + std::to_string(generation) + "." + std::to_string(rank), "");
  }
  if (behaviour == "forker") StartForker();
  if (behaviour == "stopped" && !victim) {
    Write("behaved." + std::to_string(generation) + "." + std::to_string(rank), "");
    ::raise(SIGSTOP);
  }
}

void ReportProgress() {
  muster_handle* handle = nullptr;
  if (muster_open(&handle) != MUSTER_OK) {
    std::fprintf(stderr, "muster_open: %s\n", muster_last_error(nullptr));
    std::exit(3);
  }
  muster_step(handle, static_cast<uint64_t>(generation), nullptr);
  muster_close(handle);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  directory = argv[1];
  const std::string behaviour = argv[2];
  const std::string death = argv[3];
  const long rounds = std::atol(argv[4]);
  gang = ::getenv("MUSTER_GANG");
  generation = std::atol(::getenv("MUSTER_GENERATION"));
  rank = std::atoi(::getenv("RANK"));
  world = std::atoi(::getenv("WORLD_SIZE"));

  LookForOlderGenerations();
  Write("looked." + std::to_string(rank), std::to_string(generation) + "\n");
  if (generation > rounds) return 0;
  if (rank == 0) ReportProgress();
  const int victim = static_cast<int>(generation % world);
  Behave(behaviour, rank == victim);
  Write("behaved." + std::to_string(generation) + "." + std::to_string(rank), "");
  if (rank != victim) {
    for (;;) ::pause();
  }
  for (int other = 0; other < world; ++other) {
    while (!Exists("behaved." + std::to_string(generation) + "." + std::to_string(other))) Pause();
  }
  if (death == "kill") ::raise(SIGKILL);
  return 1;
}
