// What compressing checkpoints gives and costs, for tests/bench/compression.py: the codec alone, and the engine's own
// processor time with and without it. Prints one JSON object.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ceph/catalog/digest.h"
#include "ceph/engine/chunk_codec.h"
#include "ceph/engine/encoding_choice.h"
#include "tests/bench/engine_bench.h"
#include "tests/unit/ceph/chunk_samples.h"

namespace muster {
namespace {

constexpr size_t kChunk = 4 << 20;

double ProcessorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The thread's own, so that others on the machine count little.
double SecondsOf(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  work();
  return now() - begin;
}

// One thread, chunk after chunk, as an engine's thread does it.
nlohmann::json Codec(const std::string& data, int rounds) {
  const double megabytes = static_cast<double>(data.size()) / 1e6;
  std::string buffer(kChunk, '\0');
  nlohmann::json result;
  for (int round = 0; round < rounds; ++round) {
    ChunkCodec codec;
    EncodingChoice choice;
    std::vector<std::string> stored;
    std::vector<ChunkEncoding> encodings;
    double digesting = 0;
    double encoding = 0;
    uint64_t bytes = 0;
    for (size_t at = 0; at < data.size(); at += kChunk) {
      const auto chunk = BytesIn(buffer).first(std::min(kChunk, data.size() - at));
      digesting += SecondsOf([&] {
        const auto from = BytesIn(data).subspan(at, chunk.size());
        std::copy(from.begin(), from.end(), chunk.begin());
        (void)DigestOf(chunk);
      });
      ChunkEncoding got;
      encoding += SecondsOf([&] {
        const uint32_t width = choice.Choose(0, [&](uint32_t w) { return codec.Sample(chunk, w); });
        if (width != 0) got = codec.Encode(chunk, width);
      });
      encodings.push_back(got);
      stored.push_back(got.width == 0 ? "" : buffer.substr(0, got.bytes));
      bytes += got.width == 0 ? chunk.size() : got.bytes;
    }
    const double decoding = SecondsOf([&] {
      for (size_t i = 0; i < stored.size(); ++i) {
        const size_t size = std::min(kChunk, data.size() - i * kChunk);
        if (!stored[i].empty() && !codec.Decode(BytesIn(stored[i]), encodings[i].width, size)) std::abort();
      }
    });
    result["stored_ratio"] = static_cast<double>(bytes) / static_cast<double>(data.size());
    result["encode_mb_s"].push_back(megabytes / encoding);
    result["digest_mb_s"].push_back(megabytes / digesting);
    if (bytes < data.size()) result["decode_mb_s"].push_back(megabytes / decoding);
  }
  return result;
}

// Processor time of one save by an engine, in all its threads.
double Save(const std::shared_ptr<Store>& store, const std::shared_ptr<StagedMemory>& memory, size_t bytes,
            bool compress, uint64_t step) {
  EngineOptions options;
  options.compress = compress;
  Engine engine(store, options);
  const double before = ProcessorSeconds();
  const Shard shard = SaveShard(engine, *memory, bytes, step);
  const double used = ProcessorSeconds() - before;
  RemoveShard(*store, shard);
  return used;
}

nlohmann::json Engines(const std::shared_ptr<Store>& store, const std::string& data, int rounds) {
  const auto memory = Staged(data);
  nlohmann::json result;
  uint64_t step = 0;
  (void)Save(store, memory, data.size(), false, ++step);  // the first one faults the pages in
  for (int round = 0; round < rounds; ++round) {
    result["plain_s"].push_back(Save(store, memory, data.size(), false, ++step));
    result["compress_s"].push_back(Save(store, memory, data.size(), true, ++step));
  }
  return result;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  using namespace muster;
  BenchOptions bench{.mib = 128};
  int status = 0;
  if (!bench.Parse("What compressing checkpoints gives and costs.", "of each kind of data", argc, argv,
                   &status))
    return status;
  const std::shared_ptr<Store> store = BenchStore(bench.directory);
  const size_t bytes = bench.mib << 20;
  nlohmann::json result;
  const auto measure = [&](const char* kind, const std::string& data) {
    result[kind] = Codec(data, bench.rounds);
    result[kind].update(Engines(store, data, bench.rounds));
  };
  measure("float32", Float32Bytes(bytes));
  measure("bfloat16", Bfloat16Bytes(bytes));
  measure("adam", AdamBytes(bytes));
  measure("text", TextBytes(bytes));
  measure("zeros", std::string(bytes, '\0'));
  measure("noise", NoiseBytes(bytes));
  std::printf("%s\n", result.dump().c_str());
}
