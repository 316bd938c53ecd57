// The RADOS store against a cluster. Not a unit test: MUSTER_TEST_RADOS_POOL names a pool,
// MUSTER_TEST_CEPH_CONF the configuration (default /etc/ceph/ceph.conf) and MUSTER_TEST_CEPH_USER the client
// (default admin). It works in the namespaces u1, u2 of that pool and empties u1.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <rados/librados.hpp>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "ceph/engine/engine.h"
#include "ceph/engine/shard_memory.h"
#include "tests/unit/ceph/sample_manifest.h"
#include "tests/unit/ceph/store_contract.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

StoreOptions Options() {
  StoreOptions options;
  options.url = "rados:" + Environment("MUSTER_TEST_RADOS_POOL", "");
  options.ceph_conf = Environment("MUSTER_TEST_CEPH_CONF", "/etc/ceph/ceph.conf");
  options.ceph_user = Environment("MUSTER_TEST_CEPH_USER", "admin");
  options.operation_timeout_seconds = 10;
  return options;
}

// Of a cluster whose only monitor is said to be there, with a key that none knows; `directory` holds the files.
StoreOptions WithMonitor(const std::string& address, const TemporaryDirectory& directory) {
  StoreOptions options = Options();
  options.ceph_conf = directory.path() + "/ceph.conf";
  std::ofstream(options.ceph_conf) << "[global]\nmon_host = " << address << "\nkeyring = " << directory.path()
                                   << "/keyring\n";
  std::ofstream(directory.path() + "/keyring")
      << "[client.admin]\n\tkey = AQAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAA==\n";
  return options;
}

std::unique_ptr<Store> Open() {
  auto store = OpenStore(Options());
  EXPECT_TRUE(store) << store.error().message;
  if (!store) return nullptr;
  // Heads are objects here, so this removes them too.
  const auto names = (*store)->List("u1", "");
  EXPECT_TRUE(names) << names.error().message;
  if (names) {
    for (const std::string& name : *names) EXPECT_TRUE((*store)->Remove({"u1", name}));
  }
  return std::move(*store);
}

INSTANTIATE_TEST_SUITE_P(Rados, StoreContract, testing::Values(MakeStore(&Open)));

UniqueFd Memory(const std::string& bytes) {
  Result<UniqueFd> memory = MakeShardMemory(bytes.size());
  EXPECT_TRUE(memory);
  EXPECT_TRUE(WriteShardMemory(*memory, 0, std::as_bytes(std::span(bytes))));
  EXPECT_TRUE(SealShardMemory(*memory));
  return std::move(*memory);
}

template <typename T, typename Start>
T Wait(Start start) {
  auto done = std::make_shared<std::promise<T>>();
  start([done](T result) { done->set_value(std::move(result)); });
  return done->get_future().get();
}

TEST(RadosStore, AnIdIsOfTheClusterAndThePool) {
  const auto store = Open();
  ASSERT_TRUE(store);
  EXPECT_THAT(store->Id(), testing::MatchesRegex("rados:[-0-9a-f]{36}/[0-9]+"));
  EXPECT_EQ(Open()->Id(), store->Id());
}

TEST(RadosStore, AShardGoesThereAndBack) {
  std::shared_ptr<Store> store = Open();
  ASSERT_TRUE(store);
  Engine engine(store, EngineOptions{});
  std::string bytes((64 << 20) + 12345, '\0');
  for (size_t i = 0; i < bytes.size(); i += 7) bytes[i] = static_cast<char>(i * 31 >> 5);
  const auto begin = std::chrono::steady_clock::now();
  const auto shard = Wait<Result<Shard>>([&](auto done) {
    engine.WriteShard("u1", ShardPrefix("k", 1, {1, 1}, 0), 0, **StagedMemory::Take(Memory(bytes)),
                      bytes.size(), {}, done);
  });
  ASSERT_TRUE(shard) << shard.error().message;
  const auto middle = std::chrono::steady_clock::now();
  const auto memory = Wait<Result<UniqueFd>>([&](auto done) { engine.ReadShard("u1", *shard, done); });
  ASSERT_TRUE(memory) << memory.error().message;
  const auto end = std::chrono::steady_clock::now();
  std::string again(bytes.size(), '\0');
  ASSERT_EQ(::pread(memory->get(), again.data(), again.size(), 0), static_cast<ssize_t>(again.size()));
  EXPECT_TRUE(again == bytes);
  const auto rate = [&](auto from, auto to) {
    return static_cast<double>(bytes.size()) / 1e6 / std::chrono::duration<double>(to - from).count();
  };
  std::printf("64 MiB: write %.0f MB/s, read and verify %.0f MB/s\n", rate(begin, middle), rate(middle, end));
}

