#include "ceph/engine/byte_shuffle.h"

#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace muster {
namespace {

// Copies what is not a multiple of the width, and is never a pointer to nothing.
void CopyRest(std::span<const std::byte> from, size_t begin, std::span<std::byte> into) {
  if (begin < from.size()) std::memcpy(into.data() + begin, from.data() + begin, from.size() - begin);
}

// 16 elements at a time, with what every x86-64 has: from the processor's cache that is faster than the memory.
// Both return how many elements they did.
#ifdef __SSE2__
constexpr size_t kStep = 16;

// kWidth vectors of 16 elements become kWidth planes: even bytes apart from odd ones, then again in each half.
template <int kWidth>
void Split(const __m128i* elements, __m128i* planes, int stride) {
  if constexpr (kWidth == 1) {
    planes[0] = elements[0];
  } else {
    const __m128i low = _mm_set1_epi16(0xff);
    __m128i even[kWidth / 2];
    __m128i odd[kWidth / 2];
    for (int k = 0; k < kWidth / 2; ++k) {
      const __m128i first = elements[2 * k];
      const __m128i second = elements[2 * k + 1];
      even[k] = _mm_packus_epi16(_mm_and_si128(first, low), _mm_and_si128(second, low));
      odd[k] = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    }
    Split<kWidth / 2>(even, planes, 2 * stride);
    Split<kWidth / 2>(odd, planes + stride, 2 * stride);
  }
}

template <int kWidth>
void Join(const __m128i* planes, int stride, __m128i* elements) {
  if constexpr (kWidth == 1) {
    elements[0] = planes[0];
  } else {
    __m128i even[kWidth / 2];
    __m128i odd[kWidth / 2];
    Join<kWidth / 2>(planes, 2 * stride, even);
    Join<kWidth / 2>(planes + stride, 2 * stride, odd);
    for (int k = 0; k < kWidth / 2; ++k) {
      elements[2 * k] = _mm_unpacklo_epi8(even[k], odd[k]);
      elements[2 * k + 1] = _mm_unpackhi_epi8(even[k], odd[k]);
    }
  }
}

__m128i LoadVector(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
void StoreVector(__m128i value, std::byte* into) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(into), value);
}

template <int kWidth>
size_t ShuffleSteps(const std::byte* from, size_t elements, std::byte* into) {
  size_t at = 0;
  for (; at + kStep <= elements; at += kStep) {
    __m128i mixed[kWidth];
    __m128i planes[kWidth];
    for (size_t k = 0; k < kWidth; ++k) mixed[k] = LoadVector(from + at * kWidth + k * kStep);
    Split<kWidth>(mixed, planes, 1);
    for (size_t k = 0; k < kWidth; ++k) StoreVector(planes[k], into + k * elements + at);
  }
  return at;
}

template <int kWidth>
size_t UnshuffleSteps(const std::byte* from, size_t elements, std::byte* into) {
  size_t at = 0;
  for (; at + kStep <= elements; at += kStep) {
    __m128i mixed[kWidth];
    __m128i planes[kWidth];
    for (size_t k = 0; k < kWidth; ++k) planes[k] = LoadVector(from + k * elements + at);
    Join<kWidth>(planes, 1, mixed);
    for (size_t k = 0; k < kWidth; ++k) StoreVector(mixed[k], into + at * kWidth + k * kStep);
  }
  return at;
}
#else
template <int kWidth>
size_t ShuffleSteps(const std::byte* /*from*/, size_t /*elements*/, std::byte* /*into*/) {
  return 0;
}
template <int kWidth>
size_t UnshuffleSteps(const std::byte* /*from*/, size_t /*elements*/, std::byte* /*into*/) {
  return 0;
}
#endif

template <int kWidth>
void Shuffle(std::span<const std::byte> from, std::span<std::byte> into) {
  const size_t elements = from.size() / kWidth;
  for (size_t at = ShuffleSteps<kWidth>(from.data(), elements, into.data()); at < elements; ++at) {
    for (size_t k = 0; k < kWidth; ++k) into[k * elements + at] = from[at * kWidth + k];
  }
  CopyRest(from, elements * kWidth, into);
}

template <int kWidth>
void Unshuffle(std::span<const std::byte> from, std::span<std::byte> into) {
  const size_t elements = from.size() / kWidth;
  for (size_t at = UnshuffleSteps<kWidth>(from.data(), elements, into.data()); at < elements; ++at) {
    for (size_t k = 0; k < kWidth; ++k) into[at * kWidth + k] = from[k * elements + at];
  }
  CopyRest(from, elements * kWidth, into);
}

}  // namespace

void ShuffleBytes(std::span<const std::byte> from, uint32_t width, std::span<std::byte> into) {
  if (width == 2) return Shuffle<2>(from, into);
  if (width == 4) return Shuffle<4>(from, into);
  if (width == 8) return Shuffle<8>(from, into);
  CopyRest(from, 0, into);
}

void UnshuffleBytes(std::span<const std::byte> from, uint32_t width, std::span<std::byte> into) {
  if (width == 2) return Unshuffle<2>(from, into);
  if (width == 4) return Unshuffle<4>(from, into);
  if (width == 8) return Unshuffle<8>(from, into);
  CopyRest(from, 0, into);
}

}  // namespace muster
