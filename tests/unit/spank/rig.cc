#include "tests/unit/spank/rig.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace muster::supervisor {
namespace {

constexpr uint8_t kToken[wire::kTokenBytes] = {7, 1, 7};

int64_t Now() {
  return MonotonicMs();
}

std::string ReadUntil(int fd, const std::string& text) {
  std::string seen;
  const int64_t end = Now() + Rig::kPatience.count();
  while (text.empty() || seen.find(text) == std::string::npos) {
    pollfd waiting = {fd, POLLIN, 0};
    const int64_t left = end - Now();
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) <= 0) break;
    char bytes[65536];
    const ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got <= 0) break;
    seen.append(bytes, static_cast<size_t>(got));
  }
  return seen;
}

Host HostOfThisProcess() {
  Host host;
  host.set_environment = [](void*, const char* key, const char* value) { return setenv(key, value, 1) == 0; };
  host.default_environment = [](void*, const char* key, const char* value) {
    return setenv(key, value, 0) == 0;
  };
  host.unset_environment = [](void*, const char* key) { return unsetenv(key) == 0; };
  host.log = [](void*, const char*) {};
  host.get_environment = [](void*, const char* key, char* value, size_t size) {
    const char* found = getenv(key);
    if (found == nullptr || strlen(found) >= size) return false;
    strcpy(value, found);
    return true;
  };
  return host;
}

}  // namespace

bool IsAlive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  if (!std::getline(file, stat)) return false;
  const char state = stat[stat.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

bool Until(const std::function<bool()>& condition) {
  const int64_t end = Now() + Rig::kPatience.count();
  while (!condition()) {
    if (Now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Rig::Rig() {
  std::string name = std::filesystem::temp_directory_path() / "muster-spank-XXXXXX";
  if (mkdtemp(name.data()) != nullptr) directory_ = name;
  socket_path_ = directory_ + "/musterd.sock";
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path_.c_str());
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_.get(), 8) != 0) {
    ADD_FAILURE() << "no socket at " << socket_path_;
  }
}

Rig::~Rig() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Rig::Close() {
  listener_.reset();
  std::filesystem::remove(socket_path_);
}

wire::SupervisorHello Rig::Launch() {
  std::array<std::array<int, 2>, 3> pipes{};
  for (auto& ends : pipes) {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) ADD_FAILURE() << "pipe";
  }
  const pid_t test = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(99);
    dup2(pipes[0][0], 0);
    dup2(pipes[1][1], 1);
    dup2(pipes[2][1], 2);
    in_task();
    const UniqueFd root(open("/", O_PATH | O_CLOEXEC));
    const UniqueFd proc(open("/proc", O_PATH | O_CLOEXEC));
    const UniqueFd groups(open("/sys/fs/cgroup", O_PATH | O_CLOEXEC));
    enter();
    settings.socket_path = socket_path_.c_str();
    settings.root_fd = root.get();
    settings.proc_fd = proc.get();
    settings.cgroups_fd = groups.get();
    settings.identity.hello.supervisor_pid = static_cast<uint32_t>(getpid());
    UniqueFd socket = Connect(settings.root_fd, settings.socket_path);
    SendHello(socket.get(), settings.identity, {});
    {
      Supervisor supervisor(settings, HostOfThisProcess());
      supervisor.Run(std::move(socket));
    }
    if (const char* program = getenv("PROGRAM"); program != nullptr) {
      std::istringstream line(program);
      std::vector<std::string> words{std::istream_iterator<std::string>(line), {}};
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
    }
    const char* script = getenv("SCRIPT");
    if (script != nullptr && script[0] != '\0') execl("/bin/sh", "sh", "-c", script, nullptr);
    _exit(127);
  }
  close(pipes[0][0]);
  close(pipes[1][1]);
  close(pipes[2][1]);
  to_stdin.reset(pipes[0][1]);
  from_stdout.reset(pipes[1][0]);
  from_stderr.reset(pipes[2][0]);
  return Accept();
}

