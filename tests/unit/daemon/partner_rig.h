// What the tests of copies and parity between nodes share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ceph/catalog/digest.h"
#include "ceph/engine/shard_memory.h"
#include "ceph/engine/staged_memory.h"
#include "daemon/partner/stock.h"

namespace muster {

inline constexpr uint64_t kTestChunk = 64 << 10;

inline std::string Content(uint64_t bytes, int seed) {
  std::string content(bytes, '\0');
  uint64_t state = static_cast<uint64_t>(seed) * 2654435761 + 1;
  for (char& byte : content) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(state >> 56);
  }
  return content;
}

inline Shard ShardOf(uint32_t rank, const std::string& content, uint64_t chunk_bytes = kTestChunk) {
  Shard shard;
  shard.rank = rank;
  shard.bytes = content.size();
  shard.chunk_bytes = chunk_bytes;
  shard.prefix = "data/k/1.1.1/0";
  for (size_t at = 0; at < content.size(); at += chunk_bytes)
    shard.chunks.push_back(DigestOf(std::string_view(content).substr(at, chunk_bytes)));
  return shard;
}

inline std::shared_ptr<StagedMemory> Staged(const std::string& content) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  auto staged = StagedMemory::Take(std::move(fd));
  EXPECT_TRUE(staged);
  return *staged;
}

inline std::string Read(const UniqueFd& memory, size_t bytes) {
  std::string content(bytes, '\0');
  EXPECT_TRUE(ReadShardMemory(memory, 0, std::as_writable_bytes(std::span(content))));
  return content;
}

inline PartnerStock MakeStock(uint64_t limit) {
  auto memory = ChunkMemory::Make(limit, [limit] { return limit; });
  EXPECT_TRUE(memory);
  return {std::make_shared<PartnerCopies>(*memory, limit), std::make_shared<ParityParts>(*memory),
          std::make_shared<OwnShards>()};
}

}  // namespace muster
