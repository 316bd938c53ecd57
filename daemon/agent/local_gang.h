// A gang's members on this node: their supervisors, their programs' connections, and the link to the
// coordinator.
//
// local_gang.cc has the supervisors, local_gang_uplink.cc the coordinator, local_gang_life.cc the node's lease, what
// the members do and how the node is, local_gang_job.cc whether the gang is the job's, local_gang_left.cc what dead
// supervisors have left, local_gang_clients.cc, local_gang_restore.cc and local_gang_ranges.cc the programs,
// local_gang_memory.cc the memory of their saves, local_gang_partner.cc the copies of their shards elsewhere.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/exiting.h"
#include "daemon/agent/agent_context.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/asker.h"
#include "daemon/agent/gang_state.h"
#include "daemon/agent/held_shards.h"
#include "daemon/agent/local_socket.h"
#include "daemon/agent/manifest_cache.h"
#include "daemon/agent/member_environment.h"
#include "daemon/agent/memory_grants.h"
#include "daemon/agent/node_member.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/port_lease.h"
#include "daemon/agent/shard_reports.h"
#include "daemon/agent/told_again.h"
#include "daemon/agent/writing.h"
#include "daemon/beat/beat.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/gang_job/recent_steps.h"
#include "daemon/gather/gather.h"
#include "daemon/hang/sampler.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/steps/node_side.h"
#include "wire/wire.h"

namespace muster {

struct FetchedCopy;
struct StillThere;
class GangPartner;
class Link;

// The coordinator's own join timeout comes so much before an agent's: it can name all that is missing.
inline constexpr std::chrono::seconds kJoinMargin(5);

// The killing of what supervisors that have died have left.
struct LeftKilling {
  std::set<uint32_t> tasks;
  int64_t seen_ns = 0;  // CLOCK_BOOTTIME, the newest death
  std::map<pid_t, uint64_t> known;
  std::map<pid_t, uint64_t> last;       // found the last time
  ExitWatch watch;                      // by the loop's clock
  int64_t exiting_at = 0;               // from then on the coordinator is told what only exits
  std::chrono::milliseconds pause{10};  // until the next kill
  int clean = 0;                        // times in a row that nothing was found
};

// On the loop's thread only. Lives while it has supervisors, or may get them back.
class LocalGang : public std::enable_shared_from_this<LocalGang>, private AgentCore::Shell {
 public:
  // `token` as given to supervisors: kTokenBytes raw bytes. `over` is called when nothing of the gang is left
  // here.
  LocalGang(AgentContext& context, GangJob job, uint32_t node, uint32_t local_tasks, std::string token,
            std::function<void()> over);
  ~LocalGang() override;

  void SupervisorHello(LocalConnection& connection, const wire::SupervisorHello& hello);
  void SupervisorPacket(LocalConnection& connection, const wire::Header& header, const Packet& packet);
  void SupervisorClosed(LocalConnection& connection);

  // True when the client was let in; else it has been refused.
  bool ClientHello(LocalConnection& connection, const wire::ClientHello& hello);
  void ClientPacket(LocalConnection& connection, const wire::Header& header, Packet& packet);
  void ClientClosed(LocalConnection& connection);

  [[nodiscard]] const GangJob& job() const { return job_; }
  [[nodiscard]] const std::string& token() const { return token_; }
  // Whether a hello is of this gang's step, and of a task that may be here.
  [[nodiscard]] bool Fits(const wire::SupervisorHello& hello) const;
  [[nodiscard]] std::string CoordinatorHost() const { return job_.hosts[core_.search().coordinator()]; }
  [[nodiscard]] KnownCoordinator Coordinator() const {
    return {core_.search().coordinator(), core_.orders().term(), core_.search().attended(), beat_key_};
  }
  // This node coordinates, because another node has asked. Registers here, unless a coordinator hears this agent.
  void CoordinatedHere() { core_.CoordinatedHere(); }
  // What an operator wants done with this node; the coordinator is told.
  void Wish(bool drain, const std::string& reason);
  // See Agent.
  void FabricSaid(const std::vector<std::string>& news, const std::string& sick);
  [[nodiscard]] std::string StatePath() const;
  // For a gang that was here before musterd restarted: waits a while for these tasks' supervisors to come
  // back, or for as long as they are suspended, then says who is lost.
  void ExpectReconnects(const GangState& state);

