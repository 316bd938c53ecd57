#include "ceph/engine/engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <random>
#include <set>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr Fence kFence{1, 2};

std::string RandomBytes(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

UniqueFd Memory(const std::string& bytes, int seals = F_SEAL_SHRINK) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

std::string Contents(const UniqueFd& fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), info.st_size);
  return bytes;
}

EngineOptions Small() {
  EngineOptions options;
  options.chunk_bytes = 1000;
  options.window = 4;
  options.buffers = 6;
  options.first_pause = std::chrono::milliseconds(1);
  return options;
}

Result<Shard> Write(Engine& engine, UniqueFd memory, uint64_t bytes, uint32_t rank = 0) {
  auto done = std::make_shared<std::promise<Result<Shard>>>();
  engine.WriteShard("u1", "k", 100, kFence, rank, std::move(memory), bytes,
                    [done](Result<Shard> shard) { done->set_value(std::move(shard)); });
  return done->get_future().get();
}

Result<UniqueFd> Read(Engine& engine, const Shard& shard) {
  auto done = std::make_shared<std::promise<Result<UniqueFd>>>();
  engine.ReadShard("u1", shard, [done](Result<UniqueFd> memory) { done->set_value(std::move(memory)); });
  return done->get_future().get();
}

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
    EXPECT_EQ(shard->prefix, "data/k/100.1.2/0");
    EXPECT_EQ(shard->chunks[0], DigestOf(std::string_view(bytes).substr(0, 1000)));
    EXPECT_EQ(*store_->Bytes("data/k/100.1.2/0.0"), bytes.substr(0, 1000));
    const auto memory = Read(engine_, *shard);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(Contents(*memory), bytes);
  }
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
  EXPECT_EQ(store_->Bytes("data/k/100.1.2/0.1")->size(), 500u);
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
  store_->objects().erase("data/k/100.1.2/0.3");
  const auto memory = Read(engine_, *shard);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_THAT(memory.error().message, HasSubstr("data/k/100.1.2/0.3"));
  EXPECT_THAT(memory.error().message, HasSubstr("missing"));
}

TEST_F(EngineTest, AFlippedByteIsCorrupt) {
  const auto shard = Write(engine_, Memory(RandomBytes(5500)), 5500);
  (*store_->Bytes("data/k/100.1.2/0.5"))[499] ^= 1;
  const auto memory = Read(engine_, *shard);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_THAT(memory.error().message, HasSubstr("data/k/100.1.2/0.5"));
  EXPECT_THAT(memory.error().message, HasSubstr("digest"));
}

TEST_F(EngineTest, AnObjectThatIsCutOffOrTooLongIsCorrupt) {
  const auto shard = Write(engine_, Memory(RandomBytes(5500)), 5500);
  store_->Bytes("data/k/100.1.2/0.0")->resize(999);
  EXPECT_THAT(Read(engine_, *shard).error().message, HasSubstr("cut off: 999 bytes"));
  store_->Bytes("data/k/100.1.2/0.0")->resize(1001);
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
  (*store_->Bytes("data/k/100.1.2/2.1"))[0] ^= 0x80;
  const Status status = engine_.Verify("u1", manifest);
  EXPECT_EQ(status.error().code, Errc::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr("data/k/100.1.2/2.1"));
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
  const auto shard = Write(engine_, Memory(RandomBytes(1000000)), 1000000);
  EXPECT_EQ(shard.error().code, Errc::kExhausted);
  EXPECT_LT(tries, 500);  // of 1000 chunks: most are not even begun
}

TEST_F(EngineTest, KeepsToItsWindowAndItsBuffers) {
  std::vector<std::future<Result<Shard>>> writes;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    auto done = std::make_shared<std::promise<Result<Shard>>>();
    writes.push_back(done->get_future());
    engine_.WriteShard("u1", "k", 100, kFence, rank, Memory(RandomBytes(100000 + rank)), 100000 + rank,
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
      engine.WriteShard("u1", "k", 1, kFence, rank, Memory(RandomBytes(20000)), 20000,
                        [&](Result<Shard> shard) {
                          EXPECT_TRUE(shard);
                          ++ended;
                        });
    }
  }
  EXPECT_EQ(ended, 8);
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
