#include "daemon/service/storage_report.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/stored_bytes.h"

namespace muster {
namespace {

using nlohmann::json;

// "u20001"
std::optional<uint32_t> UidOf(const std::string& space) {
  uint32_t uid = 0;
  const char* end = space.data() + space.size();
  if (!space.starts_with('u') || space.size() < 2) return std::nullopt;
  const auto [at, error] = std::from_chars(space.data() + 1, end, uid);
  if (error != std::errc() || at != end) return std::nullopt;
  return uid;
}

Result<json> KeyJson(const std::shared_ptr<Store>& store, const std::string& space, const std::string& key,
                     const std::string& index_entry) {
  Catalog catalog(store, space, key);
  const Result<GangHead> head = catalog.Load();
  if (!head) {
    if (head.error().code != Errc::kNotFound) return head.error();
    return json();
  }
  const json index = json::parse(index_entry, nullptr, false);
  const bool named = index.is_object() && index.contains("gang") && index["gang"].is_string();
  uint64_t bytes = 0;
  for (const CheckpointInfo& info : head->checkpoints) bytes += info.bytes;
  const StoredBytes stored = CountStoredBytes(catalog, head->checkpoints);
  return json{{"key", key},
              {"gang", named ? index["gang"] : json("")},
              {"checkpoints", head->checkpoints.size()},
              {"latest", head->latest ? json(*head->latest) : json()},
              {"bytes", bytes},
              {"stored_bytes", stored.bytes},
              {"unreadable", stored.unreadable}};
}

Result<json> UserJson(const std::shared_ptr<Store>& store, const std::string& space) {
  const auto index = Catalog::ListKeys(*store, space);
  if (!index) return index.error();
  json user = {{"uid", *UidOf(space)}, {"checkpoints", 0}, {"bytes", 0}, {"stored_bytes", 0}};
  json keys = json::array();
  for (const auto& [key, entry] : *index) {
    Result<json> item = KeyJson(store, space, key, entry);
    if (!item) return item;
    if (item->is_null()) continue;
    for (const char* sum : {"checkpoints", "bytes", "stored_bytes"})
      user[sum] = user[sum].get<uint64_t>() + (*item)[sum].get<uint64_t>();
    if ((*item)["checkpoints"] != 0) keys.push_back(*std::move(item));
  }
  user["keys"] = std::move(keys);
  return user;
}

}  // namespace

Result<json> StorageReport(const std::shared_ptr<Store>& store, const std::optional<std::string>& space,
                           uint64_t user_limit) {
  std::vector<std::string> spaces;
  if (space) {
    spaces.push_back(*space);
  } else {
    const auto all = store->ListSpaces();
    if (!all) return all.error();
    std::copy_if(all->begin(), all->end(), std::back_inserter(spaces),
                 [](const std::string& name) { return UidOf(name).has_value(); });
  }
  json users = json::array();
  for (const std::string& one : spaces) {
    Result<json> user = UserJson(store, one);
    if (!user) return user;
    users.push_back(*std::move(user));
  }
  return json{{"store", store->Describe()},
              {"user_limit", user_limit == 0 ? json() : json(user_limit)},
              {"users", std::move(users)}};
}

}  // namespace muster