 private:
  struct Awaited {
    Loop::Time until;
    bool was_suspended = false;  // when it was looked at last
    bool presumed = false;       // to be where it was: it is suspended
  };
  struct Member : NodeMember {
    LocalConnection* connection = nullptr;
    uint32_t local_id = 0;
    uint32_t rank = 0;  // of `generation`
    uint64_t beat = 0;  // as the lease calls its connection; 0: not beaten
    bool known = false;
    uint64_t gets_on = 0;  // the generation of which its supervisor has been told that its program does
    pid_t supervisor = 0;
    std::optional<Awaited> awaited;  // not back yet since musterd has been restarted
  };
  struct Client {
    LocalConnection* connection = nullptr;
    uint32_t rank = 0;
    uint64_t generation = 0;
    bool restoring = false;
    // What is read for it ends with it: its program may be started again many times, and wants all of it each time.
    std::shared_ptr<const int> reader = std::make_shared<const int>(0);
    [[nodiscard]] Asker asker() const { return {rank, generation, reader}; }
    std::shared_ptr<MemoryGrants::Share> memory;  // null: nobody asks
    uint32_t asking = 0;                          // for memory
  };
  // A member's newest shard of this generation that is durable, or the one it was restored from.
  struct Base {
    uint64_t step = 0;
    uint64_t saves = 0;
    std::shared_ptr<const Shard> shard;
  };
  // Of a checkpoint, for a member, from the store.
  struct Reading {
    Asker asker;
    CheckpointInfo entry;  // what was listed when it began
    std::function<void()> again;
    std::function<void(const Error& error)> fail;
  };

  // local_gang_job.cc
  void ConfirmJob();
  void Confirmed();

