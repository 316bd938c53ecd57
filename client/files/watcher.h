// Watches a member's checkpoint directory and saves each step that its program closes, by renaming a directory to
// step-N or by an empty file `commit` in it. How it went is in a file beside it: committed.step-N or failed.step-N, never both.
// One that has failed can be closed again, by renaming or by making the mark anew.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "client/files/saving_member.h"
#include "client/muster.h"

namespace muster::files {

inline constexpr size_t kKeptSteps = 2;          // committed directories that stay
inline constexpr char kWantedFile[] = "wanted";  // there while Muster wants a checkpoint now

class Watcher {
 public:
  using Clock = std::chrono::steady_clock;
  // `say` takes a sentence for the job's stderr.
  Watcher(muster_handle* m, int top, std::function<void(const std::string&)> say)
      : m_(m), top_(top), say_(std::move(say)) {}

  // Begins to watch; `restored` is what is there already. To be called before the program runs.
  Status Begin(const Restored& restored, const std::string& path);
  [[nodiscard]] int fd() const { return events_.get(); }
  // Does what there is to do, without waiting.
  void Advance();
  // In how many milliseconds to call Advance again if fd() says nothing.
  [[nodiscard]] int PauseMs() const;
  // The program has ended: nothing new is to come.
  void Drain();
  // Whether every step that was closed is committed, has failed, or needs but the other members.
  [[nodiscard]] bool Drained();

 private:
  struct Closing {
    std::string name;
    bool marked = false;           // by the mark
    std::optional<Identity> mark;  // what is called so then, if anything is: another one closes it again
  };
  struct Pending {
    Closing closing;
    Identity root;
    Clock::time_point since;
    bool durable = false;  // this member's shard is
    Clock::time_point durable_since;
  };
  struct Kept {
    std::string name;
    dev_t device = 0;
    ino_t inode = 0;
  };

  void ReadEvents();
  void LookAgain();  // when the kernel has dropped events
  void Closed(const std::string& name, bool marked);
  void LookForMarks();
  void Save();
  void Settle();
  void Succeeded(uint64_t step, const Pending& pending);
  void Failed(const Closing& closing, const std::string& why);
  void Say(const std::string& name, const std::string& why);
  void WriteResult(const char* kind, const std::string& name, const std::string& text);
  void RemoveOld();
  void ShowWanted();

  muster_handle* m_;
  int top_;
  std::function<void(const std::string&)> say_;
  UniqueFd events_;
  std::deque<Closing> closed_;           // to be saved, in order
  std::vector<std::string> open_;        // being written in place
  std::vector<Closing> failed_;          // and may be closed again
  std::map<uint64_t, Pending> pending_;  // handed to musterd
  std::map<uint64_t, Kept> committed_;
  unsigned said_ = 0;
  bool wanted_ = false;
  bool draining_ = false;
};

}  // namespace muster::files