TEST(RadosStore, AFlippedByteAndAMissingObjectAreFound) {
  std::shared_ptr<Store> store = Open();
  ASSERT_TRUE(store);
  EngineOptions options;
  options.chunk_bytes = 4096;
  Engine engine(store, options);
  const std::string bytes(20000, 'x');
  const auto shard = Wait<Result<Shard>>([&](auto done) {
    engine.WriteShard("u1", ShardPrefix("k", 1, {1, 1}, 0), 0, **StagedMemory::Take(Memory(bytes)),
                      bytes.size(), {}, done);
  });
  ASSERT_TRUE(shard) << shard.error().message;
  ASSERT_TRUE(store->Write({"u1", shard->prefix + ".2"}, std::string(4095, 'x') + "y"));
  auto memory = Wait<Result<UniqueFd>>([&](auto done) { engine.ReadShard("u1", *shard, done); });
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  ASSERT_TRUE(store->Remove({"u1", shard->prefix + ".2"}));
  memory = Wait<Result<UniqueFd>>([&](auto done) { engine.ReadShard("u1", *shard, done); });
  EXPECT_EQ(memory.error().code, Errc::kCorrupt);
  EXPECT_NE(memory.error().message.find("missing"), std::string::npos) << memory.error().message;
}

TEST(RadosStore, ACatalogCommitsPrunesAndCollects) {
  std::shared_ptr<Store> store = Open();
  ASSERT_TRUE(store);
  Catalog catalog(store, "u1", "k");
  ASSERT_TRUE(catalog.TakeOver("record", "entry"));
  const Fence fence{1, 1};
  ASSERT_TRUE(catalog.Advance({1, 0}, fence, "record 1"));
  for (const uint64_t step : {1, 2, 3}) {
    const Manifest manifest = SampleManifest("k", step, fence, 2);
    for (const Shard& shard : manifest.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        ASSERT_TRUE(store->Write({"u1", ChunkName(shard.prefix, i)}, "chunk"));
      }
    }
    const auto removed = catalog.Commit(manifest, 2);
    ASSERT_TRUE(removed) << removed.error().message;
    EXPECT_EQ(removed->size(), step == 3 ? 1u : 0u);
  }
  EXPECT_EQ(catalog.Load()->latest, 3u);
  EXPECT_EQ(store->List("u1", "data/k/")->size(), 2u * 7);
  EXPECT_TRUE(catalog.LoadManifest(3));
  ASSERT_TRUE(store->Write({"u1", "data/k/9.1.1/0.0"}, "torn"));
  ASSERT_TRUE(catalog.Advance(fence, {1, 2}, "record 2"));
  EXPECT_EQ(*catalog.CollectOrphans({1, 2}), 1u);
  EXPECT_EQ(catalog.Commit(SampleManifest("k", 4, fence, 1), 2).error().code, Errc::kConflict);
  EXPECT_EQ(Catalog::ListKeys(*store, "u1")->size(), 1u);
}

