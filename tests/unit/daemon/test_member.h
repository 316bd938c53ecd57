// A member of a gang as a musterd sees it, message by message: its supervisor, and its program.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "client/muster.h"
#include "tests/unit/daemon/daemon_rig.h"
#include "tests/unit/daemon/fixtures.h"
#include "tests/unit/daemon/packet_builder.h"
#include "tests/unit/daemon/packet_socket.h"

namespace muster {

// A member: its supervisor, and its program's connection.
class TestMember {
 public:
  TestMember(const std::string& socket, wire::SupervisorHello hello, const std::string& nodes)
      : socket_(socket), supervisor_(hello) {
    EXPECT_TRUE(supervisor_.Join(socket, nodes, "name=elastic"));
  }
  // Waits for the start and opens the program's connection.
  wire::ClientWelcome Run() {
    const auto start = supervisor_.Next(wire::Type::kStart);
    EXPECT_TRUE(start);
    if (!start) return {};
    // Not 1 for a gang that goes on with an earlier one's checkpoints.
    generation_ = start->As<wire::Start>().generation;
    supervisor_.Executed(generation_);
    gang_ = start->environment.at("MUSTER_GANG");
    const std::string token = start->environment.at("MUSTER_TOKEN");
    for (size_t i = 0; i < sizeof hello_.token; ++i)
      hello_.token[i] = static_cast<uint8_t>(std::stoi(token.substr(2 * i, 2), nullptr, 16));
    hello_.generation = generation_;
    hello_.rank = static_cast<uint32_t>(std::stoul(start->environment.at("RANK")));
    hello_.gang_bytes = static_cast<uint32_t>(gang_.size());
    Greet();
    return Next<wire::ClientWelcome>(wire::Type::kClientWelcome);
  }
  // To its musterd, which has been started anew: the supervisor, and the program as soon as it is let in, which is when the
  // coordinator has all nodes.
  void Return() {
    Rejoin();
    GreetAgain();
  }
  void Rejoin() { ASSERT_TRUE(supervisor_.Rejoin(socket_, wire::MemberState::kRunning, generation_)); }
  void GreetAgain() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    Greet();
    while (program_->Peek() == static_cast<uint16_t>(wire::Type::kRefused)) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "the program is not let in";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      Greet();
    }
    Next<wire::ClientWelcome>(wire::Type::kClientWelcome);
  }
  // With `missing` the memory is shorter than is said, and the save fails.
  void Save(uint64_t step, const std::string& content, size_t missing = 0) {
    HandOver(step, content.size() + missing, SealedMemory(content));
  }
  void HandOver(uint64_t step, uint64_t bytes, const UniqueFd& memory) {
    wire::Save save{};
    save.step = step;
    save.bytes = bytes;
    program_->Send(BuildPacket(save, wire::Type::kSave), memory.get());
  }
  void ExpectDurable(int status) {
    const auto durable = Next<wire::ShardDurable>(wire::Type::kShardDurable);
    EXPECT_EQ(durable.status, status) << program_->rest;
  }
  // Gives the reason.
  std::string ExpectDelayed() {
    Next<wire::ShardDelayed>(wire::Type::kShardDelayed);
    return program_->rest;
  }
  void ExpectCommitted() {
    ExpectDurable(MUSTER_OK);
    ExpectTold(MUSTER_OK);
  }
  void AskOutcome(uint64_t step) {
    wire::AskOutcome ask{};
    ask.step = step;
    program_->Send(BuildPacket(ask, wire::Type::kAskOutcome));
  }
  // With memory of its own. The sentence, when there is no room for it.
  std::string AskMemory(uint64_t bytes) {
    wire::AskMemory ask{};
    ask.number = 5;
    ask.bytes = bytes;
    program_->Send(BuildPacket(ask, wire::Type::kAskMemory), SealedMemory("").get());
    const auto answer = Next<wire::MemoryAnswer>(wire::Type::kMemoryAnswer);
    EXPECT_EQ(answer.number, 5U);
    EXPECT_EQ(answer.status, program_->rest.empty() ? MUSTER_OK : MUSTER_E_NO_MEMORY);
    return program_->rest;
  }
  // How the next save has ended that it is told of; gives the reason.
  std::string ExpectTold(int status) {
    const auto committed = Next<wire::Committed>(wire::Type::kCommitted);
    EXPECT_EQ(committed.status, status) << program_->rest;
    return program_->rest;
  }
  wire::Described Describe(uint64_t step) {
    wire::Describe describe{};
    describe.step = step;
    program_->Send(BuildPacket(describe, wire::Type::kDescribe));
    return Next<wire::Described>(wire::Type::kDescribed);
  }
  // The content, or the error's sentence behind its code.
  std::string Restore(uint32_t rank, uint64_t step = wire::kNoStep) {
    wire::Restore restore{};
    restore.step = step;
    restore.rank = rank;
    program_->Send(BuildPacket(restore, wire::Type::kRestore));
    return Restored();
  }
  std::string RestoreAsTheFirstVersion() {
    program_->Send(Fixture("wire_v1/restore.bin"));
    return Restored();
  }
  // The bytes, or the error's sentence behind its code.
  std::string ReadRange(uint64_t step, uint32_t rank, uint64_t offset, uint64_t bytes) {
    AskRange(step, rank, offset, bytes);
    return Range();
  }
  void AskRange(uint64_t step, uint32_t rank, uint64_t offset, uint64_t bytes) {
    wire::ReadRange range{};
    range.step = step;
    range.rank = rank;
    range.offset = offset;
    range.bytes = bytes;
    program_->Send(BuildPacket(range, wire::Type::kReadRange));
  }
  std::string Range() {
    last_ = Next<wire::RangeRead>(wire::Type::kRangeRead);
    if (last_.status != MUSTER_OK) return fmt::format("{}: {}", last_.status, program_->rest);
    return ReadAll(program_->fd.get(), last_.bytes);
  }
  [[nodiscard]] const wire::RangeRead& last() const { return last_; }
  const std::string& rest() { return program_->rest; }
  void Succeed() {
    Exit();
    ExpectFinish();
  }
  void Exit() { supervisor_.Exited(generation_, 0); }
  void Die() { supervisor_.Exited(generation_, SIGKILL); }
  void ExpectStopOrder() { EXPECT_TRUE(supervisor_.Next(wire::Type::kStop)); }
  void ExpectStop() {
    ExpectStopOrder();
    supervisor_.Stopped(generation_);
  }
  void ExpectFinish() { EXPECT_TRUE(supervisor_.Next(wire::Type::kFinish)); }

 private:
  void Greet() {
    program_ = std::make_unique<PacketSocket>(socket_);
    program_->Send(BuildPacket(hello_, wire::Type::kClientHello, gang_));
  }
  template <typename Body>
  Body Next(wire::Type type) {
    return program_->Expect<Body>(static_cast<uint16_t>(type));
  }
  std::string Restored() {
    const auto restored = Next<wire::Restored>(wire::Type::kRestored);
    if (restored.status != MUSTER_OK) return fmt::format("{}: {}", restored.status, program_->rest);
    return ReadAll(program_->fd.get(), restored.bytes);
  }

  std::string socket_;
  TestSupervisor supervisor_;
  std::unique_ptr<PacketSocket> program_;
  std::string gang_;
  wire::ClientHello hello_{};
  uint64_t generation_ = 0;
  wire::RangeRead last_{};
};

}  // namespace muster
