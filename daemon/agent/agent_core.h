// Decides what an agent does about each thing that it hears from its gang's coordinators, its node's lease and the record in the store:
// which node it registers with, which orders it carries out, and when its own node takes the coordination over. The core gives the orders
// that follow to a Shell. The daemon's LocalGang is a Shell, and so is the simulator's. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/agent/coordinator_search.h"
#include "daemon/agent/orders.h"
#include "daemon/lease/agent_lease.h"

namespace muster {

class AgentCore {
 public:
  using Nanos = CoordinatorSearch::Nanos;

  // It outlives the core. All calls are made by the thread that calls the core, and while the core is in one of its own functions: TakenOver
  // may be called inside of TakeOver, and Started inside of the function that Start was given. Nothing else may call the core back.
  class Shell {
   public:
    Shell() = default;
    Shell(const Shell&) = delete;
    Shell& operator=(const Shell&) = delete;
    virtual ~Shell() = default;

    // The time by a clock that never goes back.
    [[nodiscard]] virtual Nanos Now() const = 0;

    // ---- the link to the coordinator; there is one at most
    // Whether this node has something to register. When that comes true, the shell calls Connect.
    [[nodiscard]] virtual bool MayRegister() const = 0;
    // Dials a node. While IsNewest(link) the shell tells the core what comes on the link, and when the link ends.
    virtual void Dial(uint32_t node, uint64_t link) = 0;
    // Closes the link, if there is one, and does not call Lost. `why`: what the coordinator's musterd does, as "does not answer"; "": a new
    // link follows at once, because another node coordinates or a new registration is wanted.
    virtual void CloseLink(const std::string& why) = 0;
    virtual void Register() = 0;
    // LinkDue is to be called at that time, which replaces the time before; none: LinkDue is not to be called.
    virtual void WakeForLink(std::optional<Nanos> at) = 0;

    // ---- the node's lease
    // Whether the lease has been acknowledged so lately that members may be started.
    [[nodiscard]] virtual bool MayStart() const = 0;
    virtual void Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
                        lease::Source source) = 0;
    virtual void Claimed(uint64_t term, bool taken) = 0;

    // ---- the record
    // This node is to coordinate after this term. The answer is TakenOver.
    virtual void TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) = 0;
    // Reads the record after a while, in which another coordinator may announce itself. The answer is Learned.
    virtual void ReadRecord() = 0;

    // ---- the gang on this node
    // Keeps coordinator, term and generation for the next musterd, which gives them to Restore.
    virtual void Save() = 0;
    // A new term has begun, in which no order of the terms before counts. `stopped`: the generation that was started here last had been
    // ordered to stop: its start is forgotten.
    virtual void NewTerm(bool stopped) = 0;
    // StartDue is to be called a little later.
    virtual void StartLater() = 0;
    // Stops the members of all generations that may not run any more.
    virtual void StopMembers(bool last_words) = 0;
    // Notes, and tells the coordinator, that each member that has a program ends by the fence; StopMembers, which kills them, follows. The
    // answer is their newest generation; 0: there is no such member.
    virtual uint64_t FenceMembers() = 0;
  };

  AgentCore(Shell& shell, std::vector<uint32_t> candidates, CoordinatorSearch::Times times, uint32_t self)
      : shell_(shell), search_(std::move(candidates), times), self_(self) {}

  // The musterd before this one has kept this.
  void Restore(uint32_t coordinator, uint64_t term, uint64_t started, std::optional<uint64_t> from);

  // ---- the link
  // This node has something to register. Does nothing while there is a link, or a wait before the next one.
  void Connect();
  [[nodiscard]] bool IsNewest(uint64_t link) const { return search_.IsNewest(link); }
  // The newest link has ended.
  void Lost();
  void LinkDue();
  // The coordinator is to have a new registration.
  void Anew();
  // This node coordinates, because another node has asked.
  void CoordinatedHere();

  // ---- what the coordinator says over the newest link
  // Called for each message before the message is obeyed. False: a former coordinator has sent the message, which is not obeyed.
  bool Heard(uint64_t term);
  // The dialled node does not coordinate; it may know which node does.
  void Elsewhere(std::optional<uint32_t> node);
  void Waits() { search_.CoordinatorWaits(); }
  void Attended(uint32_t coordinator, const lease::WitnessSet& witnesses);
  // A generation is to start. The core calls `start` at once or when the lease allows it, unless another order comes before.
  void Start(uint64_t generation, std::function<void()> start);
  void StartDue();
  // This node is a part of the generation that has started, from the checkpoint of the step `from`.
  void Started(uint64_t generation, std::optional<uint64_t> from);
  void Stop(uint64_t generation, bool last_words);
  // The gang is over.
  void Finish() { finished_ = true; }

  // ---- what the lease says; lease::EventKind says what each event means. Successor gets nodes of the gang only: the shell checks that.
  void LeaseBegins();
  void Fence();
  void Claim(uint64_t term) { AskToTakeOver(term, {}, true); }
  void TakeOver(uint64_t term, const lease::WitnessSet& closed) { AskToTakeOver(term, closed, false); }
  void Successor(uint64_t term, uint32_t node);
  void StopOrdered(uint64_t term, uint64_t generation);

  // ---- what the record says
  void TakenOver(uint64_t term, bool claim, bool taken);
  struct Recorded {
    uint32_t node = 0;
    uint64_t term = 0;
    lease::WitnessSet witnesses;
  };
  // None: the store has not answered, or has no record of this gang. True: the coordinator that the record names is news, and this agent registers there.
  bool Learned(const std::optional<Recorded>& record);

  [[nodiscard]] const CoordinatorSearch& search() const { return search_; }
  [[nodiscard]] bool WaitedLately() { return search_.WaitedLately(); }
  [[nodiscard]] Orders& orders() { return orders_; }
  [[nodiscard]] const Orders& orders() const { return orders_; }

 private:
  void DialNext();
  void Redial();
  void HangUp(const std::string& why);
  void Adopt(uint64_t term);
  void AskToTakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim);

  struct Waiting {
    uint64_t generation = 0;
    std::function<void()> start;
  };

  Shell& shell_;
  CoordinatorSearch search_;
  Orders orders_;
  const uint32_t self_;
  std::optional<Waiting> waiting_;   // the start that waits for the lease
  std::optional<uint64_t> running_;  // the generation that was started last
  bool taking_over_ = false;
  bool finished_ = false;
};

}  // namespace muster
