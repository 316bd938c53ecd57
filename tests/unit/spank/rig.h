// A musterd of the test's own at one end, a real supervisor with real children at the other.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/supervisor.h"
#include "wire/wire.h"

namespace muster::supervisor {

// A packet as the supervisor sent it.
struct Packet {
  wire::Type type{};
  std::string bytes;

  template <typename Body>
  [[nodiscard]] Body As() const {
    Body body{};
    wire::ReadBody(bytes.data(), bytes.size(), &body);
    return body;
  }
  // What follows a body of this type.
  template <typename Body>
  [[nodiscard]] std::string Tail() const {
    return bytes.substr(sizeof(Body));
  }
};

class Rig {
 public:
  static constexpr std::chrono::milliseconds kPatience{60'000};

  Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  // Leaves no process and no file.
  ~Rig();

  // To be changed before Launch.
  Settings settings;
  std::function<void()> in_task = [] {};  // runs in the task before the supervisor takes over
  std::function<void()> enter = [] {};    // the same, when it knows the host: to go into a container

  // Starts the task: stdin, stdout and stderr are pipes to the members below. Accepts its connection and
  // reads the hello.
  wire::SupervisorHello Launch();
  void Welcome(uint32_t lease_ms = 0, uint32_t reconnect_ms = 30'000, uint32_t unkillable_ms = 60'000);
  // Starts a generation whose program is `sh -c script`, or the words of PROGRAM; `more` are further entries of the environment.
  void Start(uint64_t generation, const std::string& script, const std::vector<std::string>& more = {});
  void Stop(uint64_t generation, uint32_t last_words_ms = 0, int signal = SIGTERM, uint32_t after_ms = 0);
  void Finish(wire::FinishAs as = wire::FinishAs::kOwnStatus, uint32_t code = 0);
  void Send(const void* bytes, size_t size, int fd = -1);

  // The next packet; none when `patience` passes or the supervisor closes.
  std::optional<Packet> Next(std::chrono::milliseconds patience = kPatience);
  // The next packet, which must be of this type.
  template <typename Body>
  Body Expect(wire::Type type) {
    return ExpectPacket(type).As<Body>();
  }
  Packet ExpectPacket(wire::Type type);
  // Executed, for a Start.
  pid_t ExpectExecuted(uint64_t generation);

  void Disconnect() { connection.reset(); }
  // Takes no more connections: the socket's file is gone.
  void Close();
  // Takes the supervisor's next connection and reads its hello.
  wire::SupervisorHello Accept();

  // The task's exit status, as waitpid gives it; -1 when it does not end.
  int Wait();
  // Everything up to and with `text` on stdout (or to its end).
  std::string ReadStdout(const std::string& text);
  std::string ReadStderr(const std::string& text);

  [[nodiscard]] pid_t supervisor() const { return pid_; }
  UniqueFd connection;
  UniqueFd to_stdin;
  UniqueFd from_stdout;
  UniqueFd from_stderr;

 private:
  std::string directory_;
  std::string socket_path_;
  UniqueFd listener_;
  pid_t pid_ = -1;
};

// Whether a process exists and is not a zombie.
bool IsAlive(pid_t pid);
// Waits for a condition; false when it does not come.
bool Until(const std::function<bool()>& condition);

}  // namespace muster::supervisor
