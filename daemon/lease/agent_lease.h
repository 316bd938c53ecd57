// One node's right to run a gang's members. Pure: no I/O, no clock, no thread; one caller at a time.
//
// The right ends at the latest of
//   acked      send time of the newest acknowledged beat + lease
//   voted      the time at which the votes of a majority of the witnesses were asked for + lease, once this node
//              and they have found the coordinator dead ("abandoned"); asked for again and again
//   claimed    the time of a successful claim + lease (two nodes: the store decides instead of a majority)
//   grace      what the owner allows at the start: members of a musterd that was restarted
// and then kFence is ordered. Only an acknowledgement brings it back. Why that is safe: docs/architecture.md, Leases.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/lease/types.h"

namespace muster::lease {

struct AgentSettings {
  Times times;
  uint64_t gang = 0;
  NodeIndex self = 0;
  // Who takes over, in order. Only the first 16 and this node itself matter.
  std::vector<NodeIndex> candidates;
  uint64_t first_sequence =
      1;                  // above all that an earlier process of this node has sent: its start's real time
  uint64_t promised = 0;  // an earlier process has promised never to beat in this term or one below
  Nanos grace_until = 0;  // members run already, and may until then; 0: nothing runs yet
};

// How the owner of this lease has learnt of a coordinator: from the coordinator, over its link, or from the record in the store.
enum class Source { kLink, kRecord };

class AgentLease {
 public:
  explicit AgentLease(AgentSettings settings);

  // The owner knows of a coordinator. A term below the highest seen is refused (false); the same term changes
  // nothing. A node that promised not to beat in that term says so to the coordinator.
  bool Follow(uint64_t term, NodeIndex coordinator, const WitnessSet& witnesses, Source source, Nanos now,
              Output* out);
  // Nothing of this generation or an earlier one runs here.
  void SetStopped(uint64_t generation) { stopped_ = generation > stopped_ ? generation : stopped_; }
  // A kFence has been carried out: all supervisors have the order to kill. Once for each; until then nothing may run
  // and supervisors are not beaten, whatever is acknowledged meanwhile.
  void Fenced() { fences_pending_ -= fences_pending_ > 0 ? 1 : 0; }
  // The answer to kClaim. Too late (the right has ended) counts as failed.
  void Claimed(uint64_t term, bool ok, Nanos now);

  void Receive(const Datagram& datagram, Nanos now, Output* out);
  void Tick(Nanos now, Output* out);
  // When Tick wants to be called, at the latest.
  [[nodiscard]] Nanos NextTick() const;

  // Members may run until then; 0: nothing may run.
  [[nodiscard]] Nanos RunUntil() const;
  [[nodiscard]] bool MayRun(Nanos now) const { return !fenced_ && fences_pending_ == 0 && now < RunUntil(); }
  // Whether supervisors may be told now that all is well.
  [[nodiscard]] bool MayBeatSupervisors(Nanos now) const;
  // Members run here because a coordinator has acked this node's beats, and not on the time that the owner allowed at the start
  // (AgentSettings::grace_until).
  [[nodiscard]] bool Leased() const { return !fenced_ && settings_.grace_until == 0; }

  [[nodiscard]] uint64_t term() const { return term_; }
  [[nodiscard]] NodeIndex coordinator() const { return coordinator_; }
  [[nodiscard]] const WitnessSet& witnesses() const { return witnesses_; }
  [[nodiscard]] uint64_t promised() const { return promised_; }
  [[nodiscard]] bool abandoned() const { return abandoned_at_ != 0; }
  // Nodes whose musterd had gone when the coordinator last acked: for its successor.
  [[nodiscard]] const WitnessSet& closed() const { return closed_; }

 private:
  struct SentBeat {
    uint64_t sequence = 0;
    Nanos at = 0;
  };
  static constexpr size_t kRemembered = 32;
  static constexpr size_t kEarly = 16;

  void OnAck(const Datagram& ack, Nanos now, Output* out);
  void OnAsk(const Datagram& ask, Nanos now, Output* out);
  void OnVote(const Datagram& vote, Nanos now, Output* out);
  void OnLead(const Datagram& lead, Nanos now, Output* out);
  void Relay(const Datagram& datagram, Nanos now, Output* out) const;
  void Tell(NodeIndex to, Nanos now, Output* out);
  void Move(uint64_t term, NodeIndex coordinator, const WitnessSet& witnesses, bool alive, Nanos now,
            Output* out);
  void Beat(Nanos now, Output* out);
  void Ask(Nanos now, Output* out);
  void CountVotes(Nanos now, Output* out);
  void MaybeClaim(Nanos now, Output* out);
  void MaybeTakeOver(Nanos now, Output* out);
  void MaybeFence(Nanos now, Output* out);
  void Promise();
  [[nodiscard]] Nanos Known() const;  // the newest time at which the coordinator was certainly there
  [[nodiscard]] bool Doubts(Nanos now) const;
  [[nodiscard]] size_t FreshVotes(Nanos now) const;
  [[nodiscard]] Nanos VotedUntil() const;
  [[nodiscard]] Nanos Turn() const;
  [[nodiscard]] Datagram Make(Type type, NodeIndex to, Nanos now);

  AgentSettings settings_;
  std::array<NodeIndex, kEarly> earlier_{};  // candidates before this node
  size_t earlier_count_ = 0;
  size_t place_ = SIZE_MAX;  // this node's among the candidates

  uint64_t term_ = 0;
  NodeIndex coordinator_ = kNoNode;
  WitnessSet witnesses_;
  uint64_t sequence_ = 0;
  std::array<SentBeat, kRemembered> sent_{};
  size_t sent_next_ = 0;

  Nanos followed_at_ = 0;  // since when this term is followed, or its coordinator doubted
  Nanos acked_ = 0;        // send time of the newest acked beat, of any term
  bool acked_in_term_ = false;
  bool inherits_ = false;  // came to this term from another one, by an announcement: may doubt it at once
  Nanos stamp_ = 0;        // the coordinator's, newest
  Nanos held_until_ = 0;   // by votes or a claim of an earlier term
  Nanos claimed_until_ = 0;
  bool fenced_ = true;           // nothing may run
  uint32_t fences_pending_ = 0;  // ordered, not yet carried out
  uint64_t promised_ = 0;        // highest term that is dead to this node
  Nanos abandoned_at_ = 0;       // 0: not
  Nanos next_claim_ = 0;
  Nanos next_take_over_ = 0;
  std::array<Nanos, kMaxWitnesses>
      votes_{};  // by position: send time of the newest ask that was answered; 0: none
  std::array<Nanos, kEarly> early_votes_{};  // the same of candidates before this node
  uint64_t stop_surfaced_ = 0;
  uint64_t stopped_ = 0;
  WitnessSet closed_;

  Nanos next_beat_ = 0;
  Nanos next_ask_ = 0;
  size_t next_relay_ = 0;
};

}  // namespace muster::lease
