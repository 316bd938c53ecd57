// Decides for one gang: feeds the state machine, carries out its actions and keeps the record.
//
// coordinator_life.cc begins and ends, coordinator.cc talks to the agents, actions.cc carries out what the core orders.
// RecordClaim comes to the record, RecordSide writes it, LeaseSide knows which nodes live, CheckpointSide commits checkpoints,
// SlurmSide tells Slurm and asks it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "ceph/catalog/catalog.h"
#include "daemon/beat/beat_clock.h"
#include "daemon/coordinator/checkpoint_side.h"
#include "daemon/coordinator/coordinator_context.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/hang_watch.h"
#include "daemon/coordinator/history.h"
#include "daemon/coordinator/lease_side.h"
#include "daemon/coordinator/link_verdict.h"
#include "daemon/coordinator/node_links.h"
#include "daemon/coordinator/record.h"
#include "daemon/coordinator/record_claim.h"
#include "daemon/coordinator/record_side.h"
#include "daemon/coordinator/slurm_side.h"
#include "daemon/coordinator/take_over.h"
#include "daemon/coordinator/warm_starts.h"
#include "daemon/gang/gang.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/gather/gather.h"
#include "daemon/metrics/metrics_text.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/steps/gang_side.h"

namespace muster {

// On the loop's thread only; what blocks goes to threads of its parts: one writes records, in order, and waits for nothing
// else; another commits checkpoints, each when its generation's record is in the store.
class Coordinator : private CoordinatorCore::Shell {
 public:
  Coordinator(CoordinatorContext context, GangJob job);
  ~Coordinator() override;

  // How this node comes to coordinate.
  struct Origin : TakeOver::Origin {
    std::string key;                        // the gang's for beats; "": makes one
    lease::WitnessSet closed;               // with `promised`: nodes whose musterd had gone
    std::function<void(bool taken)> taken;  // may be empty
  };

  // Takes the gang's record over. `over` is called when nobody needs this coordinator any more.
  void Begin(Origin origin, std::function<void()> over);
  // A node's agent, and what it says.
  void Attached(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration);
  void Detached(uint32_t node, const Link* link);
  void Message(uint32_t node, const v1::AgentMessage& message);

  // The state is kWaiting while another gang has the name, which no record in the store has.
  static constexpr char kWaiting[] = "waiting";
  [[nodiscard]] GangRecord Record() const;
  [[nodiscard]] GangMetrics Metrics() const;
  [[nodiscard]] std::vector<hang::Pace> Paces() const { return hangs_.Paces(); }
  [[nodiscard]] const GangJob& job() const { return job_; }

 private:
  // ---- what the core orders: actions.cc, link_tests.cc
  void Do(const gang::TestLinks& action) override;
  void Do(const gang::ReportToJob& action) override;
  void Do(const gang::Note& action) override;
  void Do(const gang::TellMembers& action) override;
  void Do(const gang::SetTimer& action) override;
  void Fed(gang::State before, uint64_t generation) override;
  void BuildStart(const Starts::Prepared& prepared) override;
  void SendStart(const std::set<uint32_t>& nodes) override;
  void SendStop(const gang::StopGeneration& action) override;
  void BuildFinish(const gang::FinishGang& action) override;
  void SendFinish(const std::set<uint32_t>& nodes) override;
  void CloseLink(uint32_t node) override;
  void AwaitEndRecord() override;
  void MaybeOver() override;

  void Begin(const RecordClaim::Taken& taken);
  void HearEarly(std::vector<RecordClaim::Early> all);
  void Left(uint32_t node);
  // The gang must not run, or run on. `job_is_over`: nor does its job, or the job runs again elsewhere.
  void Refuse(const std::string& why, bool job_is_over);
  void LinksTested(uint32_t node, const v1::LinksTested& tested);  // link_tests.cc
  static v1::Finish FinishOf(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code);

  [[nodiscard]] gang::Settings Settings() const;
  [[nodiscard]] uint32_t TaskOf(uint32_t rank) const;  // past the last one for none
  // `waited_for`: see gang::Ending.
  [[nodiscard]] gang::Exit ExitOf(const v1::MemberExited& message, const std::string& waited_for = "") const;
  void AddHistory(const std::string& kind, const std::string& text);
  void Registered(uint32_t node, const v1::Register& registration);
  void OverAlready(const GangRecord& record);
  // This coordinator decides nothing from now on. `last_word`: for nodes that come later.
  void Lose(v1::CoordinatorMessage last_word);
  void Gather(uint32_t node, const v1::Gather& gather);
  void OnExited(const v1::MemberExited& message);
  [[nodiscard]] size_t WarmMembers() const;
  void TakeWarm(const v1::WarmNews& news);
  // With the successor's term those who hear it may ask for the next one, should it be dead.
  void StepDown(const std::string& successor, uint64_t term = 0);

  std::set<uint32_t> CaptureStacks(uint64_t generation);
  void TakeReports(const v1::MemberReports& reports);

  CoordinatorContext context_;
  std::shared_ptr<const BeatClock> clock_;  // of leases
  Loop& loop_;
  const Config& config_;
  GangJob job_;
  std::shared_ptr<Catalog> catalog_;
  std::function<void()> over_;  // until it is called

  History history_;
  NodeLinks nodes_;
  // The end of a gang goes through records_, checkpoints_ and lease_ in this order (MaybeOver), and they are destroyed in this order.
  LeaseSide lease_;
  CheckpointSide checkpoints_;
  RecordSide records_;
  SlurmSide slurm_;
  CoordinatorCore core_;
  RecordClaim claim_;
  WarmStarts warm_;
  LinkTest links_;  // the newest
  std::map<gang::Timer, Loop::TimerId> timers_;
  Loop::TimerId linger_timer_ = 0;
  Loop::TimerId finish_timer_ = 0;

  std::optional<v1::Start> start_;    // of the current generation
  std::optional<v1::Finish> finish_;  // how the gang has ended
  v1::CoordinatorMessage last_word_;  // for nodes that come when this coordinator decides nothing any more

  HangWatch hangs_;
  uint64_t found_ = 0;  // the generation that ran when this coordinator took over; 0: none did

  Origin origin_;

  gang::ExitCodes exit_codes_;  // the site's, from the configuration

  std::optional<gather::GangSide> exchanges_;  // of values between members, in this generation
  steps::GangSide steps_;
};

}  // namespace muster
