// The store in a directory: an object is a file below SPACE/objects, a head a JSON file below SPACE/heads,
// changed under a lock that all hosts which share the directory take.
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/worker_pool.h"
#include "ceph/store/backend.h"
#include "ceph/store/file_tree.h"
#include "ceph/store/names.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr int kHeadVersion = 1;
constexpr size_t kThreads = 4;

std::string ObjectPath(const ObjectName& object) {
  return object.space + "/objects/" + object.name;
}
std::string HeadPath(const ObjectName& head) {
  return head.space + "/heads/" + head.name;
}

std::string EncodeHead(const Head& head) {
  json entries = json::object();
  for (const auto& [key, value] : head.entries) entries[key] = value;
  return json{{"version", kHeadVersion}, {"fence", head.fence}, {"entries", std::move(entries)}}.dump(
      1, ' ', false, json::error_handler_t::replace);
}

Result<Head> DecodeHead(const std::string& text, const std::string& where) {
  const auto corrupt = [&](const char* why) {
    return Error{Errc::kCorrupt, where + " is no head of this store: " + why};
  };
  const json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return corrupt("no JSON object");
  const auto version = parsed.find("version");
  const auto fence = parsed.find("fence");
  const auto entries = parsed.find("entries");
  if (version == parsed.end() || *version != kHeadVersion) return corrupt("unknown version");
  if (fence == parsed.end() || !fence->is_string()) return corrupt("no fence");
  if (entries == parsed.end() || !entries->is_object()) return corrupt("no entries");
  Head head{fence->get<std::string>(), {}};
  for (const auto& [key, value] : entries->items()) {
    if (!value.is_string()) return corrupt("an entry is no string");
    head.entries.emplace(key, value.get<std::string>());
  }
  return head;
}

std::string IdOf(const FileTree& tree) {
  const Result<std::string> number = tree.Number();
  return number ? "dir:" + *number : "";
}

class DirectoryStore final : public Store {
 public:
  DirectoryStore(FileTree tree, std::chrono::seconds timeout)
      : tree_(std::move(tree)), id_(IdOf(tree_)), timeout_(timeout), pool_(kThreads, "muster-dir") {}

