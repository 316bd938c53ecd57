// What the tests of stack capture look at: a supervisor and its program. hang_target MODE:
//   blocked     two threads that wait in functions of known names
//   supervise PROGRAM ARGUMENT...   runs the program as its child until stdin ends, then kills it and exits
// "ready" on stdout says that the program is where it is meant to be.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

// Not optimised away, and with names of their own.
extern "C" __attribute__((noinline, visibility("default"))) void hang_target_waits_in_main(int fd) {
  char byte = 0;
  while (::read(fd, &byte, 1) < 0) {
  }
  asm volatile("" : : "r"(fd) : "memory");
}

extern "C" __attribute__((noinline, visibility("default"))) void hang_target_waits_in_thread(int fd) {
  char byte = 0;
  while (::read(fd, &byte, 1) < 0) {
  }
  asm volatile("" : : "r"(fd) : "memory");
}

namespace {

int never[2];

void* Thread(void*) {
  (void)!::write(1, "ready\n", 6);
  hang_target_waits_in_thread(never[0]);
  return nullptr;
}

int Blocked() {
  pthread_t thread;
  if (::pipe(never) != 0 || ::pthread_create(&thread, nullptr, Thread, nullptr) != 0) return 1;
  hang_target_waits_in_main(never[0]);
  return 0;
}

int Supervise(char** program) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(program[0], program);
    ::_exit(127);
  }
  char byte = 0;
  while (::read(0, &byte, 1) > 0) {
    if (byte == 'k') ::kill(child, SIGKILL);
  }
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0 : 3;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && ::strcmp(arguments[1], "blocked") == 0) return Blocked();
  if (count > 2 && ::strcmp(arguments[1], "supervise") == 0) return Supervise(arguments + 2);
  return 2;
}
