#include "daemon/proto/node_table.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hostlist.h"

namespace muster {
namespace {

constexpr size_t kMaxTasks = 1U << 24;  // of a step

using Runs = google::protobuf::RepeatedField<int64_t>;
using Counts = google::protobuf::RepeatedField<uint32_t>;

// Appends values to runs.
class RunWriter {
 public:
  explicit RunWriter(Runs* runs) : runs_(runs) {}
  void Add(uint32_t value) {
    if (runs_->empty() || value != next_) {
      runs_->Add(static_cast<int64_t>(value) - next_);
      runs_->Add(0);
    }
    runs_->Set(runs_->size() - 1, runs_->Get(runs_->size() - 1) + 1);
    next_ = static_cast<int64_t>(value) + 1;
  }

 private:
  Runs* runs_;
  int64_t next_ = 0;
};

// Nothing unless the runs have exactly `count` values that are 32 bits wide.
std::optional<std::vector<uint32_t>> ReadRuns(const Runs& runs, size_t count) {
  constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> values;
  if (runs.size() % 2 != 0) return std::nullopt;
  int64_t next = 0;
  for (int i = 0; i < runs.size(); i += 2) {
    const int64_t jump = runs.Get(i);
    const int64_t length = runs.Get(i + 1);
    if (jump < -kMax - 1 || jump > kMax || length < 1 ||
        static_cast<uint64_t>(length) > count - values.size())
      return std::nullopt;
    next += jump;
    if (next < 0 || next + length - 1 > kMax) return std::nullopt;
    for (int64_t end = next + length; next < end; ++next) values.push_back(static_cast<uint32_t>(next));
  }
  if (values.size() != count) return std::nullopt;
  return values;
}

void AddSize(Counts* sizes, uint32_t size) {
  const int last = sizes->size();
  if (last == 0 || sizes->Get(last - 2) != size) {
    sizes->Add(size);
    sizes->Add(1);
  } else {
    sizes->Set(last - 1, sizes->Get(last - 1) + 1);
  }
}

std::optional<std::vector<uint32_t>> ReadSizes(const Counts& sizes, size_t count) {
  std::vector<uint32_t> values;
  if (sizes.size() % 2 != 0) return std::nullopt;
  for (int i = 0; i < sizes.size(); i += 2) {
    if (sizes.Get(i + 1) > count - values.size()) return std::nullopt;
    values.insert(values.end(), sizes.Get(i + 1), sizes.Get(i));
  }
  if (values.size() != count) return std::nullopt;
  return values;
}

Error Contradiction(const std::string& what) {
  return Error{Errc::kInvalid, "the coordinator's table of nodes contradicts itself: " + what};
}

}  // namespace

void PackNodes(v1::Start* start) {
  v1::NodeTable table;
  std::vector<std::string> names;
  RunWriter nodes(table.mutable_nodes());
  RunWriter tasks(table.mutable_tasks());
  RunWriter ranks(table.mutable_ranks());
  int32_t port = 0;
  for (v1::NodeSpec& node : *start->mutable_nodes()) {
    names.push_back(std::move(*node.mutable_name()));
    nodes.Add(node.node());
    AddSize(table.mutable_sizes(), static_cast<uint32_t>(node.ranks_size()));
    for (const uint32_t task : node.tasks()) tasks.Add(task);
    for (const uint32_t rank : node.ranks()) ranks.Add(rank);
    table.add_lease_ports(static_cast<int32_t>(node.lease_port()) - port);
    port = static_cast<int32_t>(node.lease_port());
    const int role = table.roles_size();
    if (role == 0 || table.roles(role - 1) != node.role() || table.role_kinds(role - 1) != node.kind()) {
      table.add_roles(std::move(*node.mutable_role()));
      table.add_role_kinds(node.kind());
      table.add_role_counts(1);
    } else {
      table.set_role_counts(role - 1, table.role_counts(role - 1) + 1);
    }
  }
  table.set_names(CompressHostlist(names));
  start->clear_nodes();
  *start->mutable_table() = std::move(table);
}

Status UnpackNodes(v1::Start* start) {
  if (!start->has_table()) return {};
  const v1::NodeTable table = std::move(*start->mutable_table());
  start->clear_table();
  start->clear_nodes();
  auto names = table.names().empty() ? Result<std::vector<std::string>>(std::vector<std::string>())
                                     : ExpandHostlist(table.names());
  if (!names) return names.error();
  const size_t count = names->size();
  const auto nodes = ReadRuns(table.nodes(), count);
  const auto sizes = ReadSizes(table.sizes(), count);
  if (!nodes || !sizes) return Contradiction("nodes");
  if (static_cast<size_t>(table.lease_ports_size()) != count) return Contradiction("ports");
  if (table.roles_size() != table.role_counts_size() ||
      (table.role_kinds_size() != 0 && table.role_kinds_size() != table.roles_size()))
    return Contradiction("roles");
  size_t total = 0;
  for (const uint32_t size : *sizes) {
    total += size;
    if (total > kMaxTasks) return Contradiction("sizes");
  }
  const auto tasks = ReadRuns(table.tasks(), total);
  const auto ranks = ReadRuns(table.ranks(), total);
  if (!tasks || !ranks) return Contradiction("tasks");

  int64_t port = 0;
  size_t task = 0;
  int role = 0;
  uint32_t of_role = 0;  // nodes so far
  google::protobuf::RepeatedPtrField<v1::NodeSpec> specs;
  for (size_t i = 0; i < count; ++i) {
    port += table.lease_ports(static_cast<int>(i));
    while (role < table.roles_size() && of_role == table.role_counts(role)) {
      ++role;
      of_role = 0;
    }
    if (role == table.roles_size() || port < 0 || port > UINT16_MAX) return Contradiction("roles or ports");
    ++of_role;
    v1::NodeSpec* spec = specs.Add();
    spec->set_name(std::move((*names)[i]));
    spec->set_node((*nodes)[i]);
    spec->set_role(table.roles(role));
    if (table.role_kinds_size() > 0) spec->set_kind(table.role_kinds(role));
    spec->set_lease_port(static_cast<uint32_t>(port));
    for (uint32_t k = 0; k < (*sizes)[i]; ++k, ++task) {
      spec->add_tasks((*tasks)[task]);
      spec->add_ranks((*ranks)[task]);
    }
  }
  *start->mutable_nodes() = std::move(specs);
  return {};
}

}  // namespace muster
