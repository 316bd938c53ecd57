// A stand-in for libmuster in the trainer's own tests: the same C API over a directory named by
// MUSTER_TEST_DIRECTORY, a file for each shard, which begins with the number of members that saved it. A checkpoint is
// committed when all shards of its step are there. Values are exchanged through MUSTER_TEST_EXCHANGE, a directory of the
// generation's own.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "client/muster.h"
#include "tests/unit/net/processes.h"

namespace {

struct Entry {
  std::string name;
  std::string meta;
  std::string data;
};

unsigned Number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

void Write(std::ostream& out, const std::string& text) {
  const std::size_t bytes = text.size();
  out.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  out.write(text.data(), static_cast<std::streamsize>(bytes));
}

bool Read(std::istream& in, std::string& text) {
  std::size_t bytes = 0;
  if (!in.read(reinterpret_cast<char*>(&bytes), sizeof(bytes))) return false;
  text.resize(bytes);
  return static_cast<bool>(in.read(text.data(), static_cast<std::streamsize>(bytes)));
}

}  // namespace

struct muster_handle {
  std::filesystem::path directory;
  unsigned rank = 0;
  unsigned size = 1;
  std::uint64_t step = 0;
  std::vector<Entry> entries;
  std::vector<std::string> exchanged;
  std::string error;

  [[nodiscard]] std::filesystem::path Shard(std::uint64_t of_step, unsigned of_rank) const {
    return directory / (std::to_string(of_step) + "." + std::to_string(of_rank));
  }
  [[nodiscard]] std::filesystem::path Progress() const {
    return directory / ("progress." + std::to_string(rank));
  }
  // By how many members a step was saved, 0 when it was not.
  [[nodiscard]] unsigned World(std::uint64_t of_step) const {
    std::ifstream in(Shard(of_step, 0), std::ios::binary);
    std::string world;
    return Read(in, world) ? static_cast<unsigned>(std::strtoul(world.c_str(), nullptr, 10)) : 0;
  }
  [[nodiscard]] bool Committed(std::uint64_t of_step) const {
    const unsigned world = World(of_step);
    for (unsigned r = 0; r < world; ++r) {
      if (!std::filesystem::exists(Shard(of_step, r))) return false;
    }
    return world != 0;
  }
  [[nodiscard]] std::uint64_t Latest() const {
    std::uint64_t latest = MUSTER_LATEST;
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      const std::uint64_t found = std::strtoull(file.path().filename().c_str(), nullptr, 10);
      if (Committed(found) && (latest == MUSTER_LATEST || found > latest)) latest = found;
    }
    return latest;
  }
};

struct muster_restore {
  std::uint64_t step = 0;
  std::vector<Entry> entries;
};