TEST(RadosStore, AnObjectThatIsNoHeadIsCorrupt) {
  const auto store = Open();
  ASSERT_TRUE(store);
  ASSERT_TRUE(store->Write({"u1", "gang/x"}, "an object"));
  EXPECT_EQ(store->ReadHead({"u1", "gang/x"}).error().code, Errc::kCorrupt);
  EXPECT_EQ(store->UpdateHead({"u1", "gang/x"}, {"f", "g", {}, {}}).error().code, Errc::kConflict);
}

TEST(RadosStore, AnUnreachableClusterIsAnErrorWithinTheTimeout) {
  const TemporaryDirectory directory;
  StoreOptions options = WithMonitor("192.0.2.1", directory);  // TEST-NET-1: nobody answers there
  options.operation_timeout_seconds = 2;
  const auto begin = std::chrono::steady_clock::now();
  const auto store = OpenStore(options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ASSERT_FALSE(store);
  std::printf("%s\n", store.error().message.c_str());
}

// As of a musterd that is restarted while Ceph is down.
TEST(RadosStore, ThatDoesNotAnswerMayComeLate) {
  const TemporaryDirectory directory;
  StoreOptions options = WithMonitor("127.0.0.1:1", directory);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> told;
  options.operation_timeout_seconds = 5;
  options.late = [&](const Status& status) {
    const std::lock_guard lock(mutex);
    told.push_back(status.ok());
    changed.notify_all();
  };
  const auto store = OpenStore(options);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->Write({"u1", "late"}, "x").error().code, Errc::kUnavailable);
  EXPECT_EQ((*store)->ListSpaces().error().code, Errc::kUnavailable);
  // Now it is there.
  std::filesystem::copy_file(Options().ceph_conf, options.ceph_conf,
                             std::filesystem::copy_options::overwrite_existing);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return !told.empty() && told.back(); }));
  EXPECT_FALSE(told.front());
  lock.unlock();
  EXPECT_TRUE((*store)->Write({"u1", "late"}, "x"));
  EXPECT_EQ(*(*store)->Read({"u1", "late"}), "x");
}

TEST(RadosStore, ThatIsWrongIsAnErrorAtOnceAlsoWhereItMayComeLate) {
  StoreOptions options = Options();
  options.late = [](const Status&) { ADD_FAILURE() << "told of a mistake"; };
  options.url = "rados:no-such-pool";
  EXPECT_EQ(OpenStore(options).error().code, Errc::kNotFound);
}

TEST(RadosStore, SaysWhatIsMissing) {
  StoreOptions options = Options();
  options.ceph_conf = "/nonexistent/ceph.conf";
  EXPECT_NE(OpenStore(options).error().message.find("/nonexistent/ceph.conf"), std::string::npos);
  options = Options();
  options.url = "rados:no-such-pool";
  const auto store = OpenStore(options);
  EXPECT_EQ(store.error().code, Errc::kNotFound);
  EXPECT_NE(store.error().message.find("no-such-pool"), std::string::npos);
  options = Options();
  options.ceph_user = "nobody-of-that-name";
  EXPECT_FALSE(OpenStore(options));
}

class WithAdministration : public testing::Test {
 protected:
  void SetUp() override {
    const StoreOptions options = Options();
    ASSERT_EQ(cluster_.init2("client.admin", "ceph", 0), 0);
    ASSERT_EQ(cluster_.conf_read_file(options.ceph_conf.c_str()), 0);
    ASSERT_EQ(cluster_.connect(), 0);
    pool_ = Environment("MUSTER_TEST_RADOS_POOL", "");
  }
  int Command(const std::string& json, std::string* out = nullptr) {
    librados::bufferlist in;
    librados::bufferlist output;
    std::string status;
    const int rc = cluster_.mon_command(json, in, &output, &status);
    if (out != nullptr) *out = output.to_str();
    return rc;
  }
  int SetQuota(const std::string& objects) {
    return Command(R"({"prefix":"osd pool set-quota","pool":")" + pool_ +
                   R"(","field":"max_objects","val":")" + objects + "\"}");
  }
  librados::Rados cluster_;
  std::string pool_;
};

