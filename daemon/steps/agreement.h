// At which step all members that train together save, or exit: the same one for all, without a collective (muster_step). Pure:
// messages in, messages out.
//
// The coordinator wants something, so it looks how far all members are (an order without a step) and proposes a step S that
// none of them can have entered. Each node writes S to its members' pages, and only then reads what they have entered
// (wire/step_page.h): a member that enters S or a later step from then on waits. When all are below S, it is agreed on, and each
// node writes that. Else a later step is proposed, by steps that double, and who waits goes on. Nobody waits for a node that
// does not answer: after kPatienceMs, or when its link ends, the proposal is void.
//
// A node that has said "below S" cannot know that S is void before it hears it. So its members wait as long as it has
// no coordinator, or no musterd: until another has taken over, musterd is back, or the lease ends and they are killed.
//
// A coordinator that takes a generation over asks all nodes what holds there, and decides nothing before all have answered.
// From its question on a node obeys it alone, so nothing is agreed on behind its back. What one node knows to be agreed on is,
// and was told to members perhaps. A proposal that no node knows more of is void, and what it was for is wanted still.
//
// Every order says all that holds, and has a number above all before, also of coordinators before: one that comes late is
// dropped, and one that comes twice does no harm. Nodes keep it beyond a restart of musterd (NodeSide::Kept) before they act
// on it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "daemon/proto/muster.pb.h"

namespace muster::steps {

inline constexpr int64_t kPatienceMs = 1'000;  // for all nodes' answers to a proposal
inline constexpr int64_t kLookMs = 250;        // when nothing can be proposed yet; then ever longer, to
inline constexpr int64_t kLongestLookMs = 8'000;
inline constexpr int64_t kTellMs = 10'000;  // when nodes do not say how far they are
inline constexpr uint32_t kMostPassed = 3;  // times that members go past what was agreed on

// Of the members of one world, in one generation.
class Agreement {
 public:
  struct Hooks {
    std::function<void(uint32_t node, const v1::StepOrder&)> send;
    std::function<void(const std::string& text)> note;  // for people
    std::function<std::string(uint32_t node)> name;
  };
  struct World {
    std::string role;          // "": those that train
    std::set<uint32_t> nodes;  // that have members of it
  };
  // `inherited`: a coordinator before this one may have ordered something. Numbers of orders begin above `number`.
  // Times are CLOCK_BOOTTIME in milliseconds.
  Agreement(uint64_t generation, uint64_t number, World world, bool inherited, Hooks hooks, int64_t now);

  void Want(bool save, bool exit, const std::string& reason, int64_t now);
  // A node has registered: what it was sent may not have come.
  void Joined(uint32_t node);
  void Left(uint32_t node, int64_t now);
  void Take(uint32_t node, const v1::StepAnswer& answer, int64_t now);
  void Take(const v1::StepNews& news, int64_t now);
  void Tick(int64_t now);

  // Whether Tick is needed.
  [[nodiscard]] bool Busy() const { return phase_ != Phase::kIdle; }
  [[nodiscard]] bool Has(uint32_t node) const { return world_.nodes.contains(node); }
  [[nodiscard]] const v1::StepOrder& order() const { return order_; }

 private:
  enum class Phase {
    kLearning,  // what held before
    kIdle,      // nothing is wanted
    kLooking,   // how far are they
    kPaused,    // before the next look
    kProposed,
  };

  void Send();
  void Enter(Phase phase, int64_t now);
  void Pause(int64_t now);
  void Learned(int64_t now);
  void Propose(int64_t now);
  [[nodiscard]] bool Agreed(uint64_t step) const;
  void Decide(int64_t now);
  void TellMissing();
  [[nodiscard]] uint64_t Highest() const;
  [[nodiscard]] bool AllPassed(uint64_t step) const;
  [[nodiscard]] std::string WhoIsOdd(uint64_t step) const;

  World world_;
  Hooks hooks_;
  Phase phase_ = Phase::kIdle;
  v1::StepOrder order_;                         // the newest
  std::map<uint32_t, v1::StepAnswer> answers_;  // to it
  std::map<uint32_t, v1::StepAnswer> unheard_;  // those that are to be followed by another
  uint64_t headroom_ = 1;
  uint64_t ahead_ = 0;  // so much above the highest was the newest step that was proposed
  uint32_t voids_ = 0;  // in a row, of proposals that were not answered in time
  int64_t since_ = 0;   // of the phase
  int64_t pause_ = kLookMs;
  bool pause_due_ = false;  // before the next proposal
  bool sent_ = false;       // any order
  bool told_ = false;       // who does not answer
  bool told_odd_ = false;
  std::set<uint64_t> passed_;  // agreed steps that a member has gone past
};

}  // namespace muster::steps
