// What the engine's tests share: memory as a program hands it over, and transfers that are waited for.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "ceph/catalog/object_names.h"
#include "ceph/engine/engine.h"

namespace muster {

inline constexpr Fence kFence{1, 2};

inline std::string RandomBytes(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

inline UniqueFd Memory(const std::string& bytes, int seals = F_SEAL_SHRINK) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

inline std::string Contents(const UniqueFd& fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), info.st_size);
  return bytes;
}

inline EngineOptions Small() {
  EngineOptions options;
  options.chunk_bytes = 1000;
  options.window = 4;
  options.buffers = options.most_buffers = 6;
  options.first_pause = std::chrono::milliseconds(1);
  return options;
}

inline Result<Shard> Write(Engine& engine, UniqueFd memory, uint64_t bytes, uint32_t rank = 0,
                           uint64_t step = 100, ShardBase base = {},
                           std::optional<uint32_t> write = std::nullopt) {
  const auto staged = StagedMemory::Take(std::move(memory));
  if (!staged) return staged.error();
  auto done = std::make_shared<std::promise<Result<Shard>>>();
  engine.WriteShard("u1", ShardPrefix("k", step, kFence, rank, write), rank, **staged, bytes, std::move(base),
                    [done](Result<Shard> shard) { done->set_value(std::move(shard)); });
  return done->get_future().get();
}

inline Result<UniqueFd> Read(Engine& engine, const Shard& shard) {
  auto done = std::make_shared<std::promise<Result<UniqueFd>>>();
  engine.ReadShard("u1", shard, [done](Result<UniqueFd> memory) { done->set_value(std::move(memory)); });
  return done->get_future().get();
}

inline Result<UniqueFd> ReadRange(Engine& engine, const Shard& shard, uint64_t offset, uint64_t bytes) {
  auto done = std::make_shared<std::promise<Result<UniqueFd>>>();
  engine.ReadRange("u1", shard, offset, bytes,
                   [done](Result<UniqueFd> memory) { done->set_value(std::move(memory)); });
  return done->get_future().get();
}

}  // namespace muster