wire::SupervisorHello Rig::Accept() {
  pollfd waiting = {listener_.get(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(kPatience.count())) != 1) {
    ADD_FAILURE() << "the supervisor does not connect";
    return {};
  }
  connection.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return Expect<wire::SupervisorHello>(wire::Type::kSupervisorHello);
}

void Rig::Send(const void* bytes, size_t size, int fd) {
  iovec part = {const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* passed = CMSG_FIRSTHDR(&message);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(passed), &fd, sizeof(fd));
  }
  EXPECT_EQ(sendmsg(connection.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(size)) << strerror(errno);
}

void Rig::Welcome(uint32_t lease_ms, uint32_t reconnect_ms, uint32_t unkillable_ms) {
  wire::Welcome body{};
  wire::SetHeader(&body, wire::Type::kWelcome);
  memcpy(body.token, kToken, sizeof(kToken));
  body.lease_ms = lease_ms;
  body.reconnect_ms = reconnect_ms;
  body.unkillable_ms = unkillable_ms;
  Send(&body, sizeof(body));
}

void Rig::Start(uint64_t generation, const std::string& script, const std::vector<std::string>& more) {
  std::string block = "SCRIPT=" + script + '\0';
  for (const std::string& entry : more) block += entry + '\0';
  const UniqueFd memory(memfd_create("environment", MFD_CLOEXEC));
  EXPECT_EQ(write(memory.get(), block.data(), block.size()), static_cast<ssize_t>(block.size()));
  wire::Start body{};
  wire::SetHeader(&body, wire::Type::kStart);
  body.generation = generation;
  body.environment_bytes = static_cast<uint32_t>(block.size());
  Send(&body, sizeof(body), memory.get());
}

void Rig::Stop(uint64_t generation, uint32_t last_words_ms, int signal, uint32_t after_ms) {
  wire::Stop body{};
  wire::SetHeader(&body, wire::Type::kStop);
  body.generation = generation;
  body.last_words_ms = last_words_ms;
  body.signal = static_cast<uint32_t>(signal);
  body.signal_after_ms = after_ms;
  Send(&body, sizeof(body));
}

void Rig::Finish(wire::FinishAs as, uint32_t code) {
  wire::Finish body{};
  wire::SetHeader(&body, wire::Type::kFinish);
  body.as = static_cast<uint32_t>(as);
  body.code = code;
  Send(&body, sizeof(body));
}

std::optional<Packet> Rig::Next(std::chrono::milliseconds patience) {
  pollfd waiting = {connection.get(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(patience.count())) != 1) return std::nullopt;
  std::string bytes(wire::kMaxMessage, '\0');
  const ssize_t got = recv(connection.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) return std::nullopt;
  bytes.resize(static_cast<size_t>(got));
  wire::Header header{};
  EXPECT_EQ(wire::CheckHeader(bytes.data(), bytes.size(), &header), wire::Check::kOk);
  return Packet{static_cast<wire::Type>(header.type), bytes};
}

Packet Rig::ExpectPacket(wire::Type type) {
  std::optional<Packet> packet = Next();
  if (!packet) {
    ADD_FAILURE() << "no packet, expected type " << static_cast<int>(type);
    return {};
  }
  EXPECT_EQ(static_cast<int>(packet->type), static_cast<int>(type));
  return packet->type == type ? *packet : Packet{type, {}};
}

pid_t Rig::ExpectExecuted(uint64_t generation) {
  const auto executed = Expect<wire::Executed>(wire::Type::kExecuted);
  EXPECT_EQ(executed.generation, generation);
  return executed.pid;
}

int Rig::Wait() {
  int status = -1;
  const bool ended = Until([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  EXPECT_TRUE(ended) << "the task does not end";
  if (!ended) return -1;
  pid_ = -1;
  return status;
}

std::string Rig::ReadStdout(const std::string& text) {
  return ReadUntil(from_stdout.get(), text);
}
std::string Rig::ReadStderr(const std::string& text) {
  return ReadUntil(from_stderr.get(), text);
}

}  // namespace muster::supervisor
