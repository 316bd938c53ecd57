#include "ceph/engine/engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/engine_rig.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/temporary_directory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster {
namespace {

using testing::HasSubstr;

class EngineTest : public testing::Test {
 protected:
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Engine engine_{store_, Small()};
};

TEST_F(EngineTest, ReadsBackWhatItWrote) {
  for (const size_t size : {size_t{1}, size_t{999}, size_t{1000}, size_t{1001}, size_t{54321}}) {
    const std::string bytes = RandomBytes(size);
    const auto shard = Write(engine_, Memory(bytes), size);
    ASSERT_TRUE(shard) << shard.error().message;
    EXPECT_EQ(shard->bytes, size);
    EXPECT_EQ(shard->chunks.size(), (size + 999) / 1000);
    EXPECT_TRUE(ParseShardPrefix("k", 0, shard->prefix)) << shard->prefix;
    EXPECT_EQ(shard->chunks[0], DigestOf(std::string_view(bytes).substr(0, 1000)));
    EXPECT_EQ(*store_->Bytes(shard->ObjectOf(0)), bytes.substr(0, 1000));
    const auto memory = Read(engine_, *shard);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(Contents(*memory), bytes);
  }
}

// A gang with many members here gets no more of the store than one with a single member.
TEST_F(EngineTest, GangsTakeTurnsHoweverManyShardsTheyWrite) {
  constexpr size_t kShards = 8;
  constexpr size_t kChunks = 60;
  // A shard asks for four at once: so each gang is waiting whenever the buffer is free, however late its threads are.
  EngineOptions options = Small();
  options.buffers = options.most_buffers = 1;
  Engine engine(store_, options);
  std::mutex mutex;
  std::vector<std::string> written;
  store_->SetFault([&](const std::string&, const std::string& name) {
    const std::lock_guard lock(mutex);
    written.push_back(name);
    return Status();
  });
  const std::string bytes = RandomBytes(kChunks * 1000);
  std::vector<std::shared_ptr<StagedMemory>> memories;
  std::vector<std::future<Result<Shard>>> ends;
  const auto write = [&](const std::string& key, uint32_t rank) {
    memories.push_back(StagedMemory::Take(Memory(bytes)).value());
    const auto end = std::make_shared<std::promise<Result<Shard>>>();
    ends.push_back(end->get_future());
    (void)engine.WriteShard("u1", ShardPrefix(key, 100, kFence, rank), rank, *memories.back(), bytes.size(),
                            {}, [end](Result<Shard> shard) { end->set_value(std::move(shard)); });
  };
  for (uint32_t rank = 0; rank < kShards; ++rank) write("many", rank);
  write("one", 0);
  for (auto& end : ends) EXPECT_TRUE(end.get());
  store_->SetFault(nullptr);
  const auto is_ones = [](const std::string& name) { return name.starts_with("data/one/"); };
  const auto first = std::find_if(written.begin(), written.end(), is_ones);
  const auto last = std::find_if(written.rbegin(), written.rend(), is_ones).base();
  const auto meanwhile = std::count_if(first, last, [&](const std::string& name) { return !is_ones(name); });
  EXPECT_EQ(std::count_if(first, last, is_ones), static_cast<ptrdiff_t>(kChunks));
  EXPECT_LT(meanwhile, static_cast<ptrdiff_t>(kShards / 2 * kChunks))
      << "in turns about kChunks, without kShards times that";
}

TEST_F(EngineTest, WritesBehindTheTrainerAndReadsBeside) {
  EngineOptions options = Small();
  options.write_niceness = 7;
  Engine engine(store_, options);
  const auto niceness = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const std::string bytes = RandomBytes(5000);
  const auto staged = StagedMemory::Take(Memory(bytes)).value();
  std::promise<std::pair<Result<Shard>, int>> written;
  (void)engine.WriteShard("u1", ShardPrefix("k", 100, kFence, 0), 0, *staged, bytes.size(), {},
                          [&](Result<Shard> shard) {
                            written.set_value({std::move(shard), niceness()});
                          });
  const auto [shard, writer] = written.get_future().get();
  ASSERT_TRUE(shard);
  EXPECT_EQ(writer, 7);
  std::promise<int> read;
  engine.ReadShard("u1", *shard, [&](const Result<UniqueFd>&) { read.set_value(niceness()); });
  EXPECT_EQ(read.get_future().get(), 0);
}

// A program that dies while it restores, again and again, has its node read its state once at a time.
TEST_F(EngineTest, WhatNobodyWaitsForIsReadNoFurther) {
  const std::string bytes = RandomBytes(200'000);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  auto reader = std::make_shared<const int>(0);
  std::mutex mutex;
  size_t reads = 0;
  store_->SetFault([&](const std::string& operation, const std::string& /*name*/) -> Status {
    const std::lock_guard lock(mutex);
    if (operation == "read" && ++reads == 3) reader.reset();
    return {};
  });
  std::promise<Result<UniqueFd>> read;
  engine_.ReadShard(
      "u1", *shard, [&](Result<UniqueFd> memory) { read.set_value(std::move(memory)); }, reader);
  const auto memory = read.get_future().get();
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kConflict);
  EXPECT_LT(reads, shard->chunks.size() / 2);
}

TEST_F(EngineTest, AShardMayBeWrittenTwiceUnderTwoNames) {
  const std::string bytes = RandomBytes(3500);
  const auto first = Write(engine_, Memory(bytes), bytes.size());
  const auto second = Write(engine_, Memory(RandomBytes(2500)), 2500, 0, 100, {}, 7);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->ObjectOf(2), "data/k/100.1.2/0-00000007.2");
  EXPECT_EQ(store_->objects().size(), 4U + 3);
  EXPECT_EQ(Contents(*Read(engine_, *first)), bytes);
}

