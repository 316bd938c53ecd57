#include "train/group_values.h"

#include <functional>

namespace muster::train {
namespace {

// Does it with the bytes, or with a copy of them where the group can take it.
Status Carry(Ops& ops, const Collectives& group, std::span<std::byte> bytes,
             const std::function<Status(std::byte*)>& operation) {
  if (group.memory() == MemoryKind::kHost) return operation(bytes.data());
  const Buffer buffer(ops, (bytes.size() + sizeof(float) - 1) / sizeof(float));
  ops.Copy(buffer.data(), bytes.data(), bytes.size());
  if (Status there = ops.Wait(); !there) return there;
  if (Status done = operation(reinterpret_cast<std::byte*>(buffer.data())); !done) return done;
  ops.Copy(bytes.data(), buffer.data(), bytes.size());
  return ops.Wait();
}

}  // namespace

Status AllGather(Ops& ops, Collectives& group, std::span<std::int64_t> values) {
  return Carry(ops, group, std::as_writable_bytes(values), [&](std::byte* data) {
    return group.AllGather(Numbers(data, values.size(), DataType::kInt64));
  });
}

Status Broadcast(Ops& ops, Collectives& group, std::span<std::byte> bytes, int root) {
  return Carry(ops, group, bytes, [&](std::byte* data) {
    return group.Broadcast({data, bytes.size()}, root);
  });
}

}  // namespace muster::train
