// Which nodes of a gang keep parity of each other's shards, and which chunks of them each keeps. Pure.
//
// In a group of n nodes every shard is cut into n - 1 parts of equally many chunks, one for each other node. A node keeps the
// exclusive or of the parts that are its own: one of each other node. So it keeps 1 / (n - 1) of a shard, and when one
// node is lost, each part of its shards is the parity at one of the others, less what the rest has of the same row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/partner/ring.h"

namespace muster {

// Fewer nodes need no parity: copies take the same memory.
inline constexpr size_t kLeastGroup = 3;

struct ParityGroup {
  struct Node {
    std::string name;
    std::vector<uint32_t> ranks;  // the one at i is in slot i; slots have nothing to do with each other
  };
  std::vector<Node> nodes;
  size_t self = 0;

  [[nodiscard]] std::string NamesOfOthers() const;
  [[nodiscard]] size_t SlotsOfOthers() const;
};

// The group of the node at `place`, with `self`; none: it saves nothing, `size` is below kLeastGroup, or fewer than that save.
// Those that save, in the order of SavingPlaces, are dealt out to as many groups as have `size` members: so a group has from
// `size` to less than twice as many, and as few of one failure domain as can be.
std::optional<ParityGroup> GroupOf(const Roster& roster, size_t place, size_t size);

struct ChunkSpan {
  uint64_t first = 0;
  uint64_t count = 0;
};
// The part of a shard of so many chunks that is in the parity at `keeper`; chunk first + i is in its row i.
ChunkSpan PartOf(size_t nodes, size_t owner, size_t keeper, uint64_t chunks);

// into ^= from, as far as both go.
void XorInto(std::span<std::byte> into, std::span<const std::byte> from);

}  // namespace muster
