// Compressed chunks come from the store: whatever they are, they are refused, or give as many bytes as were asked for. And
// whatever is encoded is decoded again.
//
// An input is a width's logarithm, two bytes of a size, and a frame; as data to be encoded it is taken whole.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "ceph/engine/chunk_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using muster::ChunkCodec;
  if (size < 3) return 0;
  ChunkCodec codec;
  const uint32_t width = 1U << (data[0] % 4);
  const size_t plain_size = data[1] | static_cast<size_t>(data[2]) << 8;
  // A copy of the exact size, so that the sanitizer sees a read beyond it.
  const size_t frame_size = size - 3;
  const std::unique_ptr<std::byte[]> frame(new std::byte[frame_size]);
  std::memcpy(frame.get(), data + 3, frame_size);
  const auto decoded = codec.Decode({frame.get(), frame_size}, width, plain_size);
  if (decoded && decoded->size() != plain_size) std::abort();

  const std::string plain(reinterpret_cast<const char*>(data), size);
  std::string stored = plain;
  (void)codec.Sample(std::as_bytes(std::span(plain)), width);
  const auto encoding = codec.Encode(std::as_writable_bytes(std::span(stored)), width);
  if (encoding.width == 0) {
    if (stored != plain) std::abort();
    return 0;
  }
  const auto again =
      codec.Decode(std::as_bytes(std::span(stored)).first(encoding.bytes), encoding.width, size);
  if (!again || std::memcmp(again->data(), plain.data(), size) != 0) std::abort();
  return 0;
}
