#include "daemon/cli/commit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/unique_fd.h"
#include "client/files/directory_tree.h"
#include "client/files/step_name.h"

namespace muster::cli {
namespace {

using nlohmann::json;

constexpr auto kBetweenAsks = std::chrono::milliseconds(20);

// null: nothing is known yet.
json CommittedOf(const std::filesystem::path& top, const std::string& name, std::string* why) {
  std::error_code ignored;
  if (std::filesystem::exists(top / ("committed." + name), ignored)) return true;
  std::ifstream failed(top / ("failed." + name));
  if (!failed) return nullptr;
  std::getline(failed, *why);
  return false;
}

// One that has failed is tried again when its mark is made anew; what is said of it then is of that try.
Status MakeMark(const UniqueFd& opened, const std::string& directory, const std::filesystem::path& failed) {
  struct stat info {};
  const bool marked = ::fstatat(opened.get(), files::kCommitMark, &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (marked && (!S_ISREG(info.st_mode) || info.st_size != 0)) {
    return Error{Errc::kInvalid, fmt::format("{}/{} is not the empty file that closes a step: give it "
                                             "another name, or close the step by renaming its directory",
                                             directory, files::kCommitMark)};
  }
  std::error_code ignored;
  if (std::filesystem::remove(failed, ignored) && marked)
    (void)::unlinkat(opened.get(), files::kCommitMark, 0);
  const UniqueFd mark(
      ::openat(opened.get(), files::kCommitMark, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (mark.valid()) return {};
  return Error{Errc::kInvalid, fmt::format("cannot write in {}: {}", directory, std::strerror(errno))};
}

Result<Answered> Commit(const std::string& directory, uint32_t wait_seconds) {
  std::string path = directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string name = path.substr(path.rfind('/') + 1);
  const auto step = files::StepOf(name);
  if (!step) {
    return Error{
        Errc::kInvalid,
        fmt::format("'{}' is not the directory of a step: that is called step-N, in MUSTER_CHECKPOINT_DIR",
                    directory)};
  }
  const UniqueFd opened(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid())
    return Error{Errc::kInvalid, fmt::format("cannot open {}: {}", directory, std::strerror(errno))};
  std::error_code ignored;
  const std::filesystem::path top = std::filesystem::absolute(path, ignored).parent_path();
  if (Status made = MakeMark(opened, directory, top / ("failed." + name)); !made) return made.error();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(wait_seconds);
  std::string why;
  json committed;
  while (wait_seconds > 0) {
    committed = CommittedOf(top, name, &why);
    if (!committed.is_null() || std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(kBetweenAsks);
  }
  if (committed.is_null() && wait_seconds > 0)
    why = fmt::format("it is not committed yet, after {} s", wait_seconds);
  Answered answered{{{"directory", name}, {"step", *step}, {"committed", committed}, {"reason", why}}};
  if (wait_seconds > 0 && committed != true) answered.code = kBadFinding;
  return answered;
}

std::string CommitText(const json& document) {
  const std::string name = document.at("directory");
  if (document.at("committed") == true) return name + " is a checkpoint\n";
  const std::string why = document.at("reason");
  return why.empty() ? name + " is closed\n" : fmt::format("{} is not a checkpoint: {}\n", name, why);
}

}  // namespace

void AddCommitCommand(CLI::App* checkpoint, const Common* common, int* result) {
  struct Options {
    std::string directory;
    uint32_t wait_seconds = 0;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* commit =
      checkpoint->add_subcommand("commit", "Close a directory that a program has written (--gang=files=yes)");
  commit->fallthrough();
  commit->add_option("directory", options->directory, "MUSTER_CHECKPOINT_DIR/step-N")->required();
  commit->add_option("--wait", options->wait_seconds,
                     "Wait up to this many seconds for the commit; exit 1 if it fails");
  commit->callback([=] {
    const auto answered = Commit(options->directory, options->wait_seconds);
    *result = answered ? Print(*common, *answered, CommitText) : Fail(answered.error());
  });
}

}  // namespace muster::cli
