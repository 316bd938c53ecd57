// muster-run: executes a member's program as torchrun would start it. There is nothing of it left afterwards: Muster watches the
// program, and starts it again.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "client/run/command_line.h"
#include "wire/warm_protocol.h"

namespace {

namespace run = muster::run;
namespace wire = muster::wire;

constexpr int kRefused = 2;
constexpr int kNotExecutable = 126;  // as shells have these
constexpr int kNotFound = 127;

int Say(int code, const std::string& sentence) {
  fmt::print(stderr, "muster-run: {}\n", sentence);
  return code;
}

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

bool IsExecutable(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The first executable of this name in PATH; "": there is none.
std::string InPath(std::string_view name) {
  std::string_view places = getenv("PATH") == nullptr ? "/usr/local/bin:/usr/bin:/bin" : getenv("PATH");
  while (true) {
    const size_t end = std::min(places.find(':'), places.size());
    const std::string_view place = places.substr(0, end);
    const std::string path = fmt::format("{}/{}", place.empty() ? "." : place, name);
    if (IsExecutable(path)) return path;
    if (end == places.size()) return "";
    places.remove_prefix(end + 1);
  }
}

// Where torchrun has that of its own environment. The full path is what a virtual environment is found by.
std::string Python() {
  const std::string given = Variable("PYTHON_EXEC");
  if (given.empty()) return InPath("python3");
  return given.find('/') == std::string::npos ? InPath(given) : given;
}

// What torchrun sets besides what Muster does: docs/environment.md.
void SetEnvironment(uint32_t tasks) {
  if (tasks > 1) setenv("OMP_NUM_THREADS", "1", 0);
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 0);
}

// Tells the supervisor which file is behind this one: if that is Python itself, it may be started warm.
void AnnounceFile(const std::string& path) {
  const std::string warm = Variable(wire::kWarmVariable);
  struct stat file {};
  if (warm.empty() || warm.find(' ') != std::string::npos || stat(path.c_str(), &file) != 0) return;
  const std::string value = fmt::format("{}{}{}:{}", warm, wire::kWarmRun, file.st_dev, file.st_ino);
  setenv(wire::kWarmVariable, value.c_str(), 1);
}

int Execute(const std::string& path, std::vector<std::string> words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(path.c_str(), arguments.data());
  const int why = errno;
  return Say(why == ENOENT ? kNotFound : kNotExecutable, fmt::format("{}: {}", path, strerror(why)));
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = run::ReadCommandLine({argv + std::min(argc, 1), argv + argc}, getenv);
  if (!line) return Say(kRefused, line.error().message);
  if (line->help) {
    fmt::print("{}", run::Usage());
    return 0;
  }
  if (getenv("MUSTER_GANG") == nullptr)
    return Say(kRefused, "this is no task of a gang: start it with srun --gang, or use torchrun");
  const auto tasks = static_cast<uint32_t>(strtoul(Variable("LOCAL_WORLD_SIZE").c_str(), nullptr, 10));
  if (const auto good = run::CheckProcesses(line->processes, tasks, Variable("SLURM_GPUS_ON_NODE")); !good)
    return Say(kRefused, good.error().message);
  SetEnvironment(tasks);
  if (!line->python) return Execute(line->program.front(), line->program);
  const std::string python = Python();
  if (python.empty())
    return Say(kNotFound,
               "PATH has no python3: activate the program's environment, or name its Python in PYTHON_EXEC");
  AnnounceFile(python);
  std::vector<std::string> words = {python, "-u"};
  words.insert(words.end(), line->program.begin(), line->program.end());
  return Execute(python, std::move(words));
}
