#include "ceph/catalog/stored_bytes.h"

#include <gtest/gtest.h>

#include <memory>

#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

// Of each object the bytes that it has, once, however many checkpoints share it.
TEST(StoredBytes, AreThoseOfTheObjects) {
  const auto store = std::make_shared<MemoryStore>();
  Catalog catalog(store, "u1", "k");
  ASSERT_TRUE(catalog.TakeOver("record", "entry"));
  ASSERT_TRUE(catalog.Advance({1, 0}, {1, 1}, "record"));
  // 2500 bytes in three chunks.
  Manifest first = SampleManifest("k", 10, {1, 1}, 1);
  ASSERT_TRUE(first.shards[0].AddEncoded({0, 4, {100, 200}}));
  ASSERT_TRUE(catalog.Commit(first, 5));
  Manifest second = SampleManifest("k", 20, {1, 1}, 1);
  second.shards[0].AddElsewhere(1, first.shards[0].prefix);
  ASSERT_TRUE(second.shards[0].AddEncoded({1, 4, {200}}));
  ASSERT_TRUE(catalog.Commit(second, 5));

  const auto head = catalog.Load();
  ASSERT_TRUE(head);
  const StoredBytes stored = CountStoredBytes(catalog, head->checkpoints);
  EXPECT_TRUE(stored.unreadable.empty());
  EXPECT_EQ(stored.bytes, (100U + 200U + 500U) + (1000U + 500U));
  StorageUse uses(store, "u1");
  // What does not read for a moment is counted the next time.
  store->SetFault([](const std::string& operation, const std::string& name) -> Status {
    if (operation != "read" || !name.ends_with("/manifest")) return {};
    return Error{Errc::kUnavailable, "no answer"};
  });
  EXPECT_EQ(*uses.Read(), 0U);
  store->SetFault(nullptr);
  for (int times = 0; times < 2; ++times) EXPECT_EQ(*uses.Read(), stored.bytes);
}

}  // namespace
}  // namespace muster
