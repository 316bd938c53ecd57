#include "ceph/store/cluster_store.h"

#include <gmock/gmock.h>

#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/store_contract.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<Store> Shared(const std::string& path) {
  auto store = OpenStore({.url = "dir:" + path});
  EXPECT_TRUE(store) << store.error().message;
  return store ? std::move(*store) : nullptr;
}

std::unique_ptr<Store> Of(const std::string& cluster, std::shared_ptr<Store> shared) {
  auto store = std::make_unique<ClusterStore>(std::move(shared));
  store->SetCluster(cluster);
  return store;
}

std::unique_ptr<Store> OpenFresh() {
  static const TemporaryDirectory root;
  static int count = 0;
  return Of("alpha", Shared(root.path() + "/store" + std::to_string(count++)));
}

INSTANTIATE_TEST_SUITE_P(Cluster, StoreContract, testing::Values(MakeStore(&OpenFresh)));

TEST(ClusterStore, TwoClustersOnOneStoreDoNotSeeEachOther) {
  const TemporaryDirectory root;
  const auto shared = Shared(root.path());
  const auto alpha = Of("alpha", shared);
  const auto beta = Of("beta", shared);
  ASSERT_TRUE(alpha->Write({"u1", "data/k/1"}, "alpha's"));
  ASSERT_TRUE(alpha->UpdateHead({"u1", "gang/k"}, {std::nullopt, "1", {{"latest", "1"}}, {}}));
  EXPECT_EQ(beta->Read({"u1", "data/k/1"}).error().code, Errc::kNotFound);
  EXPECT_EQ(beta->ReadHead({"u1", "gang/k"}).error().code, Errc::kNotFound);
  EXPECT_THAT(*beta->ListSpaces(), IsEmpty());
  ASSERT_TRUE(beta->Write({"u1", "data/k/1"}, "beta's"));
  ASSERT_TRUE(beta->Remove({"u1", "data/k/1"}));
  EXPECT_EQ(*alpha->Read({"u1", "data/k/1"}), "alpha's");
  EXPECT_THAT(*alpha->ListSpaces(), ElementsAre("u1"));
}

TEST(ClusterStore, AnIdIsOfTheStoreAndTheCluster) {
  ClusterStore store(std::make_shared<MemoryStore>());
  EXPECT_EQ(store.Id(), "");
  store.SetCluster("alpha");
  EXPECT_EQ(store.Id(), "alpha in memory:1");
}

TEST(ClusterStore, SaysWhereAnObjectLiesByTheNameThatTheStoreHas) {
  const TemporaryDirectory root;
  const auto shared = Shared(root.path());
  EXPECT_EQ(Of("alpha", shared)->Where({"u1", "data/k/1"}), "alpha.u1/data/k/1 in " + shared->Describe());
}

TEST(ClusterStore, ANameThatASpaceCannotHaveIsMadeOne) {
  const TemporaryDirectory root;
  const auto shared = Shared(root.path());
  ASSERT_TRUE(Of("../a.b/c", shared)->Write({"u1", "x"}, "1"));
  EXPECT_THAT(*shared->ListSpaces(), ElementsAre("___a_b_c.u1"));
}

TEST(ClusterStore, UntilTheNameIsKnownNothingIsReadOrWritten) {
  const TemporaryDirectory root;
  const auto shared = Shared(root.path());
  ClusterStore store(shared);
  const ObjectName object{"u1", "x"};
  EXPECT_EQ(store.Write(object, "1").error().code, Errc::kUnavailable);
  EXPECT_THAT(store.Write(object, "1").error().message, HasSubstr("does slurmctld answer?"));
  EXPECT_EQ(store.Read(object).error().code, Errc::kUnavailable);
  EXPECT_EQ(store.Remove(object).error().code, Errc::kUnavailable);
  EXPECT_EQ(store.List("u1", "").error().code, Errc::kUnavailable);
  EXPECT_EQ(store.ListSpaces().error().code, Errc::kUnavailable);
  EXPECT_EQ(store.ReadHead(object).error().code, Errc::kUnavailable);
  EXPECT_EQ(store.UpdateHead(object, {}).error().code, Errc::kUnavailable);
  const auto buffer = store.NewBuffer(1);
  Status written;
  store.WriteAsync(object, *buffer, 1, [&](Status status) { written = std::move(status); });
  EXPECT_EQ(written.error().code, Errc::kUnavailable);
  Result<StoreData> read = StoreData();
  store.ReadAsync(object, 1, [&](Result<StoreData> data) { read = std::move(data); });
  EXPECT_EQ(read.error().code, Errc::kUnavailable);
  EXPECT_THAT(*shared->ListSpaces(), IsEmpty());
}

}  // namespace
}  // namespace muster
