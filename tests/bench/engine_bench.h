// What the benchmarks of the engine alone share: their options, a store, memory as a program hands it over, a save. What
// cannot be had ends the program with a sentence.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>

#include "ceph/catalog/object_names.h"
#include "ceph/engine/engine.h"

namespace muster {

struct BenchOptions {
  size_t mib;
  int rounds = 5;
  std::string directory;

  // False: the program is to end with `status`.
  bool Parse(const char* what, const char* of_mib, int argc, char** argv, int* status) {
    CLI::App app(what);
    app.add_option("--mib", mib, of_mib)->check(CLI::Range(4, 4096));
    app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
    app.add_option("--directory", directory, "for a store, best of memory")->required();
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      *status = app.exit(error);
      return false;
    }
    return true;
  }
};

[[noreturn]] inline void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

inline std::shared_ptr<Store> BenchStore(const std::string& directory) {
  auto opened = OpenStore({.url = "dir:" + directory});
  if (!opened) Fail(opened.error().message);
  return *std::move(opened);
}

inline std::shared_ptr<StagedMemory> Staged(const std::string& data) {
  UniqueFd fd(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::write(fd.get(), data.data(), data.size()) != static_cast<ssize_t>(data.size()) ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    std::perror("memfd");
    std::exit(1);
  }
  return *StagedMemory::Take(std::move(fd));
}

inline Shard SaveShard(Engine& engine, StagedMemory& memory, size_t bytes, uint64_t step) {
  std::promise<Result<Shard>> done;
  engine.WriteShard("u0", ShardPrefix("bench", step, {1, 1}, 0), 0, memory, bytes, {},
                    [&done](Result<Shard> shard) { done.set_value(std::move(shard)); });
  auto shard = done.get_future().get();
  if (!shard) Fail(shard.error().message);
  return *std::move(shard);
}

inline void RemoveShard(Store& store, const Shard& shard) {
  for (uint64_t i = 0; i < shard.chunks.size(); ++i) (void)store.Remove({"u0", shard.ObjectOf(i)});
}

}  // namespace muster
