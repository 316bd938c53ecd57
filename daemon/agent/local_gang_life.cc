// The part of LocalGang that knows whether its members may run, what they do, and how the node is.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/helper_program.h"
#include "daemon/agent/end_message.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/local_socket.h"
#include "daemon/beat/key.h"
#include "daemon/hang/stacks.h"
#include "daemon/health/kernel_log.h"
#include "daemon/health/process_usage.h"
#include "daemon/link/link.h"
#include "daemon/watch/fabric_watch.h"

namespace muster {
namespace {

// Facts that have to do with a death: the kernel speaks before a process dies of it, or in the same moment.
constexpr int64_t kFactsBeforeNs = 10'000'000'000;
constexpr int64_t kFactsAfterNs = 1'000'000'000;
constexpr size_t kMaxFacts = 8;
constexpr size_t kMaxFabricFacts = 4;  // of them, so that the kernel's have room
constexpr auto kAnnouncement = std::chrono::seconds(2);
constexpr size_t kMaxStacksText = 16 * 1024;  // of one member, in a message

}  // namespace

// ---- the lease

// With the gang's first supervisor here: supervisors are beaten from the start, so that those whose musterd was restarted know that it
// is back. The lease itself begins when a coordinator has answered. A musterd that was restarted has the gang's key from its state file,
// so it can read the announcement of a successor while its agent still dials the coordinator that is dead. Its beats then tell the
// successor that members run here without a lease.
void LocalGang::BeginAttendance() {
  if (context_.beat == nullptr || attendance_) return;
  AttendOptions options;
  options.gang = job_.Unique();
  options.self = node_;
  options.coordinator = core_.search().coordinator();
  for (const uint32_t node : job_.CandidateNodes())
    options.candidates.push_back(static_cast<lease::NodeIndex>(node));
  options.key = beat_key_;
  options.grace_until = grace_until_;
  attendance_ = context_.beat->Attend(std::move(options), MakeAgentEvents());
  context_.dialer.Do([weak = weak_from_this(), hosts = job_.hosts, mailbox = context_.loop.mailbox(),
                      port = static_cast<uint16_t>(context_.config.port)] {
    mailbox->Post([weak, addresses = ResolveBeatAddresses(hosts, port)]() mutable {
      const auto self = weak.lock();
      if (self && self->attendance_) self->attendance_->SetAddresses(std::move(addresses));
    });
  });
}

void LocalGang::OnAttended(const v1::Attended& attended) {
  if (!attendance_ || !link_ || attended.coordinator() >= job_.hosts.size()) return;
  auto key =
      UnwrapKey(link_->key(), attended.wrapped_key(), fmt::format("{} {}", job_.Id(), core_.orders().term()));
  if (!key) {
    spdlog::error("gang {}: {}", job_.Id(), key.error().message);
    return;
  }
  beat_key_ = *std::move(key);
  core_.Attended(attended.coordinator(), lease::WitnessSet::Of(attended.witnesses()));
}

void LocalGang::BeatSupervisor(Member& member) {
  if (attendance_ && member.connection != nullptr && member.beat == 0)
    member.beat = attendance_->AddSupervisor(member.connection->fd());
}

AgentEvents LocalGang::MakeAgentEvents() {
  AgentEvents events;
  events.attended = [this](uint64_t /*term*/) {
    grace_until_ = 0;
    core_.LeaseBegins();
  };
  events.fence = [this] { core_.Fence(); };
  events.abandoned = [this](uint64_t term) {
    spdlog::warn("gang {}: {}, the coordinator of term {}, is dead to most of the gang; waiting for another",
                 job_.Id(), CoordinatorHost(), term);
  };
  events.claim = [this](uint64_t term) { core_.Claim(term); };
  events.take_over = [this](uint64_t term, const lease::WitnessSet& closed) { core_.TakeOver(term, closed); };
  events.successor = [this](uint64_t term, uint32_t node) {
    if (term < core_.orders().term() || node >= job_.hosts.size()) return;
    spdlog::info("gang {}: {} coordinates, term {}", job_.Id(), job_.hosts[node], term);
    core_.Successor(term, node);
  };
  events.stop_ordered = [this](uint64_t term, uint64_t generation) { core_.StopOrdered(term, generation); };
  return events;
}

bool LocalGang::MayStart() const {
  return !attendance_ || attendance_->MayStart();
}

void LocalGang::Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
                       lease::Source source) {
  if (attendance_) attendance_->Follow(term, coordinator, beat_key_, witnesses, source);
}