TEST_F(EngineTest, OnlyTheChunksThatAreMissingAreRead) {
  const std::string bytes = RandomBytes(3500);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard) << shard.error().message;
  // What is there already is not looked for in the store.
  for (const uint64_t gone : {0, 2}) ASSERT_TRUE(store_->Remove({"u1", shard->ObjectOf(gone)}));
  const auto read = [&](std::vector<bool> have) {
    std::string there = bytes;
    there.replace(1000, 1000, 1000, '\0');
    there.replace(3000, 500, 500, '\0');
    auto done = std::make_shared<std::promise<Result<UniqueFd>>>();
    engine_.ReadMissing("u1", *shard, Memory(there, 0), std::move(have),
                        [done](Result<UniqueFd> memory) { done->set_value(std::move(memory)); });
    return done->get_future().get();
  };
  const auto memory = read({true, false, true, false});
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(Contents(*memory), bytes);
  EXPECT_EQ(::fcntl(memory->get(), F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE);
  EXPECT_EQ(read({true, false, false, false}).error().code, Errc::kCorrupt);
  EXPECT_EQ(read({true}).error().code, Errc::kInvalid);
}

TEST_F(EngineTest, APartOfAShardIsReadOutOfTheChunksThatHaveIt) {
  const std::string bytes = RandomBytes(5500);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  std::atomic<uint64_t> reads = 0;
  store_->SetFault([&](const std::string& operation, const std::string&) {
    if (operation == "read") ++reads;
    return Status();
  });
  for (const uint64_t begin : {0U, 1U, 999U, 1000U, 2500U, 5000U, 5499U, 5500U}) {
    for (const uint64_t end : {0U, 1U, 1000U, 1001U, 3000U, 5000U, 5500U}) {
      if (end < begin) continue;
      reads = 0;
      const auto memory = ReadRange(engine_, *shard, begin, end - begin);
      ASSERT_TRUE(memory) << memory.error().message;
      EXPECT_EQ(Contents(*memory), bytes.substr(begin, end - begin)) << begin << " to " << end;
      EXPECT_EQ(reads, begin == end ? 0 : (end - 1) / 1000 - begin / 1000 + 1) << begin << " to " << end;
      EXPECT_EQ(::fcntl(memory->get(), F_GET_SEALS),
                F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    }
  }
}

TEST_F(EngineTest, APartBeyondTheEndOfAShardIsRefused) {
  const auto shard = Write(engine_, Memory(RandomBytes(1500)), 1500);
  ASSERT_TRUE(shard);
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 1501}, {1501, 0}, {1000, 501}, {UINT64_MAX, 1}, {1, UINT64_MAX}}) {
    const auto memory = ReadRange(engine_, *shard, offset, size);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, Errc::kInvalid);
    EXPECT_THAT(memory.error().message, HasSubstr("has 1500 bytes"));
  }
}

