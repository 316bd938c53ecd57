// muster-files: checkpoints for a program that knows nothing of Muster (--gang=files=yes). Started by the supervisor for
// each generation, as the user, beside the program: lays out the newest checkpoint before the program starts, then saves
// what it closes. wire/files_protocol.h says how it is called.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "client/files/directory.h"
#include "client/files/saving_member.h"
#include "client/files/watcher.h"
#include "client/muster.h"
#include "wire/files_protocol.h"

namespace {

namespace files = muster::files;
namespace wire = muster::wire;

constexpr int kNiceness = 10;  // the program's own work goes first
constexpr auto kCorruptPatience = std::chrono::seconds(30);

// An end that nobody reads is no reason to stop.
void Say(const std::string& sentence) {
  const std::string line =
      fmt::format("muster: {}\n", std::string_view(sentence).substr(0, wire::kMaxFilesSentence - 16));
  (void)send(wire::kFilesControl, line.data(), line.size(), MSG_NOSIGNAL);
}

void Answer(char what, const std::string& text) {
  const std::string answer = what + text.substr(0, wire::kMaxFilesAnswer - 2);
  // At most PIPE_BUF bytes into an empty pipe: whole or not at all.
  (void)!write(wire::kFilesReadyPipe, answer.data(), answer.size());
  close(wire::kFilesReadyPipe);
}

enum class Told { kNothing, kDrain, kEnd };

// Waits for the supervisor, or for something in the directory.
Told Wait(int events, int milliseconds) {
  pollfd waiting[] = {{wire::kFilesControl, POLLIN, 0}, {events, POLLIN, 0}};
  if (poll(waiting, 2, milliseconds) <= 0 || waiting[0].revents == 0) return Told::kNothing;
  char said = 0;
  if (recv(wire::kFilesControl, &said, 1, MSG_DONTWAIT) <= 0) return Told::kEnd;
  return said == wire::kFilesDrain ? Told::kDrain : Told::kNothing;
}

int Serve(const std::string& base, const std::string& prefix, const std::string& suffix) {
  const auto fail = [](const std::string& why) {
    Answer(wire::kFilesFailed, why);
    return 1;
  };
  const std::string name = prefix + suffix;
  files::RemoveLeftBehind(base, prefix, name);
  const auto own = files::OpenOwn(base, name);
  if (!own) return fail(own.error().message);
  const int top = own->fd.get();
  if (muster::Status status = files::Empty(top); !status) return fail(status.error().message);

  muster_handle* opened = nullptr;
  if (muster_open(&opened) != MUSTER_OK) return fail(muster_last_error(nullptr));
  const files::Handle m(opened);
  int status = MUSTER_OK;
  const auto restored = files::RestoreDirectory(m.get(), top, &status);
  if (!restored) {
    // Muster starts the gang again from the checkpoint before: this generation is about to be stopped.
    const auto until = std::chrono::steady_clock::now() + kCorruptPatience;
    while (status == MUSTER_E_CORRUPT && std::chrono::steady_clock::now() < until) {
      constexpr int kPauseMs = 200;
      (void)muster_committed(m.get());
      if (Wait(-1, kPauseMs) == Told::kEnd) return 1;
    }
    return fail(fmt::format("the checkpoint of step {} cannot be laid out in {}: {}",
                            muster_restore_step(m.get()), own->path, restored.error().message));
  }
  files::Watcher watcher(m.get(), top, Say);
  if (muster::Status begun = watcher.Begin(*restored, own->path); !begun) return fail(begun.error().message);
  Answer(wire::kFilesReady, own->path);
  setpriority(PRIO_PROCESS, 0, kNiceness);

  Told told = Told::kNothing;
  while (told == Told::kNothing) {
    told = Wait(watcher.fd(), watcher.PauseMs());
    watcher.Advance();
  }
  if (told == Told::kEnd) return 0;
  watcher.Drain();
  while (!watcher.Drained() && Wait(watcher.fd(), watcher.PauseMs()) != Told::kEnd) watcher.Advance();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_NAME, "muster-files");
  // Of signals that are meant for the program nothing comes here; Slurm may send them to all processes of a task.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.size() == 4 && words[0] == "serve") return Serve(words[1], words[2], words[3]);
  if (words.size() == 3 && words[0] == "remove") return files::RemoveOwn(words[1], words[2]) ? 0 : 1;
  fmt::print(stderr, "muster-files is started by Muster, for --gang=files=yes\n");
  return 2;
}