extern "C" {

int muster_open(muster_handle** out) {
  const char* directory = std::getenv("MUSTER_TEST_DIRECTORY");
  if (directory == nullptr) return MUSTER_E_NO_GANG;
  const char* size = std::getenv("WORLD_SIZE");
  *out = new muster_handle{directory, Number("RANK"), size == nullptr ? 1U : Number("WORLD_SIZE"), 0, {}, {},
                           {}};
  return MUSTER_OK;
}
void muster_close(muster_handle* m) {
  delete m;
}
const char* muster_last_error(const muster_handle* m) {
  return m == nullptr ? "" : m->error.c_str();
}

std::uint32_t muster_world_size(const muster_handle* m) {
  return m->size;
}
int muster_exchange(muster_handle* m, const char* key, const void* value, std::size_t bytes, int timeout_ms) {
  const muster::Exchange exchange = muster::test::ExchangeIn(
      std::getenv("MUSTER_TEST_EXCHANGE"), static_cast<int>(m->rank), static_cast<int>(m->size));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  auto values = exchange(key, {static_cast<const char*>(value), bytes}, deadline);
  if (!values) {
    m->error = values.error().message;
    return MUSTER_E_TIMEOUT;
  }
  m->exchanged = *std::move(values);
  return MUSTER_OK;
}
int muster_exchanged(muster_handle* m, std::uint32_t rank, const void** value, std::size_t* bytes) {
  *value = m->exchanged[rank].data();
  *bytes = m->exchanged[rank].size();
  return MUSTER_OK;
}

int muster_step(muster_handle* m, std::uint64_t step, muster_wish* wish) {
  std::ofstream(m->Progress()) << step;
  *wish = {std::filesystem::exists(m->directory / ("save-at." + std::to_string(step))) ? 1 : 0, 0, ""};
  return MUSTER_OK;
}

int muster_save_begin(muster_handle* m, std::uint64_t step, std::size_t) {
  m->step = step;
  m->entries.clear();
  return MUSTER_OK;
}
int muster_save_begin_nowait(muster_handle* m, std::uint64_t step, std::size_t bytes) {
  if (std::filesystem::exists(m->directory /
                              ("busy-" + std::to_string(step) + "." + std::to_string(m->rank)))) {
    return MUSTER_E_BUSY;
  }
  return muster_save_begin(m, step, bytes);
}
int muster_save_add(muster_handle* m, const char* name, const char* meta, const void* data,
                    std::size_t bytes) {
  m->entries.push_back({name, meta == nullptr ? "" : meta, {static_cast<const char*>(data), bytes}});
  return MUSTER_OK;
}
int muster_save_add_device(muster_handle* m, const char* name, const char* meta, const void* data,
                           std::size_t bytes, void* stream) {
  // As libmuster's: it knows the driver that the program has loaded.
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return MUSTER_E_INVALID;
  const auto copy = reinterpret_cast<int (*)(std::uint64_t, std::uint64_t, std::size_t, void*)>(
      ::dlsym(driver, "cuMemcpyAsync"));
  const auto wait = reinterpret_cast<int (*)(void*)>(::dlsym(driver, "cuStreamSynchronize"));
  std::string content(bytes, '\0');
  const bool copied = copy(reinterpret_cast<std::uintptr_t>(content.data()),
                           reinterpret_cast<std::uintptr_t>(data), bytes, stream) == 0 &&
                      wait(stream) == 0;
  ::dlclose(driver);
  return copied ? muster_save_add(m, name, meta, content.data(), bytes) : MUSTER_E_DEVICE;
}
int muster_save_commit(muster_handle* m) {
  const std::filesystem::path aside = m->directory / ("part-" + std::to_string(m->rank));
  {
    std::ofstream out(aside, std::ios::binary);
    Write(out, std::to_string(m->size));
    for (const Entry& entry : m->entries) {
      Write(out, entry.name);
      Write(out, entry.meta);
      Write(out, entry.data);
    }
    if (!out.flush()) return MUSTER_E_STORE;
  }
  std::filesystem::rename(aside, m->Shard(m->step, m->rank));
  return MUSTER_OK;
}
void muster_save_abort(muster_handle* m) {
  m->entries.clear();
}

int muster_wait(muster_handle* m, std::uint64_t step, int timeout_ms) {
  for (int waited = 0; !m->Committed(step); ++waited) {
    if (waited >= timeout_ms) return MUSTER_E_TIMEOUT;
    struct timespec pause = {0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return MUSTER_OK;
}

int muster_restore_info(muster_handle* m, std::uint64_t, std::uint64_t* found_step,
                        std::uint32_t* world_size) {
  const std::uint64_t step = m->Latest();
  if (step == MUSTER_LATEST) return MUSTER_E_NOT_FOUND;
  *found_step = step;
  *world_size = m->World(step);
  return MUSTER_OK;
}
int muster_restore_open_shard(muster_handle* m, std::uint64_t step, std::uint32_t rank,
                              muster_restore** out) {
  std::ifstream in(m->Shard(step, rank), std::ios::binary);
  std::string world;
  if (!Read(in, world)) return MUSTER_E_INVALID;
  auto* restore = new muster_restore{step, {}};
  Entry entry;
  while (Read(in, entry.name) && Read(in, entry.meta) && Read(in, entry.data))
    restore->entries.push_back(entry);
  *out = restore;
  return MUSTER_OK;
}
std::uint64_t muster_restore_open_step(const muster_restore* r) {
  return r->step;
}
std::size_t muster_restore_count(const muster_restore* r) {
  return r->entries.size();
}
int muster_restore_entry(const muster_restore* r, std::size_t i, const char** name, const char** meta,
                         const void** data, std::size_t* bytes) {
  const Entry& entry = r->entries[i];
  *name = entry.name.c_str();
  *meta = entry.meta.c_str();
  *data = entry.data.data();
  *bytes = entry.data.size();
  return MUSTER_OK;
}
int muster_restore_get(muster_restore* r, const char* name, void* data, std::size_t bytes) {
  for (const Entry& entry : r->entries) {
    if (entry.name != name) continue;
    if (entry.data.size() != bytes) return MUSTER_E_INVALID;
    std::memcpy(data, entry.data.data(), bytes);
    return MUSTER_OK;
  }
  return MUSTER_E_NOT_FOUND;
}
void muster_restore_close(muster_restore* r) {
  delete r;
}

}  // extern "C"
