#include "client/files/watcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "client/files/directory_tree.h"
#include "client/files/step_name.h"

namespace muster::files {
namespace {

using std::chrono::seconds;

// The files that say how it went: these and the directory's name.
constexpr char kCommitted[] = "committed";
constexpr char kFailed[] = "failed";
constexpr int kBusyPauseMs = 50;
constexpr int kIdlePauseMs = 500;
constexpr unsigned kMaxSaid = 20;  // sentences of a generation in the job's stderr; the files have them all
// A step that others have not saved by then, though a later one is committed, will never be.
constexpr seconds kSuperseded{60};
// For the other members, when the program has ended.
constexpr seconds kDrainPatience{30};

bool IsDirectory(int top, const std::string& name, struct stat* info) {
  return fstatat(top, name.c_str(), info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info->st_mode);
}

auto IsOf(const std::string& name) {
  return [name](const auto& closing) { return closing.name == name; };
}

std::optional<Identity> MarkIn(int top, const std::string& name) {
  struct stat info {};
  if (fstatat(top, (name + "/" + kCommitMark).c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return Identity::Of(info);
}

}  // namespace

Status Watcher::Begin(const Restored& restored, const std::string& path) {
  events_.reset(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!events_.valid()) return SystemError("watch", path + " (fs.inotify.max_user_instances)");
  // As the working directory: the path is in a directory where others write, and a container may have no /proc.
  const UniqueFd before(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!before.valid() || fchdir(top_) != 0) return SystemError("enter", path);
  const int watch = inotify_add_watch(events_.get(), ".", IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
  const int error = errno;
  if (fchdir(before.get()) != 0) return SystemError("leave", path);
  errno = error;
  if (watch < 0) return SystemError("watch", path + " (fs.inotify.max_user_watches)");
  if (restored.name.empty()) return {};
  struct stat info {};
  if (IsDirectory(top_, restored.name, &info))
    committed_[restored.step] = {restored.name, info.st_dev, info.st_ino};
  WriteResult(kCommitted, restored.name, "");
  return {};
}

void Watcher::Advance() {
  ReadEvents();
  LookForMarks();
  Save();
  Settle();
  ShowWanted();
}

int Watcher::PauseMs() const {
  return closed_.empty() && open_.empty() && pending_.empty() ? kIdlePauseMs : kBusyPauseMs;
}

// ---- what the program does

void Watcher::ReadEvents() {
  alignas(inotify_event) std::array<char, 16 * 1024> bytes;
  for (;;) {
    const ssize_t got = read(events_.get(), bytes.data(), bytes.size());
    if (got <= 0) return;
    for (ssize_t at = 0; at < got;) {
      inotify_event event{};
      std::memcpy(&event, bytes.data() + at, sizeof(event));
      const char* text = bytes.data() + at + sizeof(event);
      const std::string name(text, strnlen(text, event.len));
      at += static_cast<ssize_t>(sizeof(event) + event.len);
      if ((event.mask & IN_Q_OVERFLOW) != 0) LookAgain();
      if (!StepOf(name)) continue;
      if ((event.mask & IN_ISDIR) == 0) {
        Say(name, "it is not a directory");
      } else if ((event.mask & IN_MOVED_TO) != 0) {
        LookForMarks();  // those of before; steps go up
        Closed(name, false);
      } else if (std::find(open_.begin(), open_.end(), name) == open_.end()) {
        open_.push_back(name);
        std::erase_if(failed_, IsOf(name));
      }
    }
  }
}

// Which directories were renamed is not known any more: they need the mark.
void Watcher::LookAgain() {
  say_(
      "so much happens in MUSTER_CHECKPOINT_DIR that the kernel has dropped some of it; a step that was "
      "closed just "
      "now by renaming it needs a file `commit`");
  struct Close {
    void operator()(DIR* list) const { closedir(list); }
  };
  const std::unique_ptr<DIR, Close> list(fdopendir(openat(top_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!list) return;
  while (const dirent* entry = readdir(list.get())) {
    const std::string name = entry->d_name;
    const auto step = StepOf(name);
    if (!step || pending_.contains(*step) || committed_.contains(*step)) continue;
    if (std::any_of(closed_.begin(), closed_.end(), IsOf(name))) continue;
    if (std::any_of(failed_.begin(), failed_.end(), IsOf(name))) continue;
    if (std::find(open_.begin(), open_.end(), name) == open_.end()) open_.push_back(name);
  }
}

void Watcher::Closed(const std::string& name, bool marked) {
  std::erase(open_, name);
  std::erase_if(failed_, IsOf(name));
  // What was said of an earlier try is not said of this one.
  (void)unlinkat(top_, fmt::format("{}.{}", kFailed, name).c_str(), 0);
  if (std::none_of(closed_.begin(), closed_.end(), IsOf(name)))
    closed_.push_back({name, marked, MarkIn(top_, name)});
}

void Watcher::LookForMarks() {
  for (const std::string& name : std::vector<std::string>(open_)) {
    struct stat info {};
    if (!IsDirectory(top_, name, &info)) {
      std::erase(open_, name);  // gone, before it was closed
    } else if (MarkIn(top_, name)) {
      Closed(name, true);
    }
  }
  for (const Closing& closing : std::vector<Closing>(failed_)) {
    struct stat info {};
    const auto mark = MarkIn(top_, closing.name);
    if (!IsDirectory(top_, closing.name, &info)) {
      std::erase_if(failed_, IsOf(closing.name));
    } else if (mark && !(closing.mark && *mark == *closing.mark)) {
      Closed(closing.name, true);
    }
  }
}

void Watcher::Save() {
  while (!closed_.empty()) {
    const Closing closing = closed_.front();
    const uint64_t step = StepOf(closing.name).value_or(0);
    const Saved saved = SaveDirectory(m_, top_, closing.name, step, closing.marked);
    if (saved.state == Saved::State::kBusy) return;
    closed_.pop_front();
    if (saved.state == Saved::State::kFailed) {
      Failed(closing, saved.why);
    } else {
      pending_[step] = {closing, saved.root, Clock::now(), false, {}};
    }
  }
}

// ---- what became of it

void Watcher::Settle() {
  const uint64_t newest = muster_committed(m_);  // also what keeps the connection alive
  for (auto at = pending_.begin(); at != pending_.end();) {
    const auto& [step, pending] = *at;
    const int status = muster_wait(m_, step, 0);
    bool settled = true;
    if (status == MUSTER_OK) {
      Succeeded(step, pending);
    } else if (!IsAway(status)) {
      Failed(pending.closing, muster_last_error(m_));
    } else if (newest != MUSTER_LATEST && newest > step && Clock::now() - pending.since > kSuperseded) {
      Failed(pending.closing, fmt::format("not every member has saved it, and step {} is committed", newest));
    } else {
      settled = false;
    }
    at = settled ? pending_.erase(at) : std::next(at);
  }
  RemoveOld();
}

void Watcher::Succeeded(uint64_t step, const Pending& pending) {
  committed_[step] = {pending.closing.name, pending.root.device, pending.root.inode};
  WriteResult(kCommitted, pending.closing.name, "");
}

void Watcher::Failed(const Closing& closing, const std::string& why) {
  failed_.push_back(closing);
  Say(closing.name, why);
}

void Watcher::Say(const std::string& name, const std::string& why) {
  WriteResult(kFailed, name, why + "\n");
  if (++said_ <= kMaxSaid)
    say_(fmt::format("rank {}: {} is not a checkpoint: {}", muster_rank(m_), name, why));
}

// The sentence is there whole or not at all. Where there is no room for it, the job's stderr has it.
void Watcher::WriteResult(const char* kind, const std::string& name, const std::string& text) {
  constexpr char kWork[] = ".result";
  const UniqueFd file(openat(top_, kWork, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid()) return;
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return;
  (void)renameat(top_, kWork, top_, fmt::format("{}.{}", kind, name).c_str());
  const char* other = std::strcmp(kind, kCommitted) == 0 ? kFailed : kCommitted;
  (void)unlinkat(top_, fmt::format("{}.{}", other, name).c_str(), 0);
}

// The directories of committed steps, but for the newest: the store has them. What is not committed is never touched,
// nor what has another directory's identity than was saved.
void Watcher::RemoveOld() {
  while (committed_.size() > kKeptSteps) {
    const Kept& oldest = committed_.begin()->second;
    struct stat info {};
    if (IsDirectory(top_, oldest.name, &info) && info.st_dev == oldest.device &&
        info.st_ino == oldest.inode) {
      if (Status status = RemoveTree(top_, oldest.name); !status && ++said_ <= kMaxSaid)
        say_(status.error().message);
      (void)unlinkat(top_, fmt::format("{}.{}", kCommitted, oldest.name).c_str(), 0);
    }
    committed_.erase(committed_.begin());
  }
}

void Watcher::ShowWanted() {
  muster_wish wish;
  const bool wanted = muster_step(m_, MUSTER_LATEST, &wish) == MUSTER_OK && wish.save != 0;
  if (wanted == wanted_) return;
  wanted_ = wanted;
  if (!wanted) {
    (void)unlinkat(top_, kWantedFile, 0);
    return;
  }
  const UniqueFd file(openat(top_, kWantedFile, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
}

// ---- the end

void Watcher::Drain() {
  Advance();
  for (const std::string& name : open_) Say(name, "the program has ended without closing it");
  open_.clear();
  failed_.clear();
  draining_ = true;
}

bool Watcher::Drained() {
  if (!closed_.empty()) return false;
  for (auto& [step, pending] : pending_) {
    if (!pending.durable && muster_wait_durable(m_, step, 0) == MUSTER_OK) {
      pending.durable = true;
      pending.durable_since = Clock::now();
    }
    if (!pending.durable || Clock::now() - pending.durable_since < kDrainPatience) return false;
  }
  for (const auto& [step, pending] : pending_) {
    say_(fmt::format("rank {}: the program has ended, and not every member has saved {} yet", muster_rank(m_),
                     pending.closing.name));
  }
  pending_.clear();
  return true;
}

}  // namespace muster::files
