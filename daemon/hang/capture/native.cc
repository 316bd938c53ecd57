#include "daemon/hang/capture/native.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "daemon/hang/capture/observed_process.h"

namespace muster::capture {
namespace {

constexpr size_t kFrames = 200;
constexpr size_t kNameBytes = 160;

pid_t target = 0;  // libdwfl gives its callbacks no way to know

// The file as the process sees it: it may live in a container.
int FindElf(Dwfl_Module* module, void** user, const char* name, Dwarf_Addr base, char** path, Elf** elf) {
  if (name[0] != '/') return dwfl_linux_proc_find_elf(module, user, name, base, path, elf);  // the vdso
  const std::string file = fmt::format("/proc/{}/root{}", target, name);
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) *path = ::strdup(file.c_str());
  return fd;  // libdwfl closes it
}

// Separate debug information would have to be searched for, even over the network, for little more than names.
int NoDebuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

struct Pc {
  Dwarf_Addr address = 0;
  bool call = false;  // it is the return address of a call: the line before is meant
  auto operator<=>(const Pc&) const = default;
};
using Frames = std::vector<Pc>;

int AddFrame(Dwfl_Frame* frame, void* to) {
  auto& frames = *static_cast<Frames*>(to);
  Dwarf_Addr pc = 0;
  bool activation = false;
  if (!dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
  frames.push_back({pc, !activation});
  return frames.size() < kFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

std::string Demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         std::free);
  std::string result = status == 0 && text ? text.get() : name;
  if (result.size() > kNameBytes) result = result.substr(0, kNameBytes - 3) + "...";
  return result;
}

class Names {
 public:
  explicit Names(Dwfl* dwfl) : dwfl_(dwfl) {}

  const std::string& Of(const Pc& pc) {
    auto [at, added] = known_.try_emplace(pc);
    if (added) at->second = Find(pc);
    return at->second;
  }

 private:
  std::string Find(const Pc& pc) {
    const Dwarf_Addr address = pc.address - (pc.call ? 1 : 0);
    Dwfl_Module* module = dwfl_addrmodule(dwfl_, address);
    if (module == nullptr) return fmt::format("{:#x}", pc.address);
    Dwarf_Addr start = 0;
    const char* file = dwfl_module_info(module, nullptr, &start, nullptr, nullptr, nullptr, nullptr, nullptr);
    std::string library = file != nullptr ? file : "?";
    library = library.substr(library.rfind('/') + 1);
    GElf_Off offset = 0;
    GElf_Sym symbol;
    const char* name = dwfl_module_addrinfo(module, address, &offset, &symbol, nullptr, nullptr, nullptr);
    if (name == nullptr) return fmt::format("{}+{:#x}", library, pc.address - start);
    return fmt::format("{}+{:#x} {}", Demangled(name), offset + (pc.call ? 1 : 0), library);
  }

  Dwfl* dwfl_;
  std::map<Pc, std::string> known_;
};

std::string DwflError() {
  const char* text = dwfl_errmsg(-1);
  return text != nullptr ? text : "no unwinding";
}

}  // namespace

nlohmann::json NativeStacks(pid_t pid, StoppedThreads& threads) {
  nlohmann::json result = {{"groups", nlohmann::json::array()}, {"error", threads.trouble()}};
  if (threads.stopped().empty()) return result;
  target = pid;
  static char* no_path = nullptr;
  Dwfl_Callbacks callbacks{};
  callbacks.find_elf = FindElf;
  callbacks.find_debuginfo = NoDebuginfo;
  callbacks.debuginfo_path = &no_path;
  const std::unique_ptr<Dwfl, decltype(&dwfl_end)> dwfl(dwfl_begin(&callbacks), dwfl_end);
  if (!dwfl || dwfl_linux_proc_report(dwfl.get(), pid) != 0 ||
      dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0 ||
      dwfl_linux_proc_attach(dwfl.get(), pid, true) != 0) {
    result["error"] = DwflError();
    threads.Release();
    return result;
  }
  std::vector<std::pair<Frames, std::vector<pid_t>>> groups;
  // They stop in any order; the main thread's stack comes first.
  std::vector<pid_t> order(threads.stopped().begin(), threads.stopped().end());
  std::sort(order.begin(), order.end(),
            [pid](pid_t a, pid_t b) { return std::pair(a != pid, a) < std::pair(b != pid, b); });
  for (const pid_t thread : order) {
    Frames frames;
    // It may end with an error at the last frame: what it gave until then counts.
    dwfl_getthread_frames(dwfl.get(), thread, AddFrame, &frames);
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == frames; });
    if (same != groups.end()) {
      same->second.push_back(thread);
    } else {
      groups.emplace_back(std::move(frames), std::vector<pid_t>{thread});
    }
  }
  threads.Release();

  Names names(dwfl.get());
  for (const auto& [frames, members] : groups) {
    nlohmann::json group = {{"threads", members}, {"frames", nlohmann::json::array()}};
    if (const auto stat = ReadStat(fmt::format("{}/task/{}", pid, members.front())))
      group["name"] = stat->name;
    for (const Pc& pc : frames) group["frames"].push_back(names.Of(pc));
    result["groups"].push_back(std::move(group));
  }
  return result;
}

}  // namespace muster::capture