TEST_F(WithAdministration, APoolAtItsQuotaIsExhaustedButHeadsAndRemovalsWork) {
  const auto store = Open();
  ASSERT_TRUE(store);
  ASSERT_TRUE(store->UpdateHead({"u1", "gang/q"}, {std::nullopt, "f", {}, {}}));
  ASSERT_TRUE(store->Write({"u1", "o1"}, "x"));
  ASSERT_EQ(SetQuota("1"), 0);
  // The quota takes hold when the monitors have heard of the usage, and for writes that add to it: add until
  // it does.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  Status status;
  for (int i = 0; status && std::chrono::steady_clock::now() < deadline; ++i) {
    status = store->Write({"u1", "fill" + std::to_string(i)}, "x");
    ::usleep(100'000);
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kExhausted) << status.error().message;
  std::printf("%s\n", status.error().message.c_str());
  const Status head = store->UpdateHead({"u1", "gang/q"}, {"f", "g", {{"a", "b"}}, {}});
  EXPECT_TRUE(head) << head.error().message;
  const Status another = store->UpdateHead({"u1", "gang/q2"}, {std::nullopt, "f", {{"a", "b"}}, {}});
  EXPECT_TRUE(another) << another.error().message;
  EXPECT_TRUE(store->Remove({"u1", "o1"}));
  EXPECT_EQ(SetQuota("0"), 0);
  const auto recovered = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!(status = store->Write({"u1", "after"}, "x")) && std::chrono::steady_clock::now() < recovered) {
    ::usleep(100'000);
  }
  EXPECT_TRUE(status) << status.error().message;
}

// More than 100 MiB, librados' own limit, behind which whoever asks would wait.
TEST_F(WithAdministration, WhoHandsOverChunksIsNotHeldUpByAClusterThatTakesNone) {
  const auto store = Open();
  ASSERT_TRUE(store);
  constexpr size_t kChunk = 4 << 20;
  constexpr int kChunks = 64;
  const auto buffer = store->NewBuffer(kChunk);
  std::memset(buffer->memory().data(), 7, kChunk);
  ASSERT_EQ(Command(R"({"prefix":"osd pause"})"), 0);
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;
  auto handed = std::async(std::launch::async, [&] {
    for (int i = 0; i < kChunks; ++i) {
      store->WriteAsync({"u1", "c" + std::to_string(i)}, *buffer, kChunk, [&](const Status& /*status*/) {
        const std::lock_guard lock(mutex);
        ++ended;
        changed.notify_all();
      });
    }
  });
  // The operations' own timeout is 10 s.
  EXPECT_EQ(handed.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(Command(R"({"prefix":"osd unpause"})"), 0);
  handed.get();
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended == kChunks; }));
}

TEST_F(WithAdministration, AKeyForOneNamespaceIsDeniedInAnother) {
  std::string keyring;
  ASSERT_EQ(
      Command(R"({"prefix":"auth get-or-create","entity":"client.muster-test","caps":["mon","allow r","osd",)"
              R"("allow rwx pool=)" +
                  pool_ + R"( namespace=u1"]})",
              &keyring),
      0);
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/keyring") << keyring;
  std::ifstream original(Options().ceph_conf);
  std::ofstream(directory.path() + "/ceph.conf")
      << original.rdbuf() << "\n[client.muster-test]\nkeyring = " << directory.path() << "/keyring\n";
  StoreOptions options = Options();
  options.ceph_conf = directory.path() + "/ceph.conf";
  options.ceph_user = "muster-test";
  const auto store = OpenStore(options);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_TRUE((*store)->Write({"u1", "o"}, "x"));
  const Status denied = (*store)->Write({"u2", "o"}, "x");
  EXPECT_EQ(denied.error().code, Errc::kDenied) << denied.error().message;
  EXPECT_EQ((*store)->Read({"u2", "o"}).error().code, Errc::kDenied);
  EXPECT_EQ(Command(R"({"prefix":"auth rm","entity":"client.muster-test"})"), 0);
}

}  // namespace
}  // namespace muster
