// Stands in for muster-files (wire/files_protocol.h) in files_test.cc: writes what happens to it into BASE/log, and does as
// BASE/how says: "fail", "die", "wait" (drains when BASE/go is there), or nothing.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "wire/files_protocol.h"

namespace wire = muster::wire;

namespace {

bool Is(const std::string& base, const std::string& how) {
  std::string text;
  std::ifstream(base + "/how") >> text;
  return text == how;
}

void Answer(char what, const std::string& text) {
  const std::string answer = what + text;
  (void)!write(wire::kFilesReadyPipe, answer.data(), answer.size());
  close(wire::kFilesReadyPipe);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string command = argv[1];
  const std::string base = argv[2];
  std::ofstream log(base + "/log", std::ios::app);
  size_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    open += std::filesystem::exists(std::filesystem::symlink_status(entry)) ? 1 : 0;
  const char* socket = std::getenv("MUSTER_SOCKET");
  log << command << " fds=" << open << " cwd=" << std::filesystem::current_path() << " pid=" << getpid()
      << " group=" << (getpgrp() == getpid()) << " socket=" << (socket != nullptr ? socket : "") << std::endl;
  if (command == "remove") return 0;
  if (Is(base, "fail")) {
    Answer(wire::kFilesFailed, "no room on the disk");
    return 1;
  }
  if (Is(base, "die")) return 1;
  Answer(wire::kFilesReady, base + "/here");
  for (;;) {
    pollfd waiting = {wire::kFilesControl, POLLIN, 0};
    poll(&waiting, 1, -1);
    char said = 0;
    if (recv(wire::kFilesControl, &said, 1, 0) <= 0) return 0;
    log << "told " << said << std::endl;
    if (said != wire::kFilesDrain) continue;
    const std::string sentence = "muster: saved\n";
    send(wire::kFilesControl, sentence.data(), sentence.size(), MSG_NOSIGNAL);
    while (Is(base, "wait") && !std::filesystem::exists(base + "/go")) poll(nullptr, 0, 5);
    return 0;
  }
}
