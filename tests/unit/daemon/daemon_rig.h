// musterds of two nodes in one process, and supervisors that a test plays itself.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "base/loop.h"
#include "base/worker.h"
#include "ceph/engine/engine.h"
#include "ceph/store/store.h"
#include "daemon/agent/agent.h"
#include "daemon/beat/beat.h"
#include "daemon/config/config.h"
#include "daemon/link/link.h"
#include "daemon/service/checkpoint_exchange.h"
#include "daemon/service/coordinators.h"
#include "wire/wire.h"

namespace muster {

// What joins a node's daemon to the others.
struct TestLinks {
  DialLink dial;
  // Links are accepted as long as what it returns lives.
  std::function<std::shared_ptr<void>(AcceptLink)> listen;
};

// How long a daemon without leases waits for supervisors from before its start. A test that wants it over moves the clock.
inline constexpr std::chrono::seconds kReconnect(60);

// A node's leases, and what is in the place of UDP.
struct TestBeat {
  lease::Times times;
  std::shared_ptr<BeatClock> clock;
  std::shared_ptr<BeatSocket> socket;
};

// What musterd's main does, on a thread. Its end is a clean stop.
class TestDaemon {
 public:
  // `directory` holds the node's own files, and the store, which all nodes share, where `store` is null. Without `beat` it
  // has no leases.
  TestDaemon(std::string name, std::string address, uint16_t port, const std::string& directory,
             const EngineOptions& engine, std::shared_ptr<Store> store, const TestLinks& links,
             const std::optional<TestBeat>& beat = std::nullopt, LoopClock& clock = SteadyLoopClock());
  ~TestDaemon();
  TestDaemon(const TestDaemon&) = delete;
  TestDaemon& operator=(const TestDaemon&) = delete;
  [[nodiscard]] const std::string& socket() const { return config_.socket; }
  // Of its loop's thread: see On.
  [[nodiscard]] Coordinators& coordinators() { return coordinators_; }
  [[nodiscard]] Agent& agent() { return agent_; }
  [[nodiscard]] const NodeHealth& health() const { return health_; }
  [[nodiscard]] Beat* beat() { return beat_.get(); }
  [[nodiscard]] Loop& loop() { return loop_; }
  // What `ask` gives on the loop's thread.
  template <typename Ask>
  auto On(Ask ask) {
    std::promise<decltype(ask())> answer;
    loop_.Post([&] {
      if constexpr (std::is_void_v<decltype(ask())>) {
        ask();
        answer.set_value();
      } else {
        answer.set_value(ask());
      }
    });
    return answer.get_future().get();
  }

 private:
  AgentContext ContextOfAgent(const std::string& name, DialLink dial);
  Config config_;
  std::shared_ptr<Store> store_;
  Loop loop_;
  Engine engine_;
  Worker reader_;
  Worker dialer_;
  Worker sampler_;
  std::unique_ptr<Beat> beat_;  // null: no leases
  Coordinators coordinators_;
  NodeHealth health_;
  CheckpointExchange exchange_;
  Agent agent_;
  std::shared_ptr<void> listener_;
  std::thread thread_;
};

// What the task of a node says first, of a step of `nodes` nodes with one task on each.
wire::SupervisorHello StepHello(uint32_t job, uint32_t node, uint32_t nodes);

// A supervisor's side of the local protocol.
class TestSupervisor {
 public:
  struct Message {
    wire::Type type{};
    std::string packet;
    std::map<std::string, std::string> environment;  // of a Start or a TestLinks
    template <typename Body>
    [[nodiscard]] Body As() const {
      Body body{};
      wire::ReadBody(packet.data(), packet.size(), &body);
      return body;
    }
    // The tail of a Report or a Refused.
    [[nodiscard]] std::string Text() const;
  };

  explicit TestSupervisor(wire::SupervisorHello hello) : hello_(hello) {}
  // Connects and says hello with `nodes` and `options`; true when it is welcome.
  bool Join(const std::string& socket, const std::string& nodes, const std::string& options);
  // The same again, as one that was here before.
  bool Rejoin(const std::string& socket, wire::MemberState state, uint64_t generation, int wait_status = 0);
  void Leave() { socket_.reset(); }

  void Executed(uint64_t generation);
  void Exited(uint64_t generation, int wait_status, const std::string& program = "train",
              const std::string& stderr_tail = "");
  void Stopped(uint64_t generation, uint32_t last_words_ms = 0);
  void LinksTested(uint64_t test, int wait_status, const std::string& text);
  void Exiting(uint64_t generation);
  void Signalled(uint32_t signal);

  // The next message, whatever it is; empty when the connection ends, or when nothing comes for a long time.
  std::optional<Message> Next();
  // The next message of this type; Reports on the way are gathered in `reports`.
  std::optional<Message> Next(wire::Type type);
  // True when nothing comes for so long.
  bool Silent(int milliseconds);
  // What is here already but Reports, which are gathered; it stays for Next.
  bool Has(wire::Type type);
  std::string reports;

 private:
  bool Hello(const std::string& socket);
  std::optional<Message> Read();
  bool OfBeats(const Message& message);
  void Send(const std::string& packet);

  wire::SupervisorHello hello_;
  std::string nodes_;
  std::string options_;
  UniqueFd socket_;
  std::deque<Message> here_;  // and not taken yet
};

}  // namespace muster