  // what the core orders: local_gang_uplink.cc, local_gang_life.cc
  [[nodiscard]] AgentCore::Nanos Now() const override;
  [[nodiscard]] bool MayRegister() const override { return confirmed_ && KnowsMembers(); }
  void Dial(uint32_t node, uint64_t number) override;
  void CloseLink(const std::string& why) override;
  void Register() override;
  void WakeForLink(std::optional<AgentCore::Nanos> at) override;
  [[nodiscard]] bool MayStart() const override;
  void Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
              lease::Source source) override;
  void Claimed(uint64_t term, bool taken) override;
  void TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) override;
  void ReadRecord() override;
  void Save() override { SaveState(); }
  void NewTerm(bool stopped) override;
  void StartLater() override;
  void StopMembers(bool last_words) override;
  uint64_t FenceMembers() override;

  // uplink
  void NotLinked(const std::string& why);
  void Up(v1::AgentMessage message);
  void FromCoordinator(const v1::CoordinatorMessage& message);
  [[nodiscard]] Status CheckStart(const v1::Start& start) const;
  void OnStart(const v1::Start& start);
  void OnFinish(const v1::Finish& finish);
  void OnReport(const v1::Report& report);
  void OnCommitted(const v1::Committed& committed);
  void OnRefused(const v1::Refused& refused);
  void EndJobAfter(std::chrono::milliseconds time, std::chrono::milliseconds more);
  void EndJob();

  // local_gang_life.cc
  void OnAttended(const v1::Attended& attended);
  void BeginAttendance();
  [[nodiscard]] AgentEvents MakeAgentEvents();
  void BeatSupervisor(Member& member);
  void AwaitSupervisors();
  void PresumeRunning(uint32_t task, Member& member);
  void SupervisorLost(uint32_t task, Member& member);
  void MaybeAllBack();
  void MembersWereSuspended();
  void CheckHealth();
  [[nodiscard]] std::vector<MemberEnd::Fact> FactsAbout(int64_t time_ns, pid_t pid) const;
  void WatchMembers();
  void SendReports(const std::vector<hang::MemberReport>& reports);
  void SayProgress();
  void OnCaptureStacks(const v1::CaptureStacks& order);

  // local_gang_left.cc
  void SupervisorDied(uint32_t task, Member& member);
  void KillLeft();
  void LeftKilled(StillThere found);

  [[nodiscard]] steps::NodeSide::Hooks MakeStepHooks();  // local_gang_clients.cc

  // local_gang_exchange.cc
  void BeginExchanges();
  void OnExchange(const Client& client, const ExchangePacket& exchange);
  void AnswerExchange(const gather::NodeSide::Answer& answer);

  // local_gang_warm.cc
  void WarmSaid(const Member& member, const WarmPacket& said);
  void SayWhoGetsOn(const std::vector<hang::MemberReport>& reports);

  // local_gang_links.cc
  void OnTestLinks(const v1::TestLinks& order);
  void LinksTested(const LinksTestedPacket& tested);
  void TellLinksTested(int status, std::string_view text);

  // members
  Member* Find(LocalConnection& connection, uint32_t* task);
  bool StartMember(uint32_t task, Member& member);
  void StopMember(Member& member, bool last_words);
  void FinishMember(uint32_t task, Member& member);
  void MaybeNodeExecuted();
  void MaybeNodeStopped();
  [[nodiscard]] bool KnowsMembers() const;
  [[nodiscard]] bool HasSupervisors() const;
  void MaybeRegister();
  void LimitJoining();
  void Dismiss(const std::string& why);
  void MaybeOver();
  void Over();
  void TakePorts();
  // False: it could not be written, and that has been said, unless `again`.
  bool SaveState(bool again = false);
  [[nodiscard]] v1::AgentMessage Message() const;

  // clients (local_gang_clients.cc; restores: local_gang_restore.cc)
  [[nodiscard]] Status HasRoom(uint64_t shard_bytes) const;
  [[nodiscard]] Status OthersSave(uint32_t rank) const;
  void OnSave(Client& client, const wire::Save& save, UniqueFd&& memory);
  ShardBase BaseFor(uint32_t rank, uint64_t step);
  void SetBase(uint32_t rank, uint64_t step, const Shard& shard);
  void ShardDone(uint32_t rank, uint64_t generation, uint64_t step, const Result<Shard>& shard,
                 const std::shared_ptr<StagedMemory>& memory);
  void ShardDelayed(uint32_t rank, uint64_t generation, uint64_t step, const Status& status);
  [[nodiscard]] bool MaySaveAgain(uint32_t rank, uint64_t step) const;
  [[nodiscard]] std::string PrefixFor(uint32_t rank, uint64_t step, bool again) const;
  void ForgetOthers(const v1::Committed& committed);
  void GiveUp(uint32_t rank, uint64_t step, const char* why);
  void StopWritingStep(uint64_t step, const char* why);
  void OnAskOutcome(const Client& client, uint64_t step);
  // `memory`: see let_go.h.
  void OnAskMemory(Client& client, const wire::AskMemory& question,
                   const std::shared_ptr<const UniqueFd>& memory);
  void MemoryAnswered(uint32_t rank, const wire::AskMemory& question,
                      const std::shared_ptr<const UniqueFd>& memory, const Status& status);
  static void AnswerMemory(const Client& client, const wire::AskMemory& question, const Status& status);
  void StopWriting(uint64_t before);
  void TellJobOfDelay(uint64_t generation, const std::string& text);
  bool AskLater(const Reading& reading, const Error& error);
  void OnRestore(Client& client, const wire::Restore& restore);
  bool RestoreFromMemory(Client& client, uint64_t step, int64_t begun_ns);
  void RestoreFromStore(const Asker& asker, uint64_t step, uint32_t asked, int64_t begun_ns);
  // `from_partner`: bytes.
  void TellRestored(uint32_t rank, uint64_t generation, uint64_t bytes, bool from_memory,
                    uint64_t from_partner, int64_t begun_ns);
  void Let(HeldShards::Dropped dropped);
  // `memory`: see let_go.h.
  void RestoreDone(const Asker& asker, uint64_t step, const Result<UniqueFd>& memory, const Shard& shard);
  void BeginPartner();  // local_gang_partner.cc
  void CopyToPartner(uint64_t generation, uint64_t step);
  bool RestoreFromPartner(const Asker& asker, uint64_t step, int64_t begun_ns);
  void PartnerAnswered(const Asker& asker, uint64_t step, const std::string& partner,
                       const std::shared_ptr<Result<FetchedCopy>>& answer, int64_t begun_ns);
  void OnDescribe(Client& client, const wire::Describe& describe);
  void DescribeTo(const Asker& asker, wire::Described answer);
  void OnReadRange(Client& client, const wire::ReadRange& request);  // local_gang_ranges.cc
  void ReadRangeTo(const Asker& asker, wire::RangeRead answer, uint64_t asked, uint32_t whose);
  void NotRead(const Reading& reading, const Error& error);
  void ReportIfBad(const Reading& reading, const Error& error);
  [[nodiscard]] size_t SavesOnTheirWay(uint32_t rank, uint64_t generation) const;
  void ShowSaving(uint32_t rank);
  // Who trains has shards in checkpoints.
  [[nodiscard]] bool Saves() const;
  [[nodiscard]] Client* ClientOf(uint32_t rank, uint64_t generation);
  [[nodiscard]] Client* ClientOf(const Asker& asker);  // nullptr when its connection has ended
  void DropClients(const char* why);

  AgentContext& context_;
  GangJob job_;
  uint32_t node_;
  uint32_t local_tasks_;
  std::string token_;
  std::function<void()> over_;

  std::map<uint32_t, Member> members_;  // by task
  std::map<LocalConnection*, Client> clients_;
  std::optional<PortLease> ports_;       // of the generation that runs
  std::optional<PortLease> next_ports_;  // offered for the next one
  std::optional<v1::Start> start_;
  // The generation that this node was a part of when musterd was restarted: what its members hand over may have been written
  // before. 0: none.
  uint64_t generation_before_ = 0;
  std::optional<v1::TestLinks> test_;  // of the links, before the first generation
  std::optional<size_t> place_;        // this node's in start_; none: it is a spare
  std::optional<v1::Finish> finish_;
  std::string tf_cluster_;
  ClusterSpec spec_;
  World world_;  // this node's members' in it

  AgentCore core_;
  std::string beat_key_;
  std::unique_ptr<Attendance> attendance_;
  lease::Nanos grace_until_ = 0;
  std::unique_ptr<hang::Sampler> sampler_;
  bool told_ = false;       // a coordinator has had the registration
  bool checked_ = false;    // whether this node is well has been asked, and
  bool checking_ = false;   // is not answered yet
  bool confirmed_ = false;  // the gang is this user's
  std::string sick_;
  std::string drained_;                        // by an operator: why
  std::optional<v1::Terminating> terminated_;  // by Slurm

  std::shared_ptr<Link> link_;    // registered on
  Loop::TimerId link_timer_ = 0;  // until the link must have been heard, or the next one is dialled
  Loop::TimerId start_timer_ = 0;
  Loop::TimerId learn_timer_ = 0;
  Loop::TimerId reconnect_timer_ = 0;  // while a supervisor is awaited
  Loop::TimerId left_timer_ = 0;
  std::optional<LeftKilling> left_;
  bool presumed_ = false;         // the coordinator has been told of a member what was not certain
  Loop::TimerId join_timer_ = 0;  // until the coordinator has decided something
  Loop::TimerId end_timer_ = 0;   // until slurmd has heard of the job's end
  std::string why_ended_;
  bool requeued_ = false;          // the job runs again elsewhere: this run of it is over
  std::string why_not_connected_;  // the last link's end
  bool over_called_ = false;

  // Saves of this generation.
  ShardReports reports_;
  ToldAgain told_again_;
  std::optional<uint64_t> newest_committed_;  // of this generation
  v1::Storage storage_;                       // as the coordinator has said last; no limit: 0
  std::map<uint32_t, RecentSteps> saved_;     // by rank
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, Writing> writing_;  // by generation, rank, step
  // Of this step the coordinator and the job's stderr have been told that the store does not take it.
  std::optional<uint64_t> delay_said_;
  std::shared_ptr<ManifestCache> manifests_;  // made with the first reading of a range
  std::map<uint32_t, Base> bases_;            // by rank
  HeldShards held_;
  std::unique_ptr<GangPartner> partner_;                 // null where no copies are kept
  std::unique_ptr<gather::NodeSide> exchanges_;          // null without a place in a generation
  std::shared_ptr<const std::string> exchanged_values_;  // the newest that were given out, and
  UniqueFd exchanged_memory_;                            // where they are
  steps::NodeSide steps_;
  uint64_t progress_ = 0;  // the newest step that was passed on
};

}  // namespace muster
