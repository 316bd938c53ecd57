// The muster command's side of the local socket, message by message, against a real musterd: shards in and out, and what
// nobody should send.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "client/muster.h"
#include "daemon/cli/checkpoint_output.h"
#include "daemon/cli/checkpoint_transfer.h"
#include "tests/support/door_processes.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/packet_builder.h"
#include "tests/unit/daemon/packet_socket.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using wire::Type;

constexpr uint32_t kUid = 1000;

// A muster command. The test is root, which may speak for any user.
class Command {
 public:
  explicit Command(const std::string& socket, uint32_t uid = kUid) : socket_(socket) {
    wire::CommandHello hello{};
    hello.uid = uid;
    Ask(hello, Type::kCommandHello);
  }

  // The status; the sentence is `text`.
  template <typename Body>
  int Ask(Body body, Type type, std::string_view tail = {}, int fd = -1) {
    socket_.Send(BuildPacket(body, type, tail), fd);
    answer = socket_.Expect<wire::CommandAnswer>(static_cast<uint16_t>(Type::kCommandAnswer));
    text = socket_.rest;
    return answer.status;
  }
  int Open(const std::string& key, uint64_t step) {
    wire::CommandOpen open{};
    open.step = step;
    open.key_bytes = static_cast<uint32_t>(key.size());
    return Ask(open, Type::kCommandOpen, key);
  }
  int Read(uint32_t rank, uint64_t offset, uint64_t bytes, Type type = Type::kCommandRead) {
    wire::CommandShard shard{};
    shard.rank = rank;
    shard.offset = offset;
    shard.bytes = bytes;
    return Ask(shard, type);
  }
  std::string Content(uint64_t bytes) { return ReadAll(socket_.fd.get(), bytes); }
  int Begin(const std::string& key, uint64_t step, uint32_t world_size) {
    wire::CommandBegin begin{};
    begin.step = step;
    begin.world_size = world_size;
    begin.key_bytes = static_cast<uint32_t>(key.size());
    return Ask(begin, Type::kCommandBegin, key);
  }
  int Write(uint32_t rank, const std::string& content, size_t missing = 0) {
    wire::CommandShard shard{};
    shard.rank = rank;
    shard.bytes = content.size() + missing;
    return Ask(shard, Type::kCommandWrite, {}, SealedMemory(content).get());
  }
  void BeginToVerify(uint32_t rank) {
    wire::CommandShard shard{};
    shard.rank = rank;
    socket_.Send(BuildPacket(shard, Type::kCommandVerify));
  }
  // Without waiting for the answer.
  void BeginToWrite(uint32_t rank, const std::string& content) {
    wire::CommandShard shard{};
    shard.rank = rank;
    shard.bytes = content.size();
    socket_.Send(BuildPacket(shard, Type::kCommandWrite), SealedMemory(content).get());
  }
  int Commit() { return Ask(wire::CommandCommit{}, Type::kCommandCommit); }
  // Sends what no command sends: musterd says why, and closes.
  std::string Refused(const std::string& packet) {
    socket_.Send(packet);
    (void)socket_.Expect<wire::Refused>(static_cast<uint16_t>(Type::kRefused));
    const std::string why = socket_.rest;
    EXPECT_TRUE(socket_.Ended());
    return why;
  }

  wire::CommandAnswer answer{};
  std::string text;

 private:
  PacketSocket socket_;
};

class ExchangeSession : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    StartDaemon(0);
  }

  // Files of the store that belong to a key. Musterd may remove some meanwhile, and then they are counted again.
  size_t Objects(const std::string& key) const {
    while (true) {
      size_t count = 0;
      std::error_code error;
      std::filesystem::recursive_directory_iterator at(directory_.path(), error);
      for (; !error && at != std::filesystem::end(at); at.increment(error)) {
        const std::string path = at->path().string();
        std::error_code gone;
        if (path.find("/data/" + key + "/") != std::string::npos && at->is_regular_file(gone)) ++count;
      }
      if (!error) return count;
    }
  }
};

