#include "net/collectives/collectives.h"

#include <algorithm>
#include <array>
#include <utility>

#include "net/collectives/gloo_collectives.h"
#include "net/collectives/group_members.h"
#include "net/collectives/nccl_collectives.h"

namespace muster {
namespace {

std::string RankOf(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

}  // namespace

Collectives::Collectives(const GroupOptions& options, std::unique_ptr<Members> members)
    : rank_(options.rank),
      size_(options.size),
      compare_(options.compare && options.size > 1),
      operation_timeout_(options.operation_timeout),
      end_timeout_(options.end_timeout),
      members_(std::move(members)) {}

Collectives::~Collectives() = default;

Status Collectives::AllReduce(Numbers values, ReduceOp op) {
  return AllReduce(values, op, std::chrono::steady_clock::now() + operation_timeout_);
}

Status Collectives::AllReduce(Numbers values, ReduceOp op, std::chrono::steady_clock::time_point deadline) {
  return Run({.kind = Operation::Kind::kAllReduce,
              .type = values.type,
              .op = op,
              .count = values.count,
              .bytes = values.count * BytesOf(values.type)},
             values.data, deadline);
}

Status Collectives::ReduceScatter(Numbers values, ReduceOp op) {
  return RunOnParts(Operation::Kind::kReduceScatter, values, op);
}

Status Collectives::AllGather(Numbers values) {
  return RunOnParts(Operation::Kind::kAllGather, values, ReduceOp::kSum);
}

Status Collectives::Broadcast(std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= size_) {
    return Error{Errc::kInvalid,
                 "broadcast from rank " + std::to_string(root) + " in a group of " + std::to_string(size_)};
  }
  return Run(
      {.kind = Operation::Kind::kBroadcast, .root = root, .count = bytes.size(), .bytes = bytes.size()},
      bytes.data());
}

Status Collectives::Barrier() {
  return Run({.kind = Operation::Kind::kBarrier}, nullptr);
}

Status Collectives::RunOnParts(Operation::Kind kind, Numbers values, ReduceOp op) {
  if (values.count % static_cast<std::size_t>(size_) != 0) {
    return Error{Errc::kInvalid, std::to_string(values.count) + " elements are not " + std::to_string(size_) +
                                     " equal parts, one for each member"};
  }
  return Run({.kind = kind,
              .type = values.type,
              .op = op,
              .count = values.count,
              .bytes = values.count * BytesOf(values.type)},
             values.data);
}

Status Collectives::Run(Operation operation, void* data) {
  return Run(operation, data, std::chrono::steady_clock::now() + operation_timeout_);
}

Status Collectives::Run(Operation operation, void* data, std::chrono::steady_clock::time_point deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    if (operation.kind != Operation::Kind::kBarrier && operation.bytes == 0) return {};
    operation.number = ++operations_;
    running_ = operation;
  }
  Status carried = compare_ ? Compare(operation, deadline) : Status();
  if (carried) carried = Carry(operation, data, deadline);
  if (carried) {
    const std::lock_guard lock(mutex_);
    running_.reset();
    recent_.Add(operation);
    return {};
  }
  const std::string what = Describe(operation);
  return GiveUp(what + ", " + RankOf(rank_, size_), what, carried.error());
}

// What members differ in is said by GiveUp.
Status Collectives::Compare(const Operation& operation, std::chrono::steady_clock::time_point deadline) {
  const std::array<std::int64_t, 5> own{
      static_cast<std::int64_t>(operation.kind), static_cast<std::int64_t>(operation.type),
      static_cast<std::int64_t>(operation.op), operation.root, static_cast<std::int64_t>(operation.count)};
  compared_.resize(own.size() * static_cast<std::size_t>(size_));
  const auto of = [&](int rank) {
    return std::span(compared_).subspan(own.size() * static_cast<std::size_t>(rank), own.size());
  };
  std::copy(own.begin(), own.end(), of(rank_).begin());
  const Operation gather{.kind = Operation::Kind::kAllGather,
                         .type = DataType::kInt64,
                         .count = compared_.size(),
                         .bytes = compared_.size() * sizeof(compared_[0]),
                         .number = operation.number};
  if (Status gathered = CarryOnHost(gather, compared_.data(), deadline); !gathered) return gathered;
  for (int rank = 0; rank < size_; ++rank) {
    if (!std::equal(own.begin(), own.end(), of(rank).begin()))
      return Error{Errc::kInvalid, "the members do not call the same operation"};
  }
  return {};
}

Status Collectives::Heard() const {
  if (members_ == nullptr) return {};
  const std::optional<Failure> first = members_->Heard();
  return first ? Status(Error{Errc::kUnavailable, Describe(*first)}) : Status();
}

Error Collectives::GiveUp(const std::string& heading, const std::string& what, const Error& why) {
  const auto deadline = std::chrono::steady_clock::now() + end_timeout_;
  std::string text = heading + ": " + why.message;
  const auto add = [&text](const std::string& more) {
    if (!more.empty()) text += "; " + more;
  };
  std::optional<Failure> first;
  if (members_ != nullptr) first = members_->Tell(why.message);
  Cut(why.message);
  if (first) {
    const std::string said = Describe(*first);
    if (first->rank != rank_ && why.message != said && why.message != first->why) add("before that, " + said);
    add(members_->Compare(what, deadline));
  }
  const std::string stuck = StuckAt(deadline);
  add(stuck);
  const std::lock_guard lock(mutex_);
  if (!stuck.empty() && !compared_.empty()) (void)new auto(std::move(compared_));  // in use for ever
  running_.reset();
  if (failure_) return *failure_;
  if (const std::string before = recent_.Describe(); !before.empty()) add("before it: " + before);
  failure_ = Error{why.code, text};
  return *failure_;
}

void Collectives::Abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = Error{Errc::kUnavailable, RankOf(rank_, size_) + " was told to stop" +
                                             (running_ ? " in " + Describe(*running_) : "") + ": " + why};
  }
  const std::string told = "it was told to stop: " + why;
  if (members_ != nullptr) (void)members_->Tell(told);
  Cut(told);
}

Status Collectives::State() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    if (running_) return {};  // it sees for itself
  }
  Status found = Heard();
  if (found) found = Look();
  if (found) return {};
  return GiveUp(RankOf(rank_, size_) + ", between operations", "no operation", found.error());
}

Result<std::unique_ptr<Collectives>> MakeCollectives(std::string_view backend, const GroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Error{Errc::kInvalid, "collectives: rank " + std::to_string(options.rank) +
                                     " is not in a group of " + std::to_string(options.size)};
  }
  if (backend == "gloo") return MakeGlooCollectives(options);
  if (backend == "nccl") return MakeNcclCollectives(options);
  return Error{Errc::kInvalid,
               "collectives: no backend '" + std::string(backend) + "'; this build has: gloo, nccl"};
}

}  // namespace muster