void LocalGang::Claimed(uint64_t term, bool taken) {
  if (attendance_) attendance_->Claimed(term, taken);
}

uint64_t LocalGang::FenceMembers() {
  const uint64_t newest = NewestWithProgram(members_);
  if (newest == 0) return 0;
  spdlog::warn(
      "gang {}: no word from {} or most of the gang for {} ms: the members of generation {} are killed",
      job_.Id(), CoordinatorHost(), context_.config.lease_ms, newest);
  if (sampler_) sampler_->Stop();
  for (auto& [task, member] : members_) {
    if (member.Fence(RealtimeNs())) Up(EndMessage(job_.Id(), task, member));
  }
  return newest;
}

void LocalGang::TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) {
  if (!context_.take_over) return core_.TakenOver(term, claim, false);
  spdlog::warn("gang {}: {} does not answer; this node takes over after term {}", job_.Id(),
               CoordinatorHost(), term);
  TakeOverRequest request;
  request.after_term = term;
  request.key = beat_key_;
  request.closed = closed;
  request.done = [weak = weak_from_this(), term, claim](bool taken) {
    if (const auto self = weak.lock()) self->core_.TakenOver(term, claim, taken);
  };
  context_.take_over(job_, std::move(request));
}

void LocalGang::ReadRecord() {
  if (!context_.read_coordinator || learn_timer_ != 0) return;
  learn_timer_ = context_.loop.After(kAnnouncement, [this] {
    learn_timer_ = 0;
    context_.read_coordinator(job_, [weak = weak_from_this()](std::optional<RecordedCoordinator> found) {
      const auto self = weak.lock();
      if (!self || !self->attendance_) return;
      std::optional<AgentCore::Recorded> record;
      if (found) {
        const auto node = self->job_.NodeOf(found->host);
        if (!node) return;
        record = {*node, found->term, found->witnesses};
      }
      if (self->core_.Learned(record))
        spdlog::info("gang {}: {} coordinates by the record, term {}", self->job_.Id(), found->host,
                     found->term);
    });
  });
}

// ---- the node

void LocalGang::CheckHealth() {
  context_.health.CheckAnew([weak = weak_from_this()](const HealthReport& report) {
    const auto self = weak.lock();
    if (!self || !report.sick()) return;
    self->sick_ = report.Reason();
    auto message = self->Message();
    message.mutable_health()->set_sick(self->sick_);
    self->Up(std::move(message));
  });
}

void LocalGang::FabricSaid(const std::vector<std::string>& news, const std::string& sick) {
  if (!news.empty()) {
    auto message = Message();
    for (const std::string& text : news) message.mutable_fabric()->add_texts(text);
    Up(std::move(message));
  }
  if (sick.empty() || !sick_.empty()) return;
  spdlog::warn("gang {}: this node's fabric: {}; no gang may run here", job_.Id(), sick);
  sick_ = sick;
  auto message = Message();
  message.mutable_health()->set_sick(sick_);
  Up(std::move(message));
}

// What the kernel and the fabric's ports said about the time when a process ended.
std::vector<MemberEnd::Fact> LocalGang::FactsAbout(int64_t time_ns, pid_t pid) const {
  std::vector<MemberEnd::Fact> said;
  const auto add = [&said](FactClass fact_class, const std::string& text, const std::string& meaning) {
    if (said.size() < kMaxFacts) said.push_back({static_cast<uint32_t>(fact_class), text, meaning});
  };
  if (context_.fabric != nullptr) {
    const auto facts = context_.fabric->Before(time_ns);
    for (size_t i = 0; i < std::min<size_t>(facts.size(), kMaxFabricFacts); ++i)
      add(facts[i].hardware ? FactClass::kHardware : FactClass::kNeutral, facts[i].text, "");
  }
  if (context_.kernel_log == nullptr) return said;
  for (const KernelFact& fact : context_.kernel_log->Near(time_ns, kFactsBeforeNs, kFactsAfterNs)) {
    if (Concerns(fact, pid)) add(fact.fact_class, fact.text, fact.meaning);
  }
  return said;
}

void LocalGang::Wish(bool drain, const std::string& reason) {
  if (!drain) sick_.clear();
  drained_ = drain ? reason : "";
  auto message = Message();
  message.mutable_wish()->set_drain(drain);
  message.mutable_wish()->set_reason(reason);
  Up(std::move(message));
}

// ---- what the members do

