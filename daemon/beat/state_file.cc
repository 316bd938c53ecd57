#include "daemon/beat/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr uint64_t kMagic = 0x31455441'5453424dULL;  // "MBSTATE1"

}  // namespace

struct StateFile::Layout {
  struct Gang {
    uint64_t tag;
    uint64_t promised;
    int64_t at;
  };
  uint64_t magic;
  int64_t alive;
  std::array<Gang, 500> gangs;
};

Result<std::unique_ptr<StateFile>> StateFile::Open(const std::string& path, int64_t now) {
  const auto fail = [&path](const char* what) {
    return Error{Errc::kUnavailable,
                 fmt::format("cannot {} {}: {}", what, path.empty() ? "memory" : path, std::strerror(errno))};
  };
  UniqueFd file;
  if (!path.empty()) {
    file.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return fail("open");
    if (::ftruncate(file.get(), sizeof(Layout)) != 0) return fail("size");
  }
  void* memory = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE,
                        file.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file.get(), 0);
  if (memory == MAP_FAILED) return fail("map");
  auto* layout = static_cast<Layout*>(memory);
  if (layout->magic != kMagic) {
    std::memset(layout, 0, sizeof(Layout));
    layout->magic = kMagic;
  }
  std::unique_ptr<StateFile> state(new StateFile(layout));
  state->last_alive_ = layout->alive <= now ? layout->alive : 0;
  return state;
}

StateFile::~StateFile() {
  ::munmap(layout_, sizeof(Layout));
}

uint64_t StateFile::Promised(uint64_t gang) const {
  for (const Layout::Gang& g : layout_->gangs) {
    if (g.tag == gang && g.at != 0) return g.promised;
  }
  return 0;
}

void StateFile::Promise(uint64_t gang, uint64_t term, int64_t now) {
  auto place = std::find_if(layout_->gangs.begin(), layout_->gangs.end(),
                            [gang](const Layout::Gang& g) { return g.tag == gang && g.at != 0; });
  if (place == layout_->gangs.end()) {
    place = std::min_element(layout_->gangs.begin(), layout_->gangs.end(),
                             [](const Layout::Gang& a, const Layout::Gang& b) { return a.at < b.at; });
    *place = {gang, 0, 0};
  }
  place->promised = std::max(place->promised, term);
  place->at = now;
}

void StateFile::Alive(int64_t now) {
  layout_->alive = now;
}

}  // namespace muster
