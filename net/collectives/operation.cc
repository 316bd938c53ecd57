#include "net/collectives/operation.h"

#include <algorithm>

namespace muster {
namespace {

std::string Elements(const Operation& operation) {
  const char* name = operation.type == DataType::kFloat ? " float" : " int64";
  return std::to_string(operation.count) + name + (operation.count == 1 ? "" : "s");
}

std::string Reduced(const Operation& operation) {
  return (operation.op == ReduceOp::kSum ? "sum of " : "maximum of ") + Elements(operation);
}

}  // namespace

std::size_t BytesOf(DataType type) {
  return type == DataType::kFloat ? sizeof(float) : sizeof(std::int64_t);
}

std::string Describe(const Operation& operation) {
  const std::string number = " " + std::to_string(operation.number);
  const std::string bytes = std::to_string(operation.bytes) + " bytes";
  switch (operation.kind) {
    case Operation::Kind::kAllReduce:
      return "all-reduce" + number + " (" + Reduced(operation) + ", " + bytes + ")";
    case Operation::Kind::kReduceScatter:
      return "reduce-scatter" + number + " (" + Reduced(operation) + ", " + bytes + ")";
    case Operation::Kind::kAllGather:
      return "all-gather" + number + " (" + Elements(operation) + ", " + bytes + ")";
    case Operation::Kind::kBroadcast:
      return "broadcast" + number + " (" + bytes + " from rank " + std::to_string(operation.root) + ")";
    case Operation::Kind::kBarrier:
      return "barrier" + number;
  }
  return {};
}

std::uint32_t DigestOf(const Operation& operation) {
  std::uint32_t digest = 2'166'136'261U;  // FNV-1a, of numbers in place of bytes
  for (const std::uint64_t field :
       {static_cast<std::uint64_t>(operation.kind), static_cast<std::uint64_t>(operation.type),
        static_cast<std::uint64_t>(operation.op), static_cast<std::uint64_t>(operation.root),
        static_cast<std::uint64_t>(operation.count), operation.number}) {
    for (const std::uint64_t half : {field & 0xffff'ffff, field >> 32}) {
      digest = (digest ^ static_cast<std::uint32_t>(half)) * 16'777'619U;
    }
  }
  return digest;
}

void RecentOperations::Add(const Operation& operation) {
  ring_[added_++ % kKept] = operation;
}

std::string RecentOperations::Describe() const {
  std::string text;
  for (std::size_t back = 1; back <= std::min(added_, kKept); ++back) {
    text += (text.empty() ? "" : ", ") + muster::Describe(ring_[(added_ - back) % kKept]);
  }
  return text;
}

}  // namespace muster
