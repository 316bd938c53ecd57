#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "ceph/exchange/shard_export.h"
#include "daemon/cli/checkpoint_transfer.h"
#include "daemon/cli/file_copy.h"
#include "daemon/cli/progress.h"
#include "wire/wire.h"

namespace muster::cli {
namespace {

using nlohmann::json;

constexpr char kIndex[] = "index.json";
constexpr char kMemory[] = "the shard's memory";

std::string FileOf(uint32_t rank) {
  return fmt::format("rank{:05}.safetensors", rank);
}

// New files of a directory; they are gone again unless Keep is called.
class NewFiles {
 public:
  explicit NewFiles(std::string directory) : directory_(std::move(directory)) {}
  ~NewFiles() {
    for (const std::string& path : made_) ::unlink(path.c_str());
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  Status Prepare(uint32_t world_size) {
    if (::mkdir(directory_.c_str(), 0777) != 0 && errno != EEXIST)
      return FileError("make", directory_, errno);
    std::vector<std::string> names = {kIndex};
    for (uint32_t rank = 0; rank < world_size; ++rank) names.push_back(FileOf(rank));
    for (const std::string& name : names) {
      struct stat info {};
      if (::lstat(Path(name).c_str(), &info) == 0)
        return Error{Errc::kInvalid, Path(name) + " is there already: give another directory"};
    }
    return {};
  }

  // Writes a file under a temporary name, which it loses when it is whole.
  template <typename Write>
  Status Make(const std::string& name, Write write) {
    const std::string path = Path(name);
    const std::string part = path + ".part";
    const UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file.valid()) return FileError("make", part, errno);
    made_.push_back(part);
    if (Status written = write(file, path); !written) return written;
    if (::fsync(file.get()) != 0) return FileError("write", path, errno);
    if (::rename(part.c_str(), path.c_str()) != 0) return FileError("rename", part, errno);
    made_.back() = path;
    return {};
  }

  void Keep() { made_.clear(); }

 private:
  [[nodiscard]] std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_;
  std::vector<std::string> made_;
};

// A shard, of which a window at a time is in memory. Windows begin where chunks do, as long as their size divides a window's,
// so no chunk is read twice by who reads on and on.
class RemoteShard {
 public:
  RemoteShard(MusterdSession& session, uint32_t rank) : session_(session), rank_(rank) {}

  // Calls `each` with the parts of a range, in order.
  Status Read(uint64_t offset, uint64_t bytes,
              const std::function<Status(const FilePlace&, uint64_t)>& each) {
    for (const uint64_t end = offset + bytes; offset < end;) {
      const uint64_t begin = offset / wire::kMaxCommandRead * wire::kMaxCommandRead;
      if (!window_ || begin_ != begin) {
        auto window = session_.Read(rank_, begin, wire::kMaxCommandRead);
        if (!window) return window.error();
        window_ = *std::move(window);
        begin_ = begin;
      }
      const uint64_t part = std::min(end, begin + wire::kMaxCommandRead) - offset;
      if (Status status = each({window_->memory, offset - begin, kMemory}, part); !status) return status;
      offset += part;
    }
    return {};
  }

  Result<std::string> Text(uint64_t offset, uint64_t bytes) {
    std::string text;
    const Status read = Read(offset, bytes, [&](const FilePlace& from, uint64_t part) -> Status {
      const auto data = ReadBytes(from, part);
      if (!data) return data.error();
      text += *data;
      return {};
    });
    if (!read) return read.error();
    return text;
  }

  Result<uint64_t> Size() {
    const auto part = session_.Read(rank_, 0, 0);
    if (!part) return part.error();
    return part->shard_bytes;
  }

 private:
  MusterdSession& session_;
  const uint32_t rank_;
  std::optional<MusterdSession::Part> window_;
  uint64_t begin_ = 0;
};

// What is to be written of a shard.
Result<ShardExport> Plan(const ShardOrigin& origin, RemoteShard* shard) {
  const auto size = shard->Size();
  if (!size) return size.error();
  const auto header = shard->Text(0, std::min<uint64_t>(*size, kShardHeaderBytes));
  if (!header) return header.error();
  const auto place = ReadShardHeader(std::as_bytes(std::span(*header)), *size);
  if (!place) return place.error();
  const auto index = shard->Text(place->offset, place->bytes);
  if (!index) return index.error();
  const auto entries = ReadShardIndex(*place, std::as_bytes(std::span(*index)));
  if (!entries) return entries.error();
  std::string structure;
  for (const ShardEntryInfo& entry : *entries) {
    if (!IsStructure(entry) || entry.bytes > kMaxSafeTensorsHeader) continue;
    auto text = shard->Text(entry.offset, entry.bytes);
    if (!text) return text.error();
    structure = *std::move(text);
  }
  return PlanExport(origin, *entries, structure);
}

}  // namespace

Result<json> ExportCheckpoint(MusterdSession& session, const std::string& key, uint64_t step,
                              const std::string& directory) {
  const auto checkpoint = session.OpenCheckpoint(key, step);
  if (!checkpoint) return checkpoint.error();
  NewFiles files(directory);
  if (Status ready = files.Prepare(checkpoint->world_size); !ready) return ready.error();
  Progress progress("export", checkpoint->bytes);
  json list = json::array();
  for (uint32_t rank = 0; rank < checkpoint->world_size; ++rank) {
    RemoteShard shard(session, rank);
    const auto plan = Plan({key, step, rank, checkpoint->world_size}, &shard);
    if (!plan) {
      return Error{plan.error().code == Errc::kInvalid ? Errc::kCorrupt : plan.error().code,
                   fmt::format("the shard of rank {} cannot be exported: {}", rank, plan.error().message)};
    }
    const Status made = files.Make(FileOf(rank), [&](const UniqueFd& file, const std::string& path) {
      Status status = WriteBytes({file, 0, path}, plan->header);
      uint64_t at = plan->header.size();
      for (size_t i = 0; status && i < plan->pieces.size(); ++i) {
        const ShardExport::Piece& piece = plan->pieces[i];
        status = shard.Read(piece.offset, piece.bytes, [&](const FilePlace& from, uint64_t bytes) {
          Status copied =
              CopyBytes(from, {file, at, path}, bytes, [&](uint64_t part) { progress.Add(part); });
          at += bytes;
          return copied;
        });
      }
      return status;
    });
    if (!made) return made.error();
    list.push_back(
        {{"file", FileOf(rank)}, {"rank", rank}, {"bytes", plan->bytes}, {"tensors", plan->pieces.size()}});
  }
  const json index = {
      {"format", "muster-export"},         {"version", kExportVersion}, {"key", key}, {"step", step},
      {"members", checkpoint->world_size}, {"files", std::move(list)}};
  const Status made = files.Make(kIndex, [&](const UniqueFd& file, const std::string& path) {
    return WriteBytes({file, 0, path}, index.dump(2) + "\n");
  });
  if (!made) return made.error();
  files.Keep();
  json document = index;
  document["directory"] = directory;
  return document;
}

}  // namespace muster::cli