TEST_F(ExchangeSession, WhatIsWrittenAndCommittedCanBeReadAndVerified) {
  Command writer(daemons_[0]->socket());
  EXPECT_GT(writer.answer.bytes, 0U) << "the largest shard";
  ASSERT_EQ(writer.Begin("name-k", 7, 2), MUSTER_OK) << writer.text;
  ASSERT_EQ(writer.Write(1, "the second"), MUSTER_OK) << writer.text;
  EXPECT_EQ(writer.Commit(), MUSTER_E_INVALID) << "one is missing";
  ASSERT_EQ(writer.Write(0, "the first"), MUSTER_OK) << writer.text;
  ASSERT_EQ(writer.Commit(), MUSTER_OK) << writer.text;
  EXPECT_EQ(writer.answer.bytes, 19U);

  Command reader(daemons_[0]->socket());
  ASSERT_EQ(reader.Open("name-k", 7), MUSTER_OK) << reader.text;
  EXPECT_EQ(reader.answer.world_size, 2U);
  EXPECT_EQ(reader.answer.bytes, 19U);
  ASSERT_EQ(reader.Read(1, 4, 100), MUSTER_OK) << reader.text;
  EXPECT_EQ(reader.Content(6), "second");
  EXPECT_EQ(reader.answer.bytes, 10U) << "of the whole shard";
  EXPECT_EQ(reader.Read(1, 11, 1), MUSTER_E_INVALID);
  EXPECT_EQ(reader.Read(2, 0, 1), MUSTER_E_INVALID);
  EXPECT_EQ(reader.Read(0, 0, 0, Type::kCommandVerify), MUSTER_OK) << reader.text;
  EXPECT_EQ(reader.Open("name-k", 8), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(Command(daemons_[0]->socket(), kUid + 1).Open("name-k", 7), MUSTER_E_NOT_FOUND)
      << "another user's";
}

TEST_F(ExchangeSession, OnlyAKeyIsAKey) {
  Command command(daemons_[0]->socket());
  for (const char* key : {"", "name-", "name-../x", "name-a/b", "job-.1", "index", "other-1"}) {
    EXPECT_EQ(command.Open(key, 1), MUSTER_E_INVALID) << key;
    EXPECT_EQ(command.Begin(key, 1, 1), MUSTER_E_INVALID) << key;
  }
  EXPECT_EQ(command.Begin("job-1.0", 1, 1), MUSTER_E_INVALID) << "a job's own checkpoints are its own";
  EXPECT_EQ(command.Begin("name-k", wire::kNoStep, 1), MUSTER_E_INVALID);
  EXPECT_EQ(command.Begin("name-k", 1, 0), MUSTER_E_INVALID);
  EXPECT_EQ(command.Begin("name-k", 1, UINT32_MAX), MUSTER_E_INVALID);
}

TEST_F(ExchangeSession, QuestionsOutOfTurnAreAnsweredWithAnError) {
  Command command(daemons_[0]->socket());
  EXPECT_EQ(command.Read(0, 0, 1), MUSTER_E_INVALID);
  EXPECT_EQ(command.Write(0, "x"), MUSTER_E_INVALID);
  EXPECT_EQ(command.Commit(), MUSTER_E_INVALID);
  ASSERT_EQ(command.Begin("name-k", 1, 1), MUSTER_OK) << command.text;
  EXPECT_EQ(command.Begin("name-k", 2, 1), MUSTER_E_INVALID);
  EXPECT_EQ(command.Write(1, "x"), MUSTER_E_INVALID);
  EXPECT_EQ(command.Write(0, "x", 1), MUSTER_E_INVALID) << "the memory is shorter than is said";
  EXPECT_EQ(command.Write(0, ""), MUSTER_E_TOO_LARGE);
  ASSERT_EQ(command.Write(0, "x"), MUSTER_OK) << command.text;
  EXPECT_EQ(command.Write(0, "y"), MUSTER_E_INVALID) << "it is there already";
  ASSERT_EQ(command.Commit(), MUSTER_OK) << command.text;
  EXPECT_EQ(command.Commit(), MUSTER_E_INVALID);
  EXPECT_EQ(command.Begin("name-k", 1, 1), MUSTER_E_INVALID);
  EXPECT_THAT(command.text, HasSubstr("step 1 already"));
}

TEST_F(ExchangeSession, WhatIsNoMessageEndsTheConnection) {
  wire::CommandShard shard{};
  const std::string no_memory = BuildPacket(shard, Type::kCommandWrite);
  const std::string cut = BuildPacket(wire::CommandCommit{}, Type::kCommandRead);
  const std::string other = BuildPacket(wire::Describe{}, Type::kDescribe);
  for (const std::string& packet : {no_memory, cut, other})
    EXPECT_THAT(Command(daemons_[0]->socket()).Refused(packet), HasSubstr("malformed message"));
  wire::CommandOpen open{};
  open.key_bytes = 100;
  Command command(daemons_[0]->socket());
  EXPECT_EQ(command.Ask(open, Type::kCommandOpen, "short"), MUSTER_E_INVALID);
}

TEST_F(ExchangeSession, AUserHasAFewConnectionsAndNoMore) {
  std::vector<std::unique_ptr<Command>> commands;
  for (size_t i = 0; i < CheckpointExchange::kMaxPerUser; ++i)
    commands.push_back(std::make_unique<Command>(daemons_[0]->socket()));
  PacketSocket more(daemons_[0]->socket());
  more.Send(BuildPacket(wire::CommandHello{}, Type::kCommandHello));
  (void)more.Expect<wire::Refused>(static_cast<uint16_t>(Type::kRefused));
  EXPECT_THAT(more.rest, HasSubstr("run on this node already"));
}

TEST_F(ExchangeSession, WhatIsNotCommittedIsRemovedWithTheConnection) {
  {
    Command command(daemons_[0]->socket());
    ASSERT_EQ(command.Begin("name-k", 1, 2), MUSTER_OK) << command.text;
    ASSERT_EQ(command.Write(0, "x"), MUSTER_OK) << command.text;
    EXPECT_EQ(Objects("name-k"), 1U);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Objects("name-k") > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Objects("name-k"), 0U);
  Command again(daemons_[0]->socket());
  EXPECT_EQ(again.Begin("name-k", 1, 1), MUSTER_OK) << again.text;
}

// With a store whose writes, or reads, wait until they are let go.
class HeldStore : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    EngineOptions engine;
    engine.chunk_bytes = 4096;
    engine.window = 1;
    store_ = memory_;
    StartDaemon(0, engine);
  }
  void TearDown() override {
    LetGo();
    daemons_[0].reset();  // before what the store waits for
  }
  void Hold(const std::string& what) {
    memory_->SetFault([this, what](const std::string& operation, const std::string& name) {
      std::unique_lock lock(mutex_);
      if (operation != what || name.find("/0.") == std::string::npos) return Status();
      ++held_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return let_go_; });
      return Status();
    });
  }
  void LetGo() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  bool WaitForHeld(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return held_ >= count; });
  }
  size_t held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  bool IsLetIn() {
    PacketSocket socket(daemons_[0]->socket());
    wire::CommandHello hello{};
    hello.uid = kUid;
    socket.Send(BuildPacket(hello, Type::kCommandHello));
    return socket.Peek() == static_cast<uint16_t>(Type::kCommandAnswer);
  }
  bool IsLetInAtLast(std::chrono::milliseconds patience = kLong) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < deadline) {
      if (IsLetIn()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static constexpr std::chrono::seconds kLong{20};
  const std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool let_go_ = false;
  size_t held_ = 0;
};

TEST_F(HeldStore, AShardOfTooManyChunksIsRefused) {
  Command command(daemons_[0]->socket());
  const uint64_t most = uint64_t{kMaxShardChunks} * 4096;
  EXPECT_EQ(command.answer.bytes, most);
  ASSERT_EQ(command.Begin("name-k", 1, 1), MUSTER_OK) << command.text;
  EXPECT_EQ(command.Write(0, "x", most), MUSTER_E_TOO_LARGE);
  EXPECT_THAT(command.text, HasSubstr("400000 chunks"));
}

TEST_F(HeldStore, AWriteCountsUntilItHasEndedThoughItsConnectionHasGone) {
  Hold("write");
  for (size_t i = 0; i < CheckpointExchange::kMaxPerUser; ++i) {
    Command command(daemons_[0]->socket());
    ASSERT_EQ(command.Begin(fmt::format("name-k{}", i), 1, 1), MUSTER_OK) << command.text;
    command.BeginToWrite(0, std::string(100 * 4096, 'x'));
    ASSERT_TRUE(WaitForHeld(i + 1));
  }
  EXPECT_FALSE(IsLetInAtLast(std::chrono::milliseconds(200)));
  LetGo();
  EXPECT_TRUE(IsLetInAtLast());
}

TEST_F(HeldStore, AWriteIsGivenUpWithItsConnectionAndLeavesNothing) {
  Hold("write");
  {
    Command command(daemons_[0]->socket());
    ASSERT_EQ(command.Begin("name-k", 1, 1), MUSTER_OK) << command.text;
    command.BeginToWrite(0, std::string(100 * 4096, 'x'));
    ASSERT_TRUE(WaitForHeld(1));
    constexpr size_t kWithCommand = kDoorWithoutConnections + 1;
    ASSERT_EQ(WaitForDoorProcesses(daemons_[0]->socket(), kWithCommand), kWithCommand);
  }
  ASSERT_EQ(WaitForDoorProcesses(daemons_[0]->socket(), kDoorWithoutConnections), kDoorWithoutConnections);
  daemons_[0]->On([] {});  // musterd has seen the end of its connection
  // All but one: there is room for another one again when that write has ended and nothing of it is left.
  std::vector<std::unique_ptr<Command>> others;
  for (size_t i = 0; i + 1 < CheckpointExchange::kMaxPerUser; ++i)
    others.push_back(std::make_unique<Command>(daemons_[0]->socket()));
  EXPECT_FALSE(IsLetIn());
  LetGo();
  EXPECT_TRUE(IsLetInAtLast());
  EXPECT_EQ(memory_->List("u1000", "data/name-k/").value(), std::vector<std::string>{});
  EXPECT_LT(held(), 10U) << "chunks of 100";
}

TEST_F(HeldStore, AReadCountsUntilItHasEndedThoughItsConnectionHasGone) {
  {
    Command writer(daemons_[0]->socket());
    ASSERT_EQ(writer.Begin("name-k", 1, 1), MUSTER_OK) << writer.text;
    ASSERT_EQ(writer.Write(0, "content"), MUSTER_OK) << writer.text;
    ASSERT_EQ(writer.Commit(), MUSTER_OK) << writer.text;
  }
  Hold("read");
  for (size_t i = 0; i < CheckpointExchange::kMaxPerUser; ++i) {
    Command command(daemons_[0]->socket());
    ASSERT_EQ(command.Open("name-k", 1), MUSTER_OK) << command.text;
    command.BeginToVerify(0);
    ASSERT_TRUE(WaitForHeld(i + 1));
  }
  EXPECT_FALSE(IsLetInAtLast(std::chrono::milliseconds(200)));
  LetGo();
  EXPECT_TRUE(IsLetInAtLast());
}

// With a store that a test can look into and change.
class Removed : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    store_ = memory_;
    StartDaemon(0);
  }
  void Make(uint64_t step, const std::string& content) {
    Command writer(daemons_[0]->socket());
    ASSERT_EQ(writer.Begin("name-k", step, 1), MUSTER_OK) << writer.text;
    ASSERT_EQ(writer.Write(0, content), MUSTER_OK) << writer.text;
    ASSERT_EQ(writer.Commit(), MUSTER_OK) << writer.text;
  }
  // As retention does, or another musterd.
  void Drop(uint64_t step) {
    const auto dropped =
        Catalog(store_, "u1000", "name-k").Drop([&](const GangHead& /*head*/) { return std::vector{step}; });
    ASSERT_TRUE(dropped) << dropped.error().message;
  }

  const std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
};

