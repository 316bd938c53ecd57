#include "tests/unit/daemon/daemon_rig.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "tests/unit/daemon/packet_builder.h"

namespace muster {
namespace {

constexpr int kDeadlineMs = 60'000;

Config ConfigOf(const std::string& name, const std::string& address, uint16_t port,
                const std::string& directory, const EngineOptions& engine) {
  Config config;
  config.chunk_bytes = static_cast<int64_t>(engine.chunk_bytes);
  config.store = "dir:" + directory + "/store";
  config.socket = fmt::format("{}/{}.sock", directory, name);
  config.state_dir = fmt::format("{}/{}", directory, name);
  config.listen_address = address;
  config.port = port;
  config.node_name = name;
  config.master_ports_first = 19'000;
  config.master_ports_last = 19'999;
  config.reconnect_ms = kReconnect / std::chrono::milliseconds(1);
  return config;
}

std::shared_ptr<Store> MustOpen(const std::string& url) {
  auto store = OpenStore({.url = url});
  EXPECT_TRUE(store) << store.error().message;
  return *std::move(store);
}

// `config` gets the times.
std::unique_ptr<Beat> MustBeat(const TestBeat& beat, Config* config, Loop& loop) {
  config->beat_ms = beat.times.beat / lease::kMillisecond;
  config->lease_ms = beat.times.lease / lease::kMillisecond;
  config->silence_ms = beat.times.silence / lease::kMillisecond;
  config->reconnect_ms = beat.times.reconnect / lease::kMillisecond;
  std::filesystem::create_directories(config->state_dir);
  auto started = Beat::Start({.times = beat.times,
                              .state_path = config->state_dir + "/beats",
                              .mailbox = loop.mailbox(),
                              .clock = beat.clock,
                              .socket = beat.socket});
  EXPECT_TRUE(started) << started.error().message;
  return *std::move(started);
}

std::map<std::string, std::string> ReadEnvironment(int fd, uint32_t bytes) {
  std::string block(bytes, '\0');
  EXPECT_EQ(::pread(fd, block.data(), block.size(), 0), static_cast<ssize_t>(bytes));
  std::map<std::string, std::string> environment;
  for (size_t at = 0; at < block.size();) {
    const std::string entry(block.c_str() + at);
    const size_t equals = entry.find('=');
    environment[entry.substr(0, equals)] = equals == std::string::npos ? "(unset)" : entry.substr(equals + 1);
    at += entry.size() + 1;
  }
  return environment;
}

}  // namespace

AgentContext TestDaemon::ContextOfAgent(const std::string& name, DialLink dial) {
  AgentContext context{.loop = loop_,
                       .config = config_,
                       .self = name,
                       .door = MUSTER_DOOR,
                       .store = store_,
                       .engine = engine_,
                       .reader = reader_,
                       .dialer = dialer_,
                       .sampler = sampler_,
                       .chores = std::make_shared<Worker>(),
                       .health = health_,
                       .dial = std::move(dial)};
  context.commands = &exchange_;
  context.memory = std::make_shared<MemoryGrants>(0);
  if (!beat_) return context;
  context.beat = beat_.get();
  context.take_over = [this](const GangJob& job, TakeOverRequest request) {
    coordinators_.TakeOver(job, std::move(request));
  };
  context.read_coordinator = [this](const GangJob& job,
                                    std::function<void(std::optional<RecordedCoordinator>)> done) {
    coordinators_.ReadCoordinator(job, std::move(done));
  };
  return context;
}

TestDaemon::TestDaemon(std::string name, std::string address, uint16_t port, const std::string& directory,
                       const EngineOptions& engine, std::shared_ptr<Store> store, const TestLinks& links,
                       const std::optional<TestBeat>& beat, LoopClock& clock)
    : config_(ConfigOf(name, address, port, directory, engine)),
      store_(store ? std::move(store) : MustOpen(config_.store)),
      loop_(clock),
      engine_(store_, engine),
      beat_(beat ? MustBeat(*beat, &config_, loop_) : nullptr),
      coordinators_({loop_, config_, name, store_, &reader_, beat_.get()}),
      health_(loop_, {}, [](const HealthOptions&) { return HealthReport{}; }),
      exchange_(loop_, config_, store_, engine_),
      agent_(ContextOfAgent(name, links.dial)) {
  if (beat) {
    coordinators_.SetAgent([this](const GangJob& gang) { return agent_.CoordinatorOf(gang); },
                           [this](const GangJob& gang) { agent_.CoordinatedHere(gang); });
  }
  listener_ =
      links.listen([this](std::shared_ptr<Link> link) { return coordinators_.Accept(std::move(link)); });
  const Status started = agent_.Start();
  EXPECT_TRUE(started) << started.error().message;
  thread_ = std::thread([this] { loop_.Run(); });
}

TestDaemon::~TestDaemon() {
  loop_.Stop();
  thread_.join();
}

std::string TestSupervisor::Message::Text() const {
  if (type == wire::Type::kReport) return packet.substr(sizeof(wire::Report));
  if (type == wire::Type::kRefused) return packet.substr(sizeof(wire::Refused));
  return "";
}

wire::SupervisorHello StepHello(uint32_t job, uint32_t node, uint32_t nodes) {
  wire::SupervisorHello hello{};
  hello.job_id = job;
  hello.uid = 1000;
  hello.gid = 1000;
  hello.node_id = node;
  hello.node_count = nodes;
  hello.task_count = nodes;
  hello.local_task_count = 1;
  hello.task_id = node;
  return hello;
}

bool TestSupervisor::Join(const std::string& socket, const std::string& nodes, const std::string& options) {
  nodes_ = nodes;
  options_ = options;
  return Hello(socket);
}

bool TestSupervisor::Rejoin(const std::string& socket, wire::MemberState state, uint64_t generation,
                            int wait_status) {
  hello_.reconnecting = 1;
  hello_.state = static_cast<uint32_t>(state);
  hello_.generation = generation;
  hello_.wait_status = wait_status;
  return Hello(socket);
}

bool TestSupervisor::Hello(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  here_.clear();
  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return false;
  hello_.node_list_bytes = static_cast<uint32_t>(nodes_.size());
  hello_.options_bytes = static_cast<uint32_t>(options_.size());
  Send(BuildPacket(hello_, wire::Type::kSupervisorHello, nodes_ + options_));
  const auto answer = Next();
  if (!answer || answer->type != wire::Type::kWelcome) return false;
  std::memcpy(hello_.token, answer->As<wire::Welcome>().token, sizeof hello_.token);
  return true;
}

void TestSupervisor::Executed(uint64_t generation) {
  wire::Executed body{};
  body.generation = generation;
  body.realtime_ns = RealtimeNs();
  Send(BuildPacket(body, wire::Type::kExecuted));
}

void TestSupervisor::Exited(uint64_t generation, int wait_status, const std::string& program,
                            const std::string& stderr_tail) {
  wire::Exited body{};
  body.generation = generation;
  body.pid = 4711;
  body.wait_status = wait_status;
  body.program_bytes = static_cast<uint32_t>(program.size());
  body.stderr_bytes = static_cast<uint32_t>(stderr_tail.size());
  Send(BuildPacket(body, wire::Type::kExited, program + stderr_tail));
}

void TestSupervisor::Stopped(uint64_t generation, uint32_t last_words_ms) {
  wire::Stopped body{};
  body.generation = generation;
  body.last_words_ms = last_words_ms;
  Send(BuildPacket(body, wire::Type::kStopped));
}

void TestSupervisor::LinksTested(uint64_t test, int wait_status, const std::string& text) {
  wire::LinksTested body{};
  body.test = test;
  body.wait_status = wait_status;
  body.text_bytes = static_cast<uint32_t>(text.size());
  Send(BuildPacket(body, wire::Type::kLinksTested, text));
}

void TestSupervisor::Exiting(uint64_t generation) {
  wire::Exiting body{};
  body.generation = generation;
  Send(BuildPacket(body, wire::Type::kExiting));
}

void TestSupervisor::Signalled(uint32_t signal) {
  wire::Signalled body{};
  body.signal = signal;
  Send(BuildPacket(body, wire::Type::kSignalled));
}

void TestSupervisor::Send(const std::string& packet) {
  EXPECT_EQ(::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(packet.size()));
}

bool TestSupervisor::Silent(int milliseconds) {
  pollfd wait{socket_.get(), POLLIN, 0};
  return ::poll(&wait, 1, milliseconds) == 0;
}

bool TestSupervisor::Has(wire::Type type) {
  for (pollfd wait{socket_.get(), POLLIN, 0}; ::poll(&wait, 1, 0) > 0;) {
    auto message = Read();
    if (!message) break;
    if (message->type == wire::Type::kReport) {
      reports += message->Text();
    } else if (!OfBeats(*message)) {
      here_.push_back(*std::move(message));
    }
  }
  return std::any_of(here_.begin(), here_.end(), [type](const Message& one) { return one.type == type; });
}

// Beats come when they come.
bool TestSupervisor::OfBeats(const Message& message) {
  if (message.type == wire::Type::kBeatPage)
    Send(BuildPacket(wire::BeatPageHandover{}, wire::Type::kBeatPageRead));
  return message.type == wire::Type::kBeat || message.type == wire::Type::kBeatPage;
}

std::optional<TestSupervisor::Message> TestSupervisor::Next() {
  if (!here_.empty()) {
    Message first = std::move(here_.front());
    here_.pop_front();
    return first;
  }
  for (;;) {
    if (Silent(kDeadlineMs)) return std::nullopt;
    auto message = Read();
    if (!message || !OfBeats(*message)) return message;
  }
}

std::optional<TestSupervisor::Message> TestSupervisor::Read() {
  Message message;
  message.packet.resize(wire::kMaxMessage);
  iovec io{message.packet.data(), message.packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  if (size <= 0) return std::nullopt;
  message.packet.resize(static_cast<size_t>(size));
  UniqueFd fd;
  if (const cmsghdr* c = CMSG_FIRSTHDR(&header)) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(c), sizeof received);
    fd.reset(received);
  }
  wire::Header checked{};
  EXPECT_EQ(wire::CheckHeader(message.packet.data(), message.packet.size(), &checked), wire::Check::kOk);
  message.type = static_cast<wire::Type>(checked.type);
  if (message.type == wire::Type::kStart) {
    message.environment = ReadEnvironment(fd.get(), message.As<wire::Start>().environment_bytes);
  } else if (message.type == wire::Type::kTestLinks) {
    message.environment = ReadEnvironment(fd.get(), message.As<wire::TestLinks>().environment_bytes);
  }
  return message;
}

std::optional<TestSupervisor::Message> TestSupervisor::Next(wire::Type type) {
  while (auto message = Next()) {
    if (message->type == type) return message;
    if (message->type == wire::Type::kReport) {
      reports += message->Text();
      continue;
    }
    ADD_FAILURE() << "message of type " << static_cast<int>(message->type) << " instead of "
                  << static_cast<int>(type) << ": " << message->Text();
  }
  ADD_FAILURE() << "no message of type " << static_cast<int>(type);
  return std::nullopt;
}

}  // namespace muster