TEST_F(EngineTest, APartWhoseChunkIsDamagedElsewhereIsNotGiven) {
  const std::string bytes = RandomBytes(3000);
  const auto shard = Write(engine_, Memory(bytes), 3000);
  ASSERT_TRUE(shard);
  (*store_->Bytes(shard->ObjectOf(1)))[999] ^= 1;
  const auto memory = ReadRange(engine_, *shard, 1000, 10);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_THAT(memory.error().message, HasSubstr(shard->ObjectOf(1)));
  EXPECT_TRUE(ReadRange(engine_, *shard, 0, 1000));
  EXPECT_TRUE(ReadRange(engine_, *shard, 2000, 1000));
}

TEST_F(EngineTest, AnEmptyShardHasNoObjects) {
  const auto shard = Write(engine_, Memory("unused"), 0);
  ASSERT_TRUE(shard);
  EXPECT_TRUE(shard->chunks.empty());
  EXPECT_TRUE(store_->objects().empty());
  EXPECT_EQ(Contents(*Read(engine_, *shard)), "");
}

TEST_F(EngineTest, OnlyTheAnnouncedBytesAreWritten) {
  const auto shard = Write(engine_, Memory(RandomBytes(5000)), 1500);
  ASSERT_TRUE(shard);
  EXPECT_EQ(shard->chunks.size(), 2u);
  EXPECT_EQ(store_->Bytes(shard->ObjectOf(1))->size(), 500u);
}