TEST_F(Removed, ACheckpointThatIsRemovedWhileItIsReadIsNotDamaged) {
  Make(1, "content");
  Command reader(daemons_[0]->socket());
  ASSERT_EQ(reader.Open("name-k", 1), MUSTER_OK) << reader.text;
  Drop(1);
  EXPECT_EQ(reader.Read(0, 0, 7), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(reader.text, "checkpoint 1 of name-k was removed while it was read");
  EXPECT_EQ(reader.Read(0, 0, 0, Type::kCommandVerify), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(reader.text, "checkpoint 1 of name-k was removed while it was read");
}

TEST_F(Removed, NorIsOneWhoseStepIsSavedAnew) {
  Make(1, "content");
  Command reader(daemons_[0]->socket());
  ASSERT_EQ(reader.Open("name-k", 1), MUSTER_OK) << reader.text;
  Drop(1);
  Make(1, "another");
  EXPECT_EQ(reader.Read(0, 0, 0, Type::kCommandVerify), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(reader.text, "checkpoint 1 of name-k was saved anew while it was read");
  ASSERT_EQ(reader.Open("name-k", 1), MUSTER_OK) << reader.text;
  EXPECT_EQ(reader.Read(0, 0, 0, Type::kCommandVerify), MUSTER_OK) << reader.text;
}

TEST_F(Removed, NorOneThatIsRemovedBetweenItsHeadAndItsManifest) {
  Make(1, "content");
  std::atomic<bool> dropped{false};
  memory_->SetFault([&](const std::string& operation, const std::string& name) {
    if (operation == "read" && name.ends_with("/manifest") && !dropped.exchange(true)) Drop(1);
    return Status();
  });
  Command reader(daemons_[0]->socket());
  EXPECT_EQ(reader.Open("name-k", 1), MUSTER_E_NOT_FOUND);
  EXPECT_THAT(reader.text, HasSubstr("was removed while"));
  memory_->SetFault({});
}

TEST_F(Removed, WhatIsListedAndMissingIsDamaged) {
  Make(1, "content");
  const auto names = memory_->List("u1000", "data/name-k/1.").value();
  for (const std::string& name : names) {
    if (name.ends_with("/manifest")) continue;
    ASSERT_TRUE(memory_->Remove({"u1000", name}));
  }
  Command reader(daemons_[0]->socket());
  ASSERT_EQ(reader.Open("name-k", 1), MUSTER_OK) << reader.text;
  EXPECT_EQ(reader.Read(0, 0, 0, Type::kCommandVerify), MUSTER_E_CORRUPT);
  EXPECT_THAT(reader.text, HasSubstr("missing"));
}

TEST_F(Removed, VerifyTellsWhatIsRemovedFromWhatIsBad) {
  Make(1, "first");
  Make(2, "second");
  Make(3, "third");
  memory_->Bytes(memory_->List("u1000", "data/name-k/2.").value().front())->back() ^= 1;
  Drop(1);
  auto session = cli::MusterdSession::Open(daemons_[0]->socket(), kUid);
  ASSERT_TRUE(session) << session.error().message;
  const auto found = cli::VerifyCheckpoints(*session, "name-k", {1, 2, 3});
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 3U);
  EXPECT_TRUE((*found)[0].removed);
  EXPECT_THAT((*found)[0].reason, HasSubstr("no checkpoint 1"));
  EXPECT_FALSE((*found)[1].removed);
  EXPECT_THAT((*found)[1].reason, HasSubstr("has digest"));
  EXPECT_FALSE((*found)[2].removed);
  EXPECT_EQ((*found)[2].reason, "");
}

TEST(VerifyTable, SaysWhatHasNotBeenVerified) {
  const nlohmann::json document = {
      {"checkpoints", {{{"step", 2}, {"bytes", 7}, {"verified", true}, {"reason", ""}}}},
      {"removed", {{{"step", 1}, {"reason", "it was removed"}}}}};
  const std::string table = cli::VerifyTable(document);
  EXPECT_THAT(table, ContainsRegex("2 +7 B +verified"));
  EXPECT_THAT(table, ContainsRegex("1 +- +not verified: it was removed"));
}

}  // namespace
}  // namespace muster