// A generation has been started here.
void LocalGang::WatchMembers() {
  if (!sampler_) {
    // The shorter one of those that are given.
    std::optional<std::chrono::milliseconds> limit;
    for (const uint32_t given : {job_.options.hang_seconds, job_.options.startup_seconds}) {
      const std::chrono::milliseconds time = std::chrono::seconds(given);
      if (given > 0) limit = std::min(limit.value_or(time), time);
    }
    sampler_ = std::make_unique<hang::Sampler>(
        context_.loop, context_.sampler, hang::SamplerSettingsFor(limit), hang::ActivityBelow,
        [this](const std::vector<hang::MemberReport>& reports) { SendReports(reports); });
  }
  std::vector<hang::LocalMember> members;
  for (const auto& [task, member] : members_) {
    if (member.connection != nullptr && member.generation == start_->generation() &&
        member.state == wire::MemberState::kRunning)
      members.push_back({member.rank, member.connection->peer().pid});
  }
  sampler_->Start(members);
  for (const auto& [rank, page] : steps_.pages()) sampler_->SetPage(rank, page);
}

void LocalGang::SendReports(const std::vector<hang::MemberReport>& reports) {
  if (!start_) return;
  SayWhoGetsOn(reports);
  auto message = Message();
  message.mutable_reports()->set_generation(start_->generation());
  for (const hang::MemberReport& report : reports) {
    v1::MemberReport* r = message.mutable_reports()->add_members();
    r->set_rank(report.rank);
    r->set_has_step(report.step.has_value());
    r->set_step(report.step.value_or(0));
    progress_ = std::max(progress_, report.step.value_or(0));
    r->set_calls(report.calls);
    r->set_age_ns(report.age_ns);
    r->set_checkpoint_busy(report.checkpoint_busy);
    r->set_suspended(report.suspended);
    r->set_opened(report.opened);
    if (!report.activity) continue;
    r->set_has_activity(true);
    r->set_cpu_ns(report.activity->cpu_ns);
    r->set_io_bytes(report.activity->io_bytes);
    r->set_blocked_threads(report.activity->blocked_threads);
    r->set_gpu(!report.activity->gpu_busy ? 0 : *report.activity->gpu_busy ? 2 : 1);
  }
  Up(std::move(message));
}

// What a generation has reached counts when it is judged, however short it was.
void LocalGang::SayProgress() {
  if (!sampler_) return;
  const std::vector<hang::MemberReport> reports = sampler_->Now();
  const bool any = std::any_of(reports.begin(), reports.end(),
                               [&](const hang::MemberReport& r) { return r.step && *r.step > progress_; });
  if (any) SendReports(reports);
}

void LocalGang::OnCaptureStacks(const v1::CaptureStacks& order) {
  if (!start_ || order.generation() != start_->generation()) return;
  std::vector<pid_t> supervisors;
  std::vector<uint32_t> ranks;
  for (const auto& [task, member] : members_) {
    if (member.connection == nullptr || member.generation != order.generation()) continue;
    supervisors.push_back(member.connection->peer().pid);
    ranks.push_back(member.rank);
  }
  // The rest of the time is for the way.
  const auto deadline = std::chrono::milliseconds(context_.config.hang_report_ms * 8 / 9);
  hang::CaptureStacks(context_.loop, HelperProgram("muster-stacks"), supervisors, deadline,
                      job_.options.last_words_seconds > 0,
                      [weak = weak_from_this(), ranks,
                       generation = order.generation()](const std::vector<hang::MemberStacks>& stacks) {
                        const auto self = weak.lock();
                        if (!self) return;
                        auto message = self->Message();
                        message.mutable_stacks()->set_generation(generation);
                        for (size_t i = 0; i < stacks.size() && i < ranks.size(); ++i) {
                          v1::Stacks::Member* member = message.mutable_stacks()->add_members();
                          member->set_rank(ranks[i]);
                          std::string text = hang::StacksText(stacks[i].lines);
                          if (!stacks[i].complete) text += "(" + stacks[i].error + ")\n";
                          member->set_text(text.substr(0, kMaxStacksText));
                          member->set_summary(hang::StacksSummary(stacks[i].lines));
                          member->set_dump_asked(stacks[i].dump_asked);
                          for (auto& [task, local] : self->members_) {
                            if (local.generation == generation && local.rank == ranks[i])
                              local.stop.dump_asked = stacks[i].dump_asked;
                          }
                        }
                        self->Up(std::move(message));
                      });
}

}  // namespace muster
