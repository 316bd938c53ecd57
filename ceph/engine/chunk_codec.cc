#include "ceph/engine/chunk_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include "ceph/engine/byte_shuffle.h"

namespace muster {
namespace {

// Of -1, 1, 2 and 3 the fastest that codes literals by their frequency, which is what shuffled floats gain by; the higher
// ones make no less of those.
constexpr int kLevel = 1;

constexpr size_t kPieces = 3;
constexpr size_t kPieceBytes = 16 * 1024;

Error Damaged(const std::string& what) {
  return {Errc::kCorrupt, what};
}

// Where plane `plane` of shuffled bytes begins; the last one has the rest too.
std::span<const std::byte> PlaneOf(std::span<const std::byte> shuffled, uint32_t width, uint32_t plane) {
  const size_t elements = shuffled.size() / width;
  const size_t begin = plane * elements;
  return shuffled.subspan(begin, plane + 1 == width ? shuffled.size() - begin : elements);
}

}  // namespace

ChunkCodec::~ChunkCodec() {
  ZSTD_freeCCtx(compressor_);
  ZSTD_freeDCtx(decompressor_);
}

ZSTD_CCtx_s* ChunkCodec::Compressor() {
  if (compressor_ == nullptr) {
    compressor_ = ZSTD_createCCtx();
    if (compressor_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, kLevel);
  }
  ZSTD_CCtx_reset(compressor_, ZSTD_reset_session_only);
  return compressor_;
}

double ChunkCodec::Sample(std::span<const std::byte> data, uint32_t width) {
  std::array<std::byte, kPieces * kPieceBytes> pieces;
  std::array<std::byte, kPieces * kPieceBytes> shuffled;
  size_t bytes = 0;
  if (data.size() <= pieces.size()) {
    std::copy(data.begin(), data.end(), pieces.begin());
    bytes = data.size();
  } else {
    // At places that are multiples of 8, as the elements are.
    const size_t between = (data.size() - kPieceBytes) / (kPieces - 1) / 8 * 8;
    for (size_t i = 0; i < kPieces; ++i, bytes += kPieceBytes) {
      const auto piece = data.subspan(i * between, kPieceBytes);
      std::copy(piece.begin(), piece.end(), pieces.begin() + static_cast<std::ptrdiff_t>(bytes));
    }
  }
  if (bytes == 0) return 1;
  const std::span<std::byte> sample = std::span(shuffled).first(bytes);
  ShuffleBytes(std::span(pieces).first(bytes), width, sample);
  // The pieces' own bytes are free now. Each plane alone, as there its bytes are coded apart from the others'.
  size_t left = 0;
  for (uint32_t plane = 0; plane < width; ++plane) {
    const auto part = PlaneOf(sample, width, plane);
    const size_t size = ZSTD_compress2(Compressor(), pieces.data(), pieces.size(), part.data(), part.size());
    left += ZSTD_isError(size) != 0 ? part.size() : std::min(size, part.size());
  }
  return static_cast<double>(left) / static_cast<double>(bytes);
}

ChunkEncoding ChunkCodec::Encode(std::span<std::byte> data, uint32_t width) {
  const size_t limit = data.size() - data.size() / kLeastGain;
  if (limit == data.size()) return {};
  if (shuffled_.size() < data.size()) shuffled_.resize(data.size());
  const std::span<std::byte> shuffled = std::span(shuffled_).first(data.size());
  ShuffleBytes(data, width, shuffled);
  ZSTD_CCtx_s* const compressor = Compressor();
  ZSTD_CCtx_setPledgedSrcSize(compressor, data.size());
  // A block, and so a table of frequencies, ends with each plane.
  ZSTD_outBuffer out{data.data(), limit, 0};
  for (uint32_t plane = 0; plane < width; ++plane) {
    const auto part = PlaneOf(shuffled, width, plane);
    ZSTD_inBuffer in{part.data(), part.size(), 0};
    const ZSTD_EndDirective end = plane + 1 == width ? ZSTD_e_end : ZSTD_e_flush;
    for (bool done = false; !done;) {
      const size_t more = ZSTD_compressStream2(compressor, &out, &in, end);
      done = more == 0 && in.pos == in.size;
      if (ZSTD_isError(more) != 0 || (!done && out.pos == out.size)) {
        UnshuffleBytes(shuffled, width, data);
        return {};
      }
    }
  }
  return {width, static_cast<uint32_t>(out.pos)};
}

Result<std::span<const std::byte>> ChunkCodec::Decode(std::span<const std::byte> stored, uint32_t width,
                                                      size_t bytes) {
  if (!IsEncodingWidth(width)) return Damaged("is encoded in a way that this program does not know");
  if (ZSTD_getFrameContentSize(stored.data(), stored.size()) != bytes)
    return Damaged("is no zstd frame of " + std::to_string(bytes) + " bytes");
  if (ZSTD_findFrameCompressedSize(stored.data(), stored.size()) != stored.size())
    return Damaged("is not one whole zstd frame");
  if (decompressor_ == nullptr) {
    decompressor_ = ZSTD_createDCtx();
    if (decompressor_ == nullptr) throw std::bad_alloc();
  }
  if (shuffled_.size() < bytes) shuffled_.resize(bytes);
  const size_t size =
      ZSTD_decompressDCtx(decompressor_, shuffled_.data(), bytes, stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != bytes) {
    return Damaged("cannot be decompressed: " +
                   std::string(ZSTD_isError(size) != 0 ? ZSTD_getErrorName(size) : "it is too short"));
  }
  const std::span<const std::byte> shuffled = std::span(shuffled_).first(bytes);
  if (width == 1) return shuffled;
  if (plain_.size() < bytes) plain_.resize(bytes);
  const std::span<std::byte> plain = std::span(plain_).first(bytes);
  UnshuffleBytes(shuffled, width, plain);
  return std::span<const std::byte>(plain);
}

void CodecPool::Clear() {
  std::vector<std::unique_ptr<ChunkCodec>> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(free_);
}

std::unique_ptr<ChunkCodec> CodecPool::Take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<ChunkCodec>();
  auto codec = std::move(free_.back());
  free_.pop_back();
  return codec;
}

void CodecPool::Give(std::unique_ptr<ChunkCodec> codec) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(codec));
}

}  // namespace muster
