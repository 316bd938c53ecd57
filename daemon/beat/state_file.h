// What must outlive this process and not the host: promises, and when it was last alive. A file on a tmpfs, mapped, so
// that writing it is a store to memory, done before the datagram that depends on it goes out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace muster {

// One thread at a time.
class StateFile {
 public:
  // "" keeps everything in this process's memory only. A file that is not one of these is begun anew. `now`, here and below,
  // is BeatClock's.
  static Result<std::unique_ptr<StateFile>> Open(const std::string& path, int64_t now);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // The term up to which this node has promised, for the gang with that tag; 0: none.
  [[nodiscard]] uint64_t Promised(uint64_t gang) const;
  // Keeps the 500 gangs that promised last.
  void Promise(uint64_t gang, uint64_t term, int64_t now);
  // The time of the last Alive of the process before this one; 0: none, or the host has started since.
  [[nodiscard]] int64_t last_alive() const { return last_alive_; }
  void Alive(int64_t now);

 private:
  struct Layout;
  explicit StateFile(Layout* layout) : layout_(layout) {}
  Layout* layout_;
  int64_t last_alive_ = 0;
};

}  // namespace muster
