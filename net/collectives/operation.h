// One collective operation, and the last ones of a communicator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace muster {

enum class DataType { kInt64, kFloat };
enum class ReduceOp { kSum, kMax };

// Bytes of one element.
[[nodiscard]] std::size_t BytesOf(DataType type);

struct Operation {
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

  Kind kind = Kind::kBarrier;
  DataType type = DataType::kInt64;  // of all but broadcasts and barriers
  ReduceOp op = ReduceOp::kSum;      // of all-reduce and reduce-scatter
  int root = 0;                      // of a broadcast
  std::size_t count = 0;             // elements in the buffer; bytes in a broadcast
  std::size_t bytes = 0;             // in the buffer
  std::uint64_t number = 0;          // a communicator counts its operations, from 1 on
};

// As in "all-reduce 17 (sum of 1000 floats, 4000 bytes)".
[[nodiscard]] std::string Describe(const Operation& operation);

// The same on members that call the same operation with the same number, on others most probably another.
[[nodiscard]] std::uint32_t DigestOf(const Operation& operation);

// What a communicator did last. Not thread-safe.
class RecentOperations {
 public:
  void Add(const Operation& operation);
  // The newest first, as in "barrier 16, broadcast 15 (8 bytes from rank 0)"; empty when there is none.
  [[nodiscard]] std::string Describe() const;

 private:
  static constexpr std::size_t kKept = 4;
  std::array<Operation, kKept> ring_;
  std::size_t added_ = 0;
};

}  // namespace muster
