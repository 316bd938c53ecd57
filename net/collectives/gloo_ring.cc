#include "net/collectives/gloo_ring.h"

#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace muster {
namespace {

// Gloo's own operations have the numbers below.
constexpr std::uint8_t kSlotPrefix = 0x40;

template <typename T>
void Add(void* out, const void* left, const void* right, std::size_t count) {
  auto* sum = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

// Integers wrap around, as NCCL's do.
void AddIntegers(void* out, const void* left, const void* right, std::size_t count) {
  Add<std::uint64_t>(out, left, right, count);
}

template <typename T>
void Max(void* out, const void* left, const void* right, std::size_t count) {
  auto* most = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  for (std::size_t i = 0; i < count; ++i) most[i] = std::max(a[i], b[i]);
}

}  // namespace

Reduction ReductionOf(DataType type, ReduceOp op) {
  if (type == DataType::kFloat) return op == ReduceOp::kSum ? &Add<float> : &Max<float>;
  return op == ReduceOp::kSum ? &AddIntegers : &Max<std::int64_t>;
}

void RingReduceScatter(GlooMesh& mesh, const Operation& operation, std::byte* data) {
  const int size = mesh.size;
  const std::size_t part_count = operation.count / static_cast<std::size_t>(size);
  const std::size_t part_bytes = part_count * BytesOf(operation.type);
  const Reduction reduce = ReductionOf(operation.type, operation.op);
  const int right = (mesh.rank + 1) % size;
  const int left = (mesh.rank + size - 1) % size;
  const auto part = [&](int index) { return static_cast<std::size_t>((index + size) % size) * part_bytes; };
  const std::uint64_t slot = gloo::Slot::build(kSlotPrefix, DigestOf(operation));

  std::vector<std::byte> come(part_bytes);
  const auto out = mesh.createUnboundBuffer(data, operation.bytes);
  const auto in = mesh.createUnboundBuffer(come.data(), come.size());
  // In the first exchange this member gives the part of its left neighbour, which has the longest way.
  for (int step = 0; step < size - 1; ++step) {
    out->send(right, slot, part(mesh.rank - 1 - step), part_bytes);
    in->recv(left, slot, 0, part_bytes);
    in->waitRecv();
    std::byte* mine = data + part(mesh.rank - 2 - step);
    reduce(mine, come.data(), mine, part_count);
    out->waitSend();
  }
}

}  // namespace muster
