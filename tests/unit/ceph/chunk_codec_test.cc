#include "ceph/engine/chunk_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ceph/engine/byte_shuffle.h"
#include "ceph/engine/encoding_choice.h"
#include "tests/unit/ceph/chunk_samples.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr uint32_t kWidths[] = {1, 2, 4, 8};
constexpr size_t kMiB = 1 << 20;

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ByteShuffle, PutsTheBytesOfOnePlaceTogether) {
  const std::string from = "aAbBcCd";
  std::string into(from.size(), '?');
  ShuffleBytes(BytesIn(from), 2, BytesIn(into));
  EXPECT_EQ(into, "abcABCd");
  ShuffleBytes(BytesIn(from), 1, BytesIn(into));
  EXPECT_EQ(into, from);
  const std::string wide = "0123456789abcdefgh";
  into.resize(wide.size());
  ShuffleBytes(BytesIn(wide), 4, BytesIn(into));
  EXPECT_EQ(into, "048c159d26ae37bfgh");
  ShuffleBytes(BytesIn(wide), 8, BytesIn(into));
  EXPECT_EQ(into, "08192a3b4c5d6e7fgh");
}

TEST(ByteShuffle, IsUndoneForEveryWidthAndSize) {
  std::vector<size_t> sizes(300);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i;
  for (const size_t size : {1023, 1024, 4096, 65'537, 100'003}) sizes.push_back(size);
  for (const uint32_t width : kWidths) {
    for (const size_t size : sizes) {
      const std::string bytes = NoiseBytes(size, size);
      std::string shuffled(size, '?');
      std::string again(size, '?');
      ShuffleBytes(BytesIn(bytes), width, BytesIn(shuffled));
      for (size_t i = 0, count = size / width; i < count * width; ++i)
        ASSERT_EQ(shuffled[i % width * count + i / width], bytes[i]) << width << " " << size << " " << i;
      UnshuffleBytes(BytesIn(shuffled), width, BytesIn(again));
      ASSERT_EQ(again, bytes) << width << " " << size;
    }
  }
}

TEST(ChunkCodec, DecodesWhatItEncodedOfEveryWidthAndSize) {
  ChunkCodec codec;
  for (const uint32_t width : kWidths) {
    for (const size_t size : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 1000, 4099, 65'536, 300'001}) {
      for (const std::string& plain :
           {std::string(size, '\0'), TextBytes(size), Float32Bytes(size), NoiseBytes(size)}) {
        std::string data = plain;
        const ChunkEncoding encoding = codec.Encode(BytesIn(data), width);
        if (encoding.width == 0) {
          EXPECT_EQ(data, plain) << "it is as it was";
          continue;
        }
        EXPECT_EQ(encoding.width, width);
        EXPECT_LE(encoding.bytes, size - size / kLeastGain);
        const std::string stored = data.substr(0, encoding.bytes);
        const auto decoded = codec.Decode(BytesIn(stored), width, size);
        ASSERT_TRUE(decoded) << decoded.error().message << " " << width << " " << size;
        EXPECT_EQ(Text(*decoded), plain) << width << " " << size;
      }
    }
  }
}

TEST(ChunkCodec, EncodesEqualBytesEqually) {
  ChunkCodec one;
  ChunkCodec other;
  std::string noise = NoiseBytes(kMiB);
  (void)other.Encode(BytesIn(noise), 2);
  std::string first = Float32Bytes(kMiB + 3);
  std::string second = first;
  const ChunkEncoding encoding = one.Encode(BytesIn(first), 4);
  EXPECT_EQ(other.Encode(BytesIn(second), 4), encoding);
  EXPECT_EQ(second.substr(0, encoding.bytes), first.substr(0, encoding.bytes));
}

