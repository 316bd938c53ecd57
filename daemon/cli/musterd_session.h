// The command's connection to this host's musterd, by which shards move (docs/formats.md, Local protocol).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::cli {

// One question at a time; every call blocks for its answer. kUnavailable: musterd or the store does not answer.
class MusterdSession {
 public:
  // `uid`: whose checkpoints; nothing: the caller's own.
  static Result<MusterdSession> Open(const std::string& socket, std::optional<uint32_t> uid);

  struct Checkpoint {
    uint64_t step = 0;
    uint64_t bytes = 0;  // of all shards
    uint32_t world_size = 0;
  };
  Result<Checkpoint> OpenCheckpoint(const std::string& key, uint64_t step);

  struct Part {
    UniqueFd memory;           // verified; as long as the part
    uint64_t shard_bytes = 0;  // of the whole shard
  };
  // A part of a shard of the open checkpoint: at most kMaxCommandRead bytes, fewer at its end.
  Result<Part> Read(uint32_t rank, uint64_t offset, uint64_t bytes);
  // Gives its bytes; kCorrupt says what is bad.
  Result<uint64_t> Verify(uint32_t rank);

  // A new checkpoint; what is not committed is forgotten with the session.
  Status Begin(const std::string& key, uint64_t step, uint32_t world_size);
  // A memfd that is sealed against shrinking.
  Status Write(uint32_t rank, const UniqueFd& memory, uint64_t bytes);
  Status Commit();

  [[nodiscard]] uint64_t max_shard_bytes() const { return max_shard_bytes_; }

 private:
  struct Answer {
    wire::CommandAnswer body{};
    UniqueFd fd;
  };
  explicit MusterdSession(UniqueFd socket) : socket_(std::move(socket)) {}
  template <typename Body>
  Result<Answer> Ask(wire::Type type, Body body, std::string_view tail = {}, int fd = -1);
  Result<Answer> Receive();

  UniqueFd socket_;
  uint64_t max_shard_bytes_ = 0;
};

}  // namespace muster::cli
