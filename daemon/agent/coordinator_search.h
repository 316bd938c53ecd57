// Which node an agent registers with, and when it dials. Pure: no I/O, clock or thread. Times are nanoseconds of any clock that
// never goes back.
//
// There is one link at a time, or a wait before the next link is dialled, or neither: then the owner dials when it has
// something to register. A rule that answers true has turned to a node, and so have TookOver and Anew: the owner closes the
// link that it had, and dials that node at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/planted.h"

namespace muster {

class CoordinatorSearch {
 public:
  using Nanos = int64_t;
  static constexpr Nanos kMillisecond = 1'000'000;

  struct Times {
    // Before the first dial after a lost link; each wait after that is twice as long as the one before, up to the longest.
    Nanos first_wait = 50 * kMillisecond;
    Nanos longest_wait = 1'000 * kMillisecond;
    // For the first word on a link: a coordinator that takes the record over of a slow store gives none yet.
    Nanos answer = 10'000 * kMillisecond;
    // Without a lease for so long, other candidates are asked.
    Nanos rotate = 5'000 * kMillisecond;
    // So long an agent whose gang has waited for its name looks for another coordinator. The former coordinator's node may be dead, and the
    // agent dials that node first.
    Nanos found_again = 60'000 * kMillisecond;
  };

  CoordinatorSearch(std::vector<uint32_t> candidates, Times times)
      : times_(times), candidates_(std::move(candidates)), coordinator_(candidates_.front()) {}

  // The coordinator that was known before musterd was restarted.
  void Restore(uint32_t coordinator) { coordinator_ = coordinator; }

  // ---- links

  // The owner dials coordinator() now; the answer is this link's number. What an older link says is dropped.
  uint64_t Dial(Nanos now) {
    linked_at_ = now;
    due_ = now + times_.answer;
    return link_;
  }
  [[nodiscard]] bool IsNewest(uint64_t link) const { return link == link_; }
  // The newest link has brought a message.
  void Heard() {
    if (linked_at_) due_.reset();
    wait_ = times_.first_wait;
  }
  // It has said that the gang cannot begin yet. Another candidate would only wait, too.
  void CoordinatorWaits() {
    coordinator_waits_ = waited_lately_ = has_waited_ = true;
    unattended_since_.reset();
  }
  // Whether a coordinator has waited since this was asked last; its link may have ended.
  [[nodiscard]] bool WaitedLately() { return std::exchange(waited_lately_, coordinator_waits_); }
  [[nodiscard]] bool has_waited() const { return has_waited_; }  // at any time
  // How long an agent whose gang has not begun looks for a coordinator: `join`, or longer.
  [[nodiscard]] Nanos Patience(Nanos join) const {
    return has_waited_ ? std::max(join, times_.found_again) : join;
  }
  // The newest link has ended, or the owner gives up on it. The node is dialled again at due(), or the next candidate after it.
  void Lost(Nanos now) {
    Close();
    // Beats say when a coordinator that was obeyed is dead. A node without a lease looks for one.
    if (attended_) {
      unattended_since_.reset();
    } else if (!unattended_since_) {
      unattended_since_ = now;
    }
    if (unattended_since_ && now - *unattended_since_ > times_.rotate && !MUSTER_PLANTED(never_rotates))
      Rotate();
    due_ = now + wait_;
    wait_ = std::min(2 * wait_, times_.longest_wait);
  }
  // When Due() is to be asked; none: nothing is waited for.
  [[nodiscard]] std::optional<Nanos> due() const { return due_; }
  enum class Step { kDial, kHangUp };
  Step Due() {
    due_.reset();
    return linked_at_ ? Step::kHangUp : Step::kDial;
  }
  [[nodiscard]] bool Idle() const { return !linked_at_ && !due_; }
  // When the newest link was dialled; none: there is no link.
  [[nodiscard]] std::optional<Nanos> linked_at() const { return linked_at_; }
  // Whether the next wait is the first one since a word was heard.
  [[nodiscard]] bool FirstWait() const { return wait_ == times_.first_wait; }

  // ---- the lease

  // The coordinator has taken this node in, and has said who it is.
  void TakenIn(uint32_t coordinator) {
    coordinator_ = followed_ = coordinator;
    unattended_since_.reset();
  }
  [[nodiscard]] bool LeaseBegins() {
    attended_ = true;
    // While this node had no lease the search may have rotated to a candidate that does not coordinate: it turns back to the node that
    // the lease follows.
    return coordinator_ != followed_ && Turn(followed_);
  }
  void LeaseEnds() { attended_ = false; }

  // ---- who coordinates

  // The lease has heard the coordinator's own announcement. A coordinator that has raised its own term says so over the link, too: no
  // new link is needed to that one.
  [[nodiscard]] bool Announced(uint32_t node) {
    followed_ = node;
    return (!linked_at_ || node != coordinator_) && Turn(node);
  }
  // This node, `self`, has taken the record over, and registers with itself.
  void TookOver(uint32_t self) {
    followed_ = self;
    Turn(self);
  }
  // The record in the store names the coordinator. `newer`: in a higher term than this node knew. The lease follows that node in any case.
  [[nodiscard]] bool Recorded(uint32_t node, bool newer) {
    followed_ = node;
    return (newer || node != coordinator_) && Turn(node);
  }
  // This node, `self`, coordinates, because another node has asked. An agent whose node has a lease learns of a new coordinator by
  // beats. An agent without a lease may be dialling a dead host, for longer than a coordinator waits for a node.
  [[nodiscard]] bool CoordinatedHere(uint32_t self) {
    if (attended_ || coordinator_ == self) return false;
    TookOver(self);
    return true;
  }
  // The dialled node does not coordinate; it may know of another. False: the owner hangs up.
  [[nodiscard]] bool Elsewhere(std::optional<uint32_t> node) {
    return node && *node != coordinator_ && Turn(*node);
  }
  // The same node is to have a new registration.
  void Anew() { Turn(coordinator_); }

  [[nodiscard]] uint32_t coordinator() const { return coordinator_; }
  [[nodiscard]] uint32_t followed() const { return followed_; }
  [[nodiscard]] bool attended() const { return attended_; }  // this node's lease runs

 private:
  // From now on there is neither a link nor a wait.
  void Close() {
    ++link_;
    linked_at_.reset();
    due_.reset();
    coordinator_waits_ = false;
  }
  bool Turn(uint32_t node) {
    coordinator_ = node;
    wait_ = times_.first_wait;
    Close();
    return true;
  }
  // The next candidate after the one that does not answer.
  void Rotate() {
    const auto now = std::ranges::find(candidates_, coordinator_);
    coordinator_ =
        now == candidates_.end() || now + 1 == candidates_.end() ? candidates_.front() : *(now + 1);
  }

  Times times_;
  std::vector<uint32_t> candidates_;
  uint32_t coordinator_;
  uint32_t followed_ = 0;  // the node that coordinates, to the lease
  bool attended_ = false;
  std::optional<Nanos> unattended_since_;
  uint64_t link_ = 0;  // its number
  std::optional<Nanos> linked_at_;
  std::optional<Nanos> due_;        // with a link: no word has come on it yet
  bool coordinator_waits_ = false;  // on this link
  bool waited_lately_ = false;
  bool has_waited_ = false;
  Nanos wait_ = times_.first_wait;
};

}  // namespace muster