  void WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) override {
    pool_.Post([this, object, data = buffer.memory().first(bytes), done = std::move(done)] {
      done(WriteBytes(object, data));
    });
  }

  void ReadAsync(const ObjectName& object, size_t limit, ReadDone done) override {
    pool_.Post([this, object, limit, done = std::move(done)] {
      if (Status status = CheckObjectName(object); !status) return done(status.error());
      const std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(limit);
      const Result<size_t> got = tree_.Read(ObjectPath(object), {memory.get(), limit});
      if (!got) return done(got.error());
      done(StoreData{{memory.get(), *got}, memory});
    });
  }

  Status Write(const ObjectName& object, const std::string& data) override {
    return WriteBytes(object, std::as_bytes(std::span(data)));
  }

  Result<std::string> Read(const ObjectName& object) override {
    if (Status status = CheckObjectName(object); !status) return status.error();
    return tree_.ReadAll(ObjectPath(object));
  }

  Status Remove(const ObjectName& object) override {
    if (Status status = CheckObjectName(object); !status) return status;
    return tree_.Remove(ObjectPath(object), 2);
  }

  Result<std::vector<std::string>> List(const std::string& space, const std::string& prefix) override {
    if (Status status = CheckSpace(space); !status) return status.error();
    if (Status status = CheckPrefix(prefix); !status) return status.error();
    const std::string root = space + "/objects";
    // From the deepest directory that holds all of them.
    const size_t slash = prefix.rfind('/');
    const std::string from = slash == std::string::npos ? root : root + "/" + prefix.substr(0, slash);
    Result<std::vector<std::string>> paths = tree_.List(from, root + "/" + prefix);
    if (!paths) return paths;
    for (std::string& path : *paths) path.erase(0, root.size() + 1);
    std::sort(paths->begin(), paths->end());
    return paths;
  }

  Result<std::vector<std::string>> ListSpaces() override {
    Result<std::vector<std::string>> names = tree_.Directories();
    if (!names) return names;
    std::erase_if(*names, [](const std::string& name) { return !CheckSpace(name); });
    std::sort(names->begin(), names->end());
    return names;
  }

  Result<Head> ReadHead(const ObjectName& head) override {
    if (Status status = CheckObjectName(head); !status) return status.error();
    // No lock: the file is replaced in one step.
    const Result<std::string> text = tree_.ReadAll(HeadPath(head));
    if (!text) return text.error();
    return DecodeHead(*text, tree_.path() + "/" + HeadPath(head));
  }

  Status UpdateHead(const ObjectName& name, const HeadUpdate& update) override {
    if (Status status = CheckObjectName(name); !status) return status;
    // Held until this function returns: closing the descriptor unlocks.
    const Result<UniqueFd> lock = Lock(name.space);
    if (!lock) return lock.error();
    Result<Head> now = ReadHead(name);
    if (!now && now.error().code != Errc::kNotFound) return now.error();
    if (!now && update.expect_fence) return Conflict(name, "does not exist");
    if (now && !update.expect_fence) return Conflict(name, "exists already, with fence " + now->fence);
    if (now && now->fence != *update.expect_fence) {
      return Conflict(name, "has fence " + now->fence + ", not " + *update.expect_fence);
    }
    Head next = now ? std::move(*now) : Head{};
    for (const auto& [key, value] : update.expect) {
      const auto entry = next.entries.find(key);
      if ((entry == next.entries.end() ? "" : entry->second) != value)
        return Conflict(name, "was changed: " + key);
    }
    next.fence = update.new_fence;
    for (const std::string& key : update.remove) next.entries.erase(key);
    for (const auto& [key, value] : update.set) next.entries[key] = value;
    const std::string text = EncodeHead(next);
    return tree_.Write(HeadPath(name), std::as_bytes(std::span(text)));
  }

  [[nodiscard]] std::string Id() const override { return id_; }
  [[nodiscard]] std::string Describe() const override { return "dir:" + tree_.path(); }

 private:
  Status WriteBytes(const ObjectName& object, std::span<const std::byte> data) {
    if (Status status = CheckObjectName(object); !status) return status;
    return tree_.Write(ObjectPath(object), data);
  }

  Error Conflict(const ObjectName& name, const std::string& what) const {
    return {Errc::kConflict, "head " + name.space + "/" + name.name + " in " + Describe() + " " + what};
  }

  // One lock for the heads of a space. Polled, because a blocking flock cannot be given a deadline.
  Result<UniqueFd> Lock(const std::string& space) const {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    Result<UniqueFd> fd = tree_.OpenLock(space + "/heads/.lock");
    if (!fd) return fd;
    auto pause = std::chrono::microseconds(200);
    while (::flock(fd->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return Error{Errc::kUnavailable, "cannot lock " + tree_.path() + "/" + space +
                                             "/heads/.lock: " + std::strerror(errno) +
                                             " (does this file system support flock?)"};
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        return Error{Errc::kUnavailable, "another process has held " + tree_.path() + "/" + space +
                                             "/heads/.lock for " + std::to_string(timeout_.count()) + " s"};
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(20000));
    }
    return fd;
  }

  FileTree tree_;
  const std::string id_;
  std::chrono::seconds timeout_;
  WorkerPool pool_;  // last: its tasks use the rest
};

}  // namespace

Result<std::unique_ptr<Store>> OpenDirectoryStore(const StoreOptions& options, const std::string& place) {
  Result<FileTree> tree = FileTree::Open(place);
  if (!tree) return tree.error();
  return std::unique_ptr<Store>(std::make_unique<DirectoryStore>(
      std::move(*tree), std::chrono::seconds(options.operation_timeout_seconds)));
}

}  // namespace muster
