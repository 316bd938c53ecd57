// Reads parts of shards through musterd, in blocks: what lies near each other is asked for once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/client_session.h"

namespace muster::client {

class ShardReader {
 public:
  // In place of a muster_error: the step has been saved anew since the last reading. Nothing of it may be used together with
  // what was read before.
  static constexpr int kChanged = 1;
  // How far from each other two parts may be that are better read as one: about a chunk of the store.
  static constexpr uint64_t kBlock = 4 << 20;
  // The most that may be asked for at once.
  static constexpr uint64_t kMost = 256 << 20;

  ShardReader() = default;
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;
  ~ShardReader() { Unmap(); }

  // Bytes `begin` to `end` - 1 of a rank's shard; they live until the next call. MUSTER_E_CORRUPT: the shard ends before.
  int Read(Session* session, uint64_t step, uint32_t rank, uint64_t begin, uint64_t end, const char** data);
  // Of the shard that was read last.
  [[nodiscard]] uint64_t shard_bytes() const { return shard_bytes_; }
  // Gives memory back, but for a few blocks that a program which reads part by part may need again.
  void Trim();
  // Begins with another checkpoint.
  void Forget();

 private:
  void Unmap();

  bool known_ = false;  // checkpoint_
  uint64_t checkpoint_ = 0;
  char* map_ = nullptr;
  uint64_t step_ = 0;
  uint32_t rank_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t shard_bytes_ = 0;
};

}  // namespace muster::client
