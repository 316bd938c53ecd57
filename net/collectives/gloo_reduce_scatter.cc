#include "net/collectives/gloo_reduce_scatter.h"

#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
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

// What all steps of a reduce-scatter need.
class Parts {
 public:
  Parts(GlooMesh& mesh, const Operation& operation, std::byte* data, std::size_t most)
      : data_(data),
        part_count_(operation.count / static_cast<std::size_t>(mesh.size)),
        part_bytes_(part_count_ * BytesOf(operation.type)),
        reduce_(ReductionOf(operation.type, operation.op)),
        slot_(gloo::Slot::build(kSlotPrefix, DigestOf(operation))),
        come_(most * part_bytes_),
        out_(mesh.createUnboundBuffer(data, operation.bytes)),
        in_(mesh.createUnboundBuffer(come_.data(), come_.size())) {}

  // Gives `to` so many parts from one on, and adds as many from `from` to those from another one on.
  void Exchange(int to, int given, int from, int kept, int parts) {
    const std::size_t bytes = At(parts);
    out_->send(to, slot_, At(given), bytes);
    in_->recv(from, slot_, 0, bytes);
    in_->waitRecv();
    std::byte* const mine = data_ + At(kept);
    reduce_(mine, come_.data(), mine, static_cast<std::size_t>(parts) * part_count_);
    out_->waitSend();
  }

 private:
  [[nodiscard]] std::size_t At(int part) const { return static_cast<std::size_t>(part) * part_bytes_; }

  std::byte* const data_;
  const std::size_t part_count_;
  const std::size_t part_bytes_;
  const Reduction reduce_;
  const std::uint64_t slot_;
  std::vector<std::byte> come_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> out_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> in_;
};

// Each member exchanges half of what it still has with one that keeps the other half: log2(size) steps.
void HalvingReduceScatter(GlooMesh& mesh, const Operation& operation, std::byte* data) {
  Parts parts(mesh, operation, data, static_cast<std::size_t>(mesh.size) / 2);
  int first = 0;  // of the parts that this member still adds to
  for (int half = mesh.size / 2; half > 0; half /= 2) {
    const bool upper = (mesh.rank & half) != 0;
    const int partner = mesh.rank ^ half;
    const int kept = upper ? first + half : first;
    parts.Exchange(partner, upper ? first : first + half, partner, kept, half);
    first = kept;
  }
}

// In the first exchange this member gives the part of its left neighbour, which has the longest way.
void RingReduceScatter(GlooMesh& mesh, const Operation& operation, std::byte* data) {
  Parts parts(mesh, operation, data, 1);
  const int size = mesh.size;
  const auto part = [size](int index) { return (index + 2 * size) % size; };
  for (int step = 0; step < size - 1; ++step) {
    parts.Exchange(part(mesh.rank + 1), part(mesh.rank - 1 - step), part(mesh.rank - 1),
                   part(mesh.rank - 2 - step), 1);
  }
}

}  // namespace

Reduction ReductionOf(DataType type, ReduceOp op) {
  if (type == DataType::kFloat) return op == ReduceOp::kSum ? &Add<float> : &Max<float>;
  return op == ReduceOp::kSum ? &AddIntegers : &Max<std::int64_t>;
}

void ReduceScatter(GlooMesh& mesh, const Operation& operation, std::byte* data) {
  if (std::has_single_bit(static_cast<unsigned>(mesh.size)))
    return HalvingReduceScatter(mesh, operation, data);
  RingReduceScatter(mesh, operation, data);
}

}  // namespace muster
