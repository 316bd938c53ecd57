#include "ceph/exchange/leaf_tree.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace muster {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 1000;  // of lists and objects in one another; Python's own limit is about that

Error Wrong(const std::string& what) {
  return {Errc::kInvalid, "it is not a structure that the Python package has written: " + what};
}

class Walk {
 public:
  std::vector<TreeLeaf> leaves;

  Status Node(const json& node, const std::string& path, int depth) {
    if (depth > kMaxDepth) return Wrong("it is nested too deeply");
    if (node.is_array()) return Items(node, path, depth);
    if (!node.is_object()) return {};
    if (node.size() != 1) return Wrong("an object has not one key");
    const std::string& kind = node.begin().key();
    const json& value = node.begin().value();
    if (kind == "dict" || kind == "ordered" || kind == "counter") return Pairs(value, path, depth);
    if (kind == "default") {
      const bool named = value.is_array() && value.size() == 2;
      return named ? Pairs(value[1], path, depth) : Wrong("a defaultdict is no pair");
    }
    if (kind == "tuple") return value.is_array() ? Items(value, path, depth) : Wrong("a tuple is no list");
    if (kind == "float" || kind == "complex") return {};
    if (kind != "tensor" && kind != "array" && kind != "scalar" && kind != "bytes")
      return Wrong("it has the unknown kind '" + kind.substr(0, 40) + "'");
    if (!value.is_number_unsigned()) return Wrong("a leaf has no number");
    leaves.push_back(
        {std::to_string(value.get<uint64_t>()), names_.Take(path.empty() ? "state" : path), kind});
    return {};
  }

 private:
  static std::string Join(const std::string& path, const std::string& part) {
    return path.empty() ? part : path + "." + part;
  }

  Status Items(const json& items, const std::string& path, int depth) {
    size_t place = 0;
    for (const json& item : items) {
      if (Status status = Node(item, Join(path, std::to_string(place++)), depth + 1); !status) return status;
    }
    return {};
  }

  Status Pairs(const json& pairs, const std::string& path, int depth) {
    if (!pairs.is_array()) return Wrong("a dict is no list of pairs");
    for (const json& pair : pairs) {
      if (!pair.is_array() || pair.size() != 2) return Wrong("a dict is no list of pairs");
      const std::string key = pair[0].is_string() ? pair[0].get<std::string>() : pair[0].dump();
      if (Status status = Node(pair[1], Join(path, key), depth + 1); !status) return status;
    }
    return {};
  }

  UniqueNames names_;
};

}  // namespace

std::string UniqueNames::Take(const std::string& name) {
  std::string unique = name;
  for (int n = 2; !taken_.insert(unique).second; ++n) unique = name + "~" + std::to_string(n);
  return unique;
}

bool IsTreeStructure(const ShardEntryInfo& entry) {
  if (entry.name != kTreeStructure) return false;
  const json meta = json::parse(entry.meta, nullptr, false);
  return meta == json::parse(kTreeMeta);
}

Result<std::vector<TreeLeaf>> TreeLeaves(std::string_view structure) {
  bool deep = false;
  const json root = json::parse(
      structure,
      [&](int depth, json::parse_event_t /*event*/, json& /*parsed*/) {
        deep |= depth > 3 * kMaxDepth;
        return !deep;
      },
      false);
  if (deep || root.is_discarded()) return Wrong(deep ? "it is nested too deeply" : "it is not JSON");
  Walk walk;
  if (Status status = walk.Node(root, "", 0); !status) return status.error();
  return std::move(walk.leaves);
}

}  // namespace muster
