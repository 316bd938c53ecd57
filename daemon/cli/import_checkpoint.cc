#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ceph/engine/shard_memory.h"
#include "ceph/exchange/safetensors.h"
#include "ceph/exchange/shard_import.h"
#include "daemon/cli/checkpoint_transfer.h"
#include "daemon/cli/file_copy.h"
#include "daemon/cli/progress.h"

namespace muster::cli {
namespace {

using nlohmann::json;

constexpr char kMemory[] = "the shard's memory";

struct Source {
  std::string path;
  UniqueFd file;
  ShardImport plan;
};

Result<Source> OpenFile(const std::string& path) {
  Source source;
  source.path = path;
  source.file.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!source.file.valid() || ::fstat(source.file.get(), &info) != 0) return FileError("read", path, errno);
  if (!S_ISREG(info.st_mode)) return Error{Errc::kInvalid, path + " is no regular file"};
  const auto of_file = [&](const Error& error) { return Error{error.code, path + ": " + error.message}; };
  const auto size = static_cast<uint64_t>(info.st_size);
  const auto first = ReadBytes({source.file, 0, path}, std::min<uint64_t>(size, kSafeTensorsLengthBytes));
  if (!first) return first.error();
  const auto length = SafeTensorsHeaderLength(std::as_bytes(std::span(*first)), size);
  if (!length) return of_file(length.error());
  const auto text = ReadBytes({source.file, kSafeTensorsLengthBytes, path}, *length);
  if (!text) return text.error();
  const auto header = ReadSafeTensorsHeader(*text, size);
  if (!header) return of_file(header.error());
  auto plan = PlanImport(*header);
  if (!plan) return of_file(plan.error());
  source.plan = *std::move(plan);
  return source;
}

uint32_t RankOf(const Source& source) {
  return source.plan.origin ? source.plan.origin->rank : 0;
}

// Exported files are the ranks that they say; all of one checkpoint must be there.
Status PutInOrder(std::vector<Source>* sources) {
  const auto exported = static_cast<size_t>(std::count_if(
      sources->begin(), sources->end(), [](const Source& s) { return s.plan.origin.has_value(); }));
  if (exported == 0) return {};
  if (exported != sources->size()) {
    return Error{
        Errc::kInvalid,
        "some of the files were written by `muster checkpoint export`, some were not: a checkpoint is "
        "made of one kind"};
  }
  std::sort(sources->begin(), sources->end(),
            [](const Source& a, const Source& b) { return RankOf(a) < RankOf(b); });
  const ShardOrigin& first = *sources->front().plan.origin;
  for (size_t rank = 0; rank < sources->size(); ++rank) {
    const ShardOrigin& origin = *(*sources)[rank].plan.origin;
    if (origin.key != first.key || origin.step != first.step || origin.world_size != first.world_size) {
      return Error{Errc::kInvalid,
                   fmt::format("{} is of another checkpoint (step {}) than {} (step {})",
                               (*sources)[rank].path, origin.step, sources->front().path, first.step)};
    }
    if (origin.rank != rank) {
      return Error{
          Errc::kInvalid,
          fmt::format("the checkpoint was saved by {} members: the file of rank {} is {}", first.world_size,
                      std::min<size_t>(origin.rank, rank), origin.rank < rank ? "there twice" : "missing")};
    }
  }
  if (first.world_size != sources->size()) {
    return Error{Errc::kInvalid,
                 fmt::format("the checkpoint was saved by {} members: the file of rank {} is missing",
                             first.world_size, sources->size())};
  }
  return {};
}

Result<UniqueFd> MakeShard(const Source& source, Progress* progress) {
  const ShardImport& plan = source.plan;
  auto memory = MakeShardMemory(plan.layout.bytes);
  if (!memory) return memory;
  const auto put = [&](uint64_t offset, const std::string& text) {
    return WriteShardMemory(*memory, offset, std::as_bytes(std::span(text)));
  };
  if (Status status = put(0, plan.layout.header); !status) return status.error();
  if (Status status = put(plan.layout.index_offset, plan.layout.index); !status) return status.error();
  if (Status status = put(plan.structure_offset, plan.structure); !plan.structure.empty() && !status)
    return status.error();
  for (const ShardImport::Piece& piece : plan.pieces) {
    const Status status = CopyBytes({source.file, piece.from, source.path}, {*memory, piece.offset, kMemory},
                                    piece.bytes, [&](uint64_t bytes) { progress->Add(bytes); });
    if (!status) return status.error();
  }
  if (Status status = SealShardMemory(*memory); !status) return status.error();
  return memory;
}

}  // namespace

Result<json> ImportCheckpoint(MusterdSession& session, const std::string& name, uint64_t step,
                              const std::vector<std::string>& files) {
  std::vector<Source> sources;
  uint64_t bytes = 0;
  for (const std::string& path : files) {
    auto source = OpenFile(path);
    if (!source) return source.error();
    if (source->plan.layout.bytes > session.max_shard_bytes()) {
      return Error{
          Errc::kInvalid,
          fmt::format("{} makes a shard of {} bytes; at most {} are allowed (max_shard_size, chunk_size)",
                      path, source->plan.layout.bytes, session.max_shard_bytes())};
    }
    bytes += source->plan.layout.bytes;
    sources.push_back(*std::move(source));
  }
  if (Status ordered = PutInOrder(&sources); !ordered) return ordered.error();
  const std::string key = "name-" + name;
  if (Status begun = session.Begin(key, step, static_cast<uint32_t>(sources.size())); !begun)
    return begun.error();
  // Each byte goes into memory, then into the store.
  Progress progress("import", 2 * bytes);
  for (uint32_t rank = 0; rank < sources.size(); ++rank) {
    const auto memory = MakeShard(sources[rank], &progress);
    if (!memory) return memory.error();
    if (Status written = session.Write(rank, *memory, sources[rank].plan.layout.bytes); !written)
      return written.error();
    progress.Add(sources[rank].plan.layout.bytes);
  }
  if (Status committed = session.Commit(); !committed) return committed.error();
  return json{{"key", key}, {"name", name}, {"step", step}, {"members", sources.size()}, {"bytes", bytes}};
}

}  // namespace muster::cli
