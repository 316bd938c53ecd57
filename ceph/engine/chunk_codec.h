// How a chunk lies in the store when it is compressed: its bytes shuffled, as one zstd frame. docs/formats.md, Manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace muster {

// What is encoded must be smaller by a 16th at least, or it is not worth the reader's work.
inline constexpr size_t kLeastGain = 16;

// Compresses and decompresses one chunk at a time; not thread-safe. Besides zstd's tables (about 2 MiB) it keeps as much
// memory as the largest chunk that it has encoded, and twice that of one that it has decoded.
class ChunkCodec {
 public:
  ChunkCodec() = default;
  ~ChunkCodec();
  ChunkCodec(const ChunkCodec&) = delete;
  ChunkCodec& operator=(const ChunkCodec&) = delete;

  // About how much of the data would be left, 1 for all of it, by a few pieces of them.
  double Sample(std::span<const std::byte> data, uint32_t width);

  // Encodes in place: the first `bytes` of the data are what is to be stored. A width of 0 comes back, and the data as they
  // were, when they do not become small enough. At most 2^32 - 1 bytes.
  ChunkEncoding Encode(std::span<std::byte> data, uint32_t width);

  // The plain bytes, which stay until the next call. kCorrupt, which begins with a verb: `stored` is anything but one whole
  // frame of so many bytes. Whatever it says, no more memory than for those is used.
  Result<std::span<const std::byte>> Decode(std::span<const std::byte> stored, uint32_t width, size_t bytes);

 private:
  ZSTD_CCtx_s* Compressor();

  ZSTD_CCtx_s* compressor_ = nullptr;
  ZSTD_DCtx_s* decompressor_ = nullptr;
  std::vector<std::byte> shuffled_;
  std::vector<std::byte> plain_;
};

// Codecs for threads that take turns. Thread-safe.
class CodecPool {
 public:
  // Back in the pool with the end of `lease`.
  class Lease {
   public:
    explicit Lease(CodecPool& pool) : pool_(pool), codec_(pool.Take()) {}
    ~Lease() { pool_.Give(std::move(codec_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ChunkCodec* operator->() { return codec_.get(); }
    ChunkCodec& operator*() { return *codec_; }

   private:
    CodecPool& pool_;
    std::unique_ptr<ChunkCodec> codec_;
  };

  // Frees the memory of those that are not in use.
  void Clear();

 private:
  std::unique_ptr<ChunkCodec> Take();
  void Give(std::unique_ptr<ChunkCodec> codec);

  std::mutex mutex_;
  std::vector<std::unique_ptr<ChunkCodec>> free_;
};

}  // namespace muster