TEST_F(EngineTest, ARestoredShardCannotBeChangedAnyMore) {
  const auto shard = Write(engine_, Memory(RandomBytes(3000)), 3000);
  const auto memory = Read(engine_, *shard);
  ASSERT_TRUE(memory);
  EXPECT_EQ(::fcntl(memory->get(), F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  EXPECT_EQ(::pwrite(memory->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(memory->get(), 0), -1);
  EXPECT_EQ(::mmap(nullptr, 3000, PROT_READ | PROT_WRITE, MAP_SHARED, memory->get(), 0), MAP_FAILED);
}

TEST_F(EngineTest, HostileMemoryIsRefused) {
  const auto refused = [&](UniqueFd memory, uint64_t bytes, const char* why) {
    const auto shard = Write(engine_, std::move(memory), bytes);
    ASSERT_FALSE(shard);
    EXPECT_EQ(shard.error().code, Errc::kInvalid);
    EXPECT_THAT(shard.error().message, HasSubstr(why));
  };
  refused(Memory("1234", 0), 4, "not sealed");
  refused(Memory("1234", F_SEAL_GROW), 4, "not sealed");
  refused(Memory("1234"), 5, "has 4 bytes");
  refused(Memory("1234"), UINT64_MAX, "has 4 bytes");
  refused(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 4, "not in a memfd");
  refused(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4, "not in a memfd");
  refused(UniqueFd(), 4, "not in a memfd");
  EXPECT_TRUE(store_->objects().empty());
}

TEST_F(EngineTest, MemoryThatIsWrittenMeanwhileGivesAShardThatVerifies) {
  UniqueFd memory = Memory(std::string(200000, 'a'));
  const int fd = ::dup(memory.get());
  std::atomic<bool> stop{false};
  std::thread hostile([&] {
    for (char c = 'b'; !stop; c = static_cast<char>(c + 1)) {
      const std::string junk(200000, c);
      EXPECT_EQ(::pwrite(fd, junk.data(), junk.size(), 0), 200000);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto shard = Write(engine_, UniqueFd(::dup(fd)), 200000);
    ASSERT_TRUE(shard);
    EXPECT_TRUE(Read(engine_, *shard));
  }
  stop = true;
  hostile.join();
  ::close(fd);
}

TEST_F(EngineTest, AnObjectThatIsMissingIsCorrupt) {
  const auto shard = Write(engine_, Memory(RandomBytes(5500)), 5500);
  store_->objects().erase(shard->ObjectOf(3));
  const auto memory = Read(engine_, *shard);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_THAT(memory.error().message, HasSubstr(shard->ObjectOf(3)));
  EXPECT_THAT(memory.error().message, HasSubstr("missing"));
}

TEST_F(EngineTest, AFlippedByteIsCorrupt) {
  const auto shard = Write(engine_, Memory(RandomBytes(5500)), 5500);
  (*store_->Bytes(shard->ObjectOf(5)))[499] ^= 1;
  const auto memory = Read(engine_, *shard);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_THAT(memory.error().message, HasSubstr(shard->ObjectOf(5)));
  EXPECT_THAT(memory.error().message, HasSubstr("digest"));
}

TEST_F(EngineTest, AnObjectThatIsCutOffOrTooLongIsCorrupt) {
  const auto shard = Write(engine_, Memory(RandomBytes(5500)), 5500);
  store_->Bytes(shard->ObjectOf(0))->resize(999);
  EXPECT_THAT(Read(engine_, *shard).error().message, HasSubstr("cut off: 999 bytes"));
  store_->Bytes(shard->ObjectOf(0))->resize(1001);
  EXPECT_THAT(Read(engine_, *shard).error().message, HasSubstr("too long"));
  EXPECT_EQ(Read(engine_, *shard).error().code, Errc::kCorrupt);
}

TEST_F(EngineTest, VerifyFindsTheBadChunkOfAnyShard) {
  Manifest manifest;
  manifest.world_size = 3;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    manifest.shards.push_back(*Write(engine_, Memory(RandomBytes(2500 + rank)), 2500 + rank, rank));
  }
  EXPECT_TRUE(engine_.Verify("u1", manifest));
  const std::string damaged = manifest.shards[2].ObjectOf(1);
  (*store_->Bytes(damaged))[0] ^= 0x80;
  const Status status = engine_.Verify("u1", manifest);
  EXPECT_EQ(status.error().code, Errc::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr(damaged));
}

TEST_F(EngineTest, AStoreThatIsAwayForAMomentIsTriedAgain) {
  std::mutex mutex;
  std::map<std::string, int> tries;
  store_->SetFault([&](const std::string& operation, const std::string& name) {
    const std::lock_guard lock(mutex);
    return ++tries[operation + name] <= 2 ? Status(Error{Errc::kUnavailable, "timed out"}) : Status();
  });
  const std::string bytes = RandomBytes(4500);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard) << shard.error().message;
  const auto memory = Read(engine_, *shard);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(Contents(*memory), bytes);
}

TEST_F(EngineTest, AStoreThatStaysAwayIsAnErrorInTheEnd) {
  std::atomic<int> tries{0};
  store_->SetFault([&](const std::string&, const std::string&) {
    ++tries;
    return Status(Error{Errc::kUnavailable, "timed out"});
  });
  const auto shard = Write(engine_, Memory("1234"), 4);
  EXPECT_EQ(shard.error().code, Errc::kUnavailable);
  EXPECT_EQ(tries, Small().attempts);
}

TEST_F(EngineTest, AFullPoolIsAnErrorAtOnce) {
  std::atomic<int> tries{0};
  store_->SetFault([&](const std::string&, const std::string& name) {
    ++tries;
    return name.ends_with(".1") ? Status(Error{Errc::kExhausted, "the pool is full"}) : Status();
  });
  const size_t bytes = 20'000'000;
  const auto shard = Write(engine_, Memory(std::string(bytes, 'x')), bytes);
  EXPECT_EQ(shard.error().code, Errc::kExhausted);
  EXPECT_LT(tries, 20'000) << "the others are not even begun";
}

TEST_F(EngineTest, KeepsToItsWindowAndItsBuffers) {
  std::vector<std::future<Result<Shard>>> writes;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    auto done = std::make_shared<std::promise<Result<Shard>>>();
    writes.push_back(done->get_future());
    engine_.WriteShard("u1", ShardPrefix("k", 100, kFence, rank), rank,
                       **StagedMemory::Take(Memory(RandomBytes(100000 + rank))), 100000 + rank, {},
                       [done](Result<Shard> shard) { done->set_value(std::move(shard)); });
  }
  std::set<std::string> prefixes;
  for (auto& write : writes) {
    const auto shard = write.get();
    ASSERT_TRUE(shard);
    prefixes.insert(shard->prefix);
  }
  EXPECT_EQ(prefixes.size(), 4u);
  EXPECT_LE(store_->most_at_once(), Small().buffers);
  EXPECT_GT(store_->most_at_once(), 1u);
}

TEST_F(EngineTest, ABufferIsFilledAgainUnlessTheStoreStillReadsIt) {
  ASSERT_TRUE(Write(engine_, Memory(RandomBytes(100000)), 100000));
  EXPECT_LE(store_->buffers_made(), Small().window);
  store_->KeepBuffersInUse();
  ASSERT_TRUE(Write(engine_, Memory(RandomBytes(100000)), 100000));
  EXPECT_GE(store_->buffers_made(), 100U) << "one for each chunk";
}

TEST_F(EngineTest, BuffersStayForTheNextSave) {
  ASSERT_TRUE(Write(engine_, Memory(RandomBytes(100000)), 100000));
  const size_t made = store_->buffers_made();
  ASSERT_TRUE(Write(engine_, Memory(RandomBytes(100000)), 100000, 0, 101));
  EXPECT_LE(store_->buffers_made(), Small().window) << made << " in the first";
}

// Whether there are so many buffers at most, in the end.
bool ComesTo(const MemoryStore& store, size_t most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (store.buffers_there() > most && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return store.buffers_there() <= most;
}

TEST(EngineBuffers, GoWhenNoSaveComes) {
  const auto store = std::make_shared<MemoryStore>();
  EngineOptions options = Small();
  options.keep_for = std::chrono::milliseconds(1);
  Engine engine(store, options);
  ASSERT_TRUE(Write(engine, Memory(RandomBytes(100000)), 100000));
  EXPECT_GT(store->buffers_made(), 0U);
  EXPECT_TRUE(ComesTo(*store, 0));
}

TEST(EngineBuffers, NoMoreAreKeptThanIsAllowed) {
  const auto store = std::make_shared<MemoryStore>();
  EngineOptions options = Small();
  options.keep_bytes = 2 * options.chunk_bytes;
  Engine engine(store, options);
  ASSERT_TRUE(Write(engine, Memory(RandomBytes(100000)), 100000));
  EXPECT_TRUE(ComesTo(*store, 2));
}

ShardBase Base(const Result<Shard>& shard, uint64_t turn = 1) {
  return {std::make_shared<const Shard>(*shard), turn};
}

TEST_F(EngineTest, ChunksThatHaveNotChangedAreNotWrittenAgain) {
  std::string bytes = RandomBytes(20500);
  const auto first = Write(engine_, Memory(bytes), bytes.size());
  bytes[5000] ^= 1;
  bytes[20499] ^= 1;
  const auto second = Write(engine_, Memory(bytes), bytes.size(), 0, 200, Base(first));
  ASSERT_TRUE(second) << second.error().message;
  const std::vector<ChunkRun> shared{{0, 5, first->prefix}, {6, 14, first->prefix}};
  EXPECT_EQ(second->elsewhere, shared);
  EXPECT_EQ(store_->objects().size(), 21U + 2);
  EXPECT_NE(store_->Bytes(second->prefix + ".5"), nullptr);
  EXPECT_EQ(Contents(*Read(engine_, *second)), bytes);

  // The next one names who has written a chunk, not who has shared it last.
  bytes[0] ^= 1;
  const auto third = Write(engine_, Memory(bytes), bytes.size(), 0, 300, Base(second));
  EXPECT_EQ(third->ObjectOf(1), first->prefix + ".1");
  EXPECT_EQ(third->ObjectOf(5), second->prefix + ".5");
  EXPECT_EQ(third->ObjectOf(0), third->prefix + ".0");
  EXPECT_EQ(Contents(*Read(engine_, *third)), bytes);
}

TEST_F(EngineTest, AShardOfAnotherSizeSharesWhatIsAlike) {
  const std::string bytes = RandomBytes(5000);
  const auto first = Write(engine_, Memory(bytes), 4500);
  for (const size_t size : {size_t{5000}, size_t{4600}, size_t{2300}, size_t{3000}}) {
    const auto next = Write(engine_, Memory(bytes), size, 0, 200 + size, Base(first));
    ASSERT_TRUE(next);
    EXPECT_EQ(next->elsewhere, (std::vector<ChunkRun>{{0, std::min<size_t>(size / 1000, 4), first->prefix}}));
    EXPECT_EQ(Contents(*Read(engine_, *next)).substr(0, size), bytes.substr(0, size));
  }
}

TEST_F(EngineTest, EveryChunkIsWrittenAnewOnceInAWhile) {
  const std::string bytes = RandomBytes(3500);
  auto last = Write(engine_, Memory(bytes), bytes.size());
  std::set<std::string> first;
  for (size_t i = 0; i < last->chunks.size(); ++i) first.insert(last->ObjectOf(i));
  for (uint64_t turn = 1; turn <= kRewriteEvery; ++turn) {
    last = Write(engine_, Memory(bytes), bytes.size(), 0, 100 + turn, Base(last, turn));
    ASSERT_TRUE(last);
  }
  for (size_t i = 0; i < last->chunks.size(); ++i) EXPECT_FALSE(first.contains(last->ObjectOf(i))) << i;
  EXPECT_EQ(store_->objects().size(), 8U) << "each of four chunks twice";
}

TEST_F(EngineTest, ABaseOfOtherChunksIsNotShared) {
  const std::string bytes = RandomBytes(5000);
  auto first = Write(engine_, Memory(bytes), bytes.size());
  first->chunk_bytes = 500;
  EXPECT_TRUE(Write(engine_, Memory(bytes), bytes.size(), 0, 200, Base(first))->elsewhere.empty());
}

// As libmuster makes it: mapped for writing, then sealed against holes.
class Staging {
 public:
  explicit Staging(const std::string& bytes) : fd_(Memory(bytes)), size_(bytes.size()) {
    at_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(at_, MAP_FAILED);
    EXPECT_EQ(::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  }
  ~Staging() { ::munmap(at_, size_); }
  char* data() { return static_cast<char*>(at_); }
  // The program is dead.
  void Unmap() { ::munmap(std::exchange(at_, nullptr), std::exchange(size_, 0)); }
  std::shared_ptr<StagedMemory> Take() { return *StagedMemory::Take(UniqueFd(::dup(fd_.get()))); }
  const UniqueFd& fd() { return fd_; }

 private:
  UniqueFd fd_;
  size_t size_;
  void* at_;
};

Status Check(Engine& engine, const Shard& shard, StagedMemory& memory) {
  auto done = std::make_shared<std::promise<Status>>();
  engine.CheckStaged(shard, memory, [done](const Status& status) { done->set_value(status); });
  return done->get_future().get();
}

TEST_F(EngineTest, MemoryThatStillHoldsAShardIsFoundToAndCannotBeChangedAnyMore) {
  const std::string bytes = RandomBytes(123456);
  Staging staging(bytes);
  const auto memory = staging.Take();
  EXPECT_FALSE((*memory->View(bytes.size()))->mapped().empty());
  const auto shard = Write(engine_, UniqueFd(::dup(staging.fd().get())), bytes.size());
  ASSERT_TRUE(shard);
  EXPECT_EQ(Check(engine_, *shard, *memory).error().code, Errc::kConflict) << "the program still has it";
  staging.Unmap();
  store_->objects().clear();
  EXPECT_TRUE(Check(engine_, *shard, *memory));
  EXPECT_TRUE(Check(engine_, *shard, *memory)) << "as often as it is asked for";
  EXPECT_EQ(::pwrite(staging.fd().get(), "x", 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, staging.fd().get(), 0), MAP_FAILED);
}

TEST_F(EngineTest, MemoryThatHoldsSomethingElseIsNotHandedOut) {
  for (const bool mapped : {true, false}) {
    std::string bytes = RandomBytes(123456);
    Staging staging(bytes);
    const auto shard = Write(engine_, UniqueFd(::dup(staging.fd().get())), bytes.size(), mapped ? 0 : 1);
    staging.data()[77777] ^= 1;
    bytes[77777] ^= 1;
    staging.Unmap();
    const auto memory = mapped ? staging.Take() : *StagedMemory::Take(Memory(bytes));
    const Status status = Check(engine_, *shard, *memory);
    EXPECT_EQ(status.error().code, Errc::kCorrupt);
    EXPECT_THAT(status.error().message, HasSubstr("holds another shard"));
  }
}

TEST_F(EngineTest, MemoryIsMappedOnlyWhereThatDoesNoHarm) {
  const auto mapped = [](UniqueFd fd, uint64_t bytes) {
    const auto memory = StagedMemory::Take(std::move(fd));
    return memory && !(*(*memory)->View(bytes))->mapped().empty();
  };
  const std::string bytes = RandomBytes(3 * 4096);
  EXPECT_TRUE(mapped(Memory(bytes, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), bytes.size()));
  EXPECT_TRUE(mapped(Memory(bytes, F_SEAL_SHRINK | F_SEAL_WRITE), bytes.size()));
  EXPECT_FALSE(mapped(Memory(bytes, F_SEAL_SHRINK), bytes.size())) << "holes may be punched into it";
  UniqueFd sparse = Memory("");
  EXPECT_EQ(::ftruncate(sparse.get(), 1 << 20), 0);
  EXPECT_EQ(::pwrite(sparse.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_FALSE(mapped(UniqueFd(::dup(sparse.get())), 1 << 20)) << "it has holes";
  EXPECT_TRUE(mapped(UniqueFd(::dup(sparse.get())), bytes.size())) << "behind the shard only";
  EXPECT_EQ(::fallocate(sparse.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  struct stat info {};
  EXPECT_EQ(::fstat(sparse.get(), &info), 0);
  EXPECT_LE(info.st_blocks * 512, 16384) << "looking has allocated nothing";
}

TEST_F(EngineTest, MemoryThatHasGrownIsReadToItsEnd) {
  std::string bytes = RandomBytes(10000);
  UniqueFd fd = Memory(bytes, F_SEAL_SHRINK);
  const auto memory = *StagedMemory::Take(UniqueFd(::dup(fd.get())));
  const auto before = *memory->View(10000);
  bytes += RandomBytes(20000);
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), 30000);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  const auto after = *memory->View(30000);
  EXPECT_EQ(after->mapped().size(), 30000U);
  std::string read(10000, '\0');
  EXPECT_TRUE(before->Read(0, std::as_writable_bytes(std::span(read))))
      << "who reads the older one is not disturbed";
  EXPECT_EQ(read, bytes.substr(0, 10000));
  EXPECT_FALSE(memory->View(30001));
}

TEST_F(EngineTest, ChunksThatDidNotChangeLastTimeAreComparedWithoutACopy) {
  std::string bytes = RandomBytes(20500);
  Staging staging(bytes);
  const auto save = [&](uint64_t step, const ShardBase& base) {
    return Write(engine_, UniqueFd(::dup(staging.fd().get())), bytes.size(), 0, step, base);
  };
  auto last = save(100, {});
  for (uint64_t step = 101; step < 140; ++step) {
    const size_t changed = step * 7919 % bytes.size();
    staging.data()[changed] = bytes[changed] ^= 1;
    last = save(step, Base(last, step - 100));
    ASSERT_TRUE(last);
    EXPECT_EQ(last->PrefixOf(changed / 1000), last->prefix);
    EXPECT_EQ(Contents(*Read(engine_, *last)).substr(0, bytes.size()), bytes);
  }
}

TEST_F(EngineTest, AShardWithoutADigestForEachChunkIsRefused) {
  Shard shard = *Write(engine_, Memory(RandomBytes(2500)), 2500);
  shard.chunks.pop_back();
  EXPECT_EQ(Read(engine_, shard).error().code, Errc::kInvalid);
  shard.chunk_bytes = 0;
  EXPECT_EQ(Read(engine_, shard).error().code, Errc::kInvalid);
}

TEST(EngineEnd, WaitsForWhatIsUnderWay) {
  auto store = std::make_shared<MemoryStore>();
  std::atomic<int> ended{0};
  {
    Engine engine(store, Small());
    for (uint32_t rank = 0; rank < 8; ++rank) {
      engine.WriteShard("u1", ShardPrefix("k", 1, kFence, rank), rank,
                        **StagedMemory::Take(Memory(RandomBytes(20000))), 20000, {},
                        [&](Result<Shard> shard) {
                          EXPECT_TRUE(shard);
                          ++ended;
                        });
    }
  }
  EXPECT_EQ(ended, 8);
}

// Speed is for tests/bench; this is that more are under way, no more than may be, and that all arrive.
TEST(EngineDepth, AStoreThatIsFarAwayHasMoreUnderWay) {
  const auto store = std::make_shared<MemoryStore>();
  store->SetLatency(std::chrono::milliseconds(10));
  EngineOptions options = Small();
  options.most_buffers = 48;
  options.write_niceness = 0;
  const std::string bytes = RandomBytes(600'000);
  {
    options.most_buffer_bytes = 6 * options.chunk_bytes;
    Engine bounded(store, options);
    ASSERT_TRUE(Write(bounded, Memory(bytes), bytes.size()));
    EXPECT_LE(store->most_at_once(), options.window);
    EXPECT_LE(store->buffers_made(), options.buffers);
  }
  options.most_buffer_bytes = 1 << 20;
  Engine engine(store, options);
  const auto shard = Write(engine, Memory(bytes), bytes.size(), 0, 101);
  ASSERT_TRUE(shard) << shard.error().message;
  EXPECT_GT(store->most_at_once(), options.buffers);
  EXPECT_LE(store->most_at_once(), options.most_buffers * options.window / options.buffers) << "of one shard";
  EXPECT_LE(store->buffers_made(), options.buffers + options.most_buffers);
  const auto memory = Read(engine, *shard);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(Contents(*memory), bytes);
}

TEST(EngineOverADirectory, ReadsBackWhatItWrote) {
  const TemporaryDirectory root;
  StoreOptions options;
  options.url = "dir:" + root.path();
  Engine engine(OpenStore(options).value(), EngineOptions{});
  const std::string bytes = RandomBytes((9 << 20) + 17);
  const auto shard = Write(engine, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard) << shard.error().message;
  EXPECT_EQ(shard->chunks.size(), 3u);
  const auto memory = Read(engine, *shard);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(Contents(*memory), bytes);
}

}  // namespace
}  // namespace muster