TEST(ChunkCodec, MakesLessOfFloats) {
  ChunkCodec codec;
  const auto left = [&](std::string data, uint32_t width) {
    const ChunkEncoding encoding = codec.Encode(BytesIn(data), width);
    return encoding.width == 0 ? 1.0 : static_cast<double>(encoding.bytes) / static_cast<double>(data.size());
  };
  EXPECT_LT(left(Float32Bytes(kMiB), 4), 0.87);
  EXPECT_LT(left(Bfloat16Bytes(kMiB), 2), 0.72);
  EXPECT_LT(left(AdamBytes(kMiB), 4), 0.87);
  EXPECT_LT(left(TextBytes(kMiB), 1), 0.5);
  EXPECT_LT(left(std::string(kMiB, '\0'), 1), 0.001);
  EXPECT_EQ(left(NoiseBytes(kMiB), 1), 1);
  // Also where a plane is no whole block of zstd's, as in small chunks.
  EXPECT_LT(left(Float32Bytes(65'536), 4), 0.87);
}

TEST(ChunkCodec, SamplesSayWhatEncodingGives) {
  ChunkCodec codec;
  for (const std::string& plain : {Float32Bytes(kMiB), Bfloat16Bytes(kMiB), AdamBytes(kMiB), NoiseBytes(kMiB),
                                   std::string(kMiB, '\0'), Float32Bytes(20'000)}) {
    for (const uint32_t width : kWidths) {
      std::string data = plain;
      const double sampled = codec.Sample(BytesIn(plain), width);
      const ChunkEncoding encoding = codec.Encode(BytesIn(data), width);
      const double left =
          encoding.width == 0 ? 1 : static_cast<double>(encoding.bytes) / static_cast<double>(plain.size());
      EXPECT_NEAR(sampled, left, 0.07) << width;
    }
  }
  EXPECT_EQ(codec.Sample({}, 4), 1);
}

// What a frame says of itself is not believed: no more memory is used than the manifest has asked for.
TEST(ChunkCodec, RefusesWhatIsNotTheFrameOfTheManifest) {
  ChunkCodec codec;
  std::string data(kMiB, 'x');
  const ChunkEncoding encoding = codec.Encode(BytesIn(data), 4);
  ASSERT_EQ(encoding.width, 4U);
  const std::string stored = data.substr(0, encoding.bytes);
  const auto refused = [&](const std::string& what, const std::string& frame, uint32_t width, size_t bytes,
                           const char* why) {
    const auto decoded = codec.Decode(BytesIn(frame), width, bytes);
    ASSERT_FALSE(decoded) << what;
    EXPECT_EQ(decoded.error().code, Errc::kCorrupt) << what;
    EXPECT_THAT(decoded.error().message, HasSubstr(why)) << what;
  };
  refused("nothing", "", 4, kMiB, "no zstd frame of 1048576 bytes");
  refused("of a smaller chunk", stored, 4, kMiB - 1, "no zstd frame of 1048575 bytes");
  refused("of a larger chunk", stored, 4, kMiB + 1, "no zstd frame");
  refused("an unknown width", stored, 3, kMiB, "in a way that this program does not know");
  refused("cut off", stored.substr(0, stored.size() - 1), 4, kMiB, "not one whole zstd frame");
  refused("with more behind it", stored + "x", 4, kMiB, "not one whole zstd frame");
  refused("two frames", stored + stored, 4, kMiB, "not one whole zstd frame");
  refused("no frame", std::string(100, 'x'), 4, kMiB, "no zstd frame");

  const auto frame = [](const std::string& plain, bool with_size) {
    std::string bytes(ZSTD_compressBound(plain.size()), '\0');
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, with_size ? 1 : 0);
    bytes.resize(ZSTD_compress2(context, bytes.data(), bytes.size(), plain.data(), plain.size()));
    ZSTD_freeCCtx(context);
    return bytes;
  };
  refused("a bomb", frame(std::string(256 * kMiB, '\0'), true), 1, kMiB, "no zstd frame of 1048576 bytes");
  refused("a bomb that does not say so", frame(std::string(64 * kMiB, '\0'), false), 1, kMiB,
          "no zstd frame");
  // One whose header says 1000 bytes, of which it has 256 MiB.
  std::string liar = frame(std::string(256 * kMiB, '\0'), true);
  const std::string honest = frame(std::string(256 * kMiB - 1, '\0'), true);
  const auto differs = std::mismatch(liar.begin(), liar.end(), honest.begin()).first - liar.begin();
  ASSERT_LT(differs, 10);
  const uint32_t said = 1000;
  std::memcpy(liar.data() + differs, &said, sizeof(said));
  refused("a bomb that lies", liar, 1, said, "cannot be decompressed");
}

TEST(ChunkCodec, DamageIsRefusedOrGivesSoManyBytes) {
  ChunkCodec codec;
  std::mt19937 random(7);
  std::string data = Float32Bytes(20'000);
  const ChunkEncoding encoding = codec.Encode(BytesIn(data), 4);
  ASSERT_NE(encoding.width, 0U);
  const std::string stored = data.substr(0, encoding.bytes);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = stored;
    for (int i = 0; i < 3; ++i) {
      // Every second one in the header and the first block's.
      const size_t range = round % 2 == 0 ? damaged.size() : 24;
      damaged[random() % range] = static_cast<char>(random());
    }
    const auto decoded = codec.Decode(BytesIn(damaged), 4, 20'000);
    EXPECT_TRUE(!decoded || decoded->size() == 20'000U);
  }
  const auto again = codec.Decode(BytesIn(stored), 4, 20'000);
  ASSERT_TRUE(again);
  EXPECT_EQ(Text(*again), Float32Bytes(20'000)) << "what was damaged leaves nothing behind";
}

TEST(CodecPool, LendsEachCodecToOneAtATime) {
  CodecPool pool;
  ChunkCodec* first = nullptr;
  {
    CodecPool::Lease one(pool);
    CodecPool::Lease other(pool);
    first = &*one;
    EXPECT_NE(first, &*other);
  }
  CodecPool::Lease one(pool);
  CodecPool::Lease other(pool);
  EXPECT_TRUE(first == &*one || first == &*other) << "it is used again";
  pool.Clear();
}

class Choices {
 public:
  // What is left by which width; all others leave everything.
  explicit Choices(std::map<uint32_t, double> left = {}) : left_(std::move(left)) {}
  uint32_t Next(uint32_t before = 0) {
    return choice_.Choose(before, [this](uint32_t width) {
      ++samples_;
      return left_.contains(width) ? left_[width] : 1.0;
    });
  }
  void Now(std::map<uint32_t, double> left) { left_ = std::move(left); }
  int TakeSamples() { return std::exchange(samples_, 0); }
  EncodingChoice& choice() { return choice_; }

 private:
  EncodingChoice choice_;
  std::map<uint32_t, double> left_;
  int samples_ = 0;
};

TEST(EncodingChoice, TakesTheWidthThatLeavesLeast) {
  EXPECT_EQ(Choices({{1, 0.8}, {2, 0.7}, {4, 0.6}, {8, 0.65}}).Next(), 4U);
  EXPECT_EQ(Choices({{4, 0.6}, {8, 0.6}}).Next(), 4U) << "the narrower of two equal ones";
  EXPECT_EQ(Choices({{4, kWorthwhile}}).Next(), 4U);
  EXPECT_EQ(Choices({{4, kWorthwhile + 0.001}}).Next(), 0U);
}

TEST(EncodingChoice, TriesOneWidthWhereThePredecessorPaid) {
  Choices choices({{2, 0.7}});
  EXPECT_EQ(choices.Next(), 2U);
  EXPECT_EQ(choices.TakeSamples(), 4);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(choices.Next(), 2U);
  EXPECT_EQ(choices.TakeSamples(), 10);
  choices.Now({{2, 0.85}, {4, 0.5}});
  int until_better = 0;
  while (choices.Next() == 2U) ASSERT_LT(++until_better, 20) << "all are tried now and then";
  EXPECT_EQ(choices.Next(), 4U);
  choices.Now({{8, 0.5}});
  EXPECT_EQ(choices.Next(), 8U) << "and at once when it does not pay any more";
}

TEST(EncodingChoice, SamplesSeldomWhatDoesNotPay) {
  Choices choices;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(choices.Next(), 0U);
  EXPECT_LE(choices.TakeSamples(), 4 * (1000 / 16 + 5));
  choices.Now({{4, 0.8}});
  int missed = 0;
  while (choices.Next() == 0) ASSERT_LT(++missed, 16);
  EXPECT_EQ(choices.Next(), 4U);
}

TEST(EncodingChoice, TriesFirstWhatTheOlderCheckpointHad) {
  Choices choices({{2, 0.7}, {4, 0.7}});
  EXPECT_EQ(choices.Next(4), 4U);
  EXPECT_EQ(choices.TakeSamples(), 1);
  choices.Now({});
  EXPECT_EQ(choices.Next(4), 0U);
  EXPECT_EQ(choices.Next(), 0U);
  choices.Now({{2, 0.7}});
  EXPECT_EQ(choices.Next(2), 2U) << "though the last ones did not pay";
}

TEST(EncodingChoice, ASampleThatWasWrongCountsAsNotWorthIt) {
  Choices choices({{4, 0.5}});
  EXPECT_EQ(choices.Next(), 4U);
  choices.choice().DidNotPay();
  EXPECT_EQ(choices.Next(), 0U);
}

// Whole shards' worth of chunks, as the engine does it.
TEST(EncodingChoice, FindsTheWidthOfTheNumbers) {
  const auto widths = [](const std::string& data) {
    ChunkCodec codec;
    EncodingChoice choice;
    std::vector<uint32_t> chosen;
    for (size_t at = 0; at < data.size(); at += 256 * 1024) {
      const auto chunk = BytesIn(data).subspan(at, std::min<size_t>(256 * 1024, data.size() - at));
      chosen.push_back(choice.Choose(0, [&](uint32_t width) { return codec.Sample(chunk, width); }));
    }
    return chosen;
  };
  EXPECT_THAT(widths(Float32Bytes(kMiB)), testing::Each(testing::AnyOf(4U, 8U)));
  EXPECT_THAT(widths(AdamBytes(kMiB)), testing::Each(testing::AnyOf(4U, 8U)));
  EXPECT_THAT(widths(Bfloat16Bytes(kMiB)), testing::Each(testing::AnyOf(2U, 4U, 8U)));
  EXPECT_THAT(widths(TextBytes(kMiB)), testing::Each(testing::Ne(0U)));
  EXPECT_THAT(widths(std::string(kMiB, '\0')), testing::Each(1U));
  EXPECT_THAT(widths(NoiseBytes(kMiB)), testing::Each(0U));
}

}  // namespace
}  // namespace muster
