#include "daemon/service/coordinators.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace muster {
namespace {

// What the registration says of the job. GangJob::Complete finds out the rest.
GangJob StepOf(const v1::Register& registration) {
  GangJob job;
  job.job_id = registration.job_id();
  job.step_id = registration.step_id();
  job.restart_count = registration.restart_count();
  job.submission = registration.submission();
  job.launched_ns = registration.launched_ns();
  job.uid = registration.uid();
  job.gid = registration.gid();
  job.task_count = registration.task_count();
  job.node_list = registration.node_list();
  job.options_text = registration.options();
  job.components_text = registration.components();
  return job;
}

}  // namespace

Coordinators::Coordinators(CoordinatorContext context) : context_(std::move(context)), loop_(context_.loop) {}

Coordinators::~Coordinators() {
  gangs_.clear();
}

LinkEvents Coordinators::Accept(std::shared_ptr<Link> link) {
  LinkEvents events;
  const std::weak_ptr<bool> alive = alive_;
  // The link's own callbacks must not keep it alive: it would never end.
  const std::weak_ptr<Link> weak = link;
  events.message = [this, alive, weak](std::string payload) {
    loop_.Post([this, alive, link = weak.lock(), payload = std::move(payload)] {
      if (!alive.expired() && link) OnMessage(link, payload);
    });
  };
  events.closed = [this, alive, weak](const std::string& /*why*/) {
    loop_.Post([this, alive, link = weak.lock()] {
      if (!alive.expired() && link) OnClosed(link);
    });
  };
  return events;
}

std::shared_ptr<Coordinator> Coordinators::Find(const std::string& gang) const {
  const auto found = gangs_.find(gang);
  return found == gangs_.end() ? nullptr : found->second;
}

void Coordinators::OnMessage(const std::shared_ptr<Link>& link, const std::string& payload) {
  v1::AgentMessage message;
  if (!message.ParseFromString(payload)) return link->Close("malformed message");
  const auto attendance = attendances_.find(link.get());
  if (message.has_register_()) {
    const v1::Register& registration = message.register_();
    GangJob job = StepOf(registration);
    const auto known = Find(message.gang());
    // Slurm has given the number again. The agent finds its link closed, and connects again until the old gang is over here.
    if (known && !known->job().SameLaunch(job))
      return link->Close(fmt::format("another gang {} is not over here yet", message.gang()));
    v1::CoordinatorMessage answer;
    const auto coordinator = For(std::move(job), registration, &answer);
    if (!coordinator || coordinator->job().Id() != message.gang()) {
      if (coordinator) answer.mutable_refused()->set_text("the registration contradicts itself");
      answer.set_gang(message.gang());
      link->Send(answer.SerializeAsString());
      return;
    }
    attendances_[link.get()] = {message.gang(), registration.node()};
    return coordinator->Attached(registration.node(), link, registration);
  }
  if (attendance == attendances_.end()) return link->Close("the first message must be a registration");
  if (const auto coordinator = Find(attendance->second.gang);
      coordinator && message.gang() == attendance->second.gang) {
    coordinator->Message(attendance->second.node, message);
  }
}

void Coordinators::OnClosed(const std::shared_ptr<Link>& link) {
  const auto found = attendances_.find(link.get());
  if (found == attendances_.end()) return;
  const Attendance attendance = found->second;
  attendances_.erase(found);
  if (const auto coordinator = Find(attendance.gang)) coordinator->Detached(attendance.node, link.get());
}

// Null, and what to answer then.
std::shared_ptr<Coordinator> Coordinators::For(GangJob job, const v1::Register& registration,
                                               v1::CoordinatorMessage* answer) {
  const auto refuse = [&](const std::string& why) {
    answer->mutable_refused()->set_text(why);
    return nullptr;
  };
  const std::string id = job.Id();
  auto known = Find(id);
  // Thousands of nodes send the same text: it is read once.
  if (known && known->job().node_list == job.node_list && known->job().options_text == job.options_text &&
      known->job().components_text == job.components_text && known->job().task_count == job.task_count &&
      known->job().uid == job.uid) {
    job = known->job();
  } else if (Status complete = job.Complete(); !complete) {
    return refuse(complete.error().message);
  }
  if (registration.node() >= job.hosts.size() || job.hosts[registration.node()] != registration.node_name()) {
    return refuse(
        fmt::format("{} is not node {} of {}", registration.node_name(), registration.node(), job.node_list));
  }
  bool fresh = registration.term() == 0;
  for (const v1::Member& member : registration.members()) {
    if (member.task() >= job.task_count) return refuse("a member is outside the step");
    fresh &= member.generation() == 0;
  }
  if (known) {
    if (known->job().node_list == job.node_list && known->job().uid == job.uid) return known;
    return refuse(fmt::format("gang {} is another one here", id));
  }
  if (registration.coordinator() >= job.hosts.size()) return refuse("the registration contradicts itself");
  // This node's own agent may know better than a node that was cut off, and then has asked one after another.
  const KnownCoordinator agents = ask_agent_ ? ask_agent_(job) : KnownCoordinator();
  const bool newer =
      agents.term > registration.term() || (agents.heard && agents.term == registration.term());
  const bool better = newer && job.hosts[agents.node] != context_.self;
  if (job.hosts[registration.coordinator()] != context_.self || better) {
    answer->mutable_elsewhere()->set_known(better);
    if (better) answer->mutable_elsewhere()->set_node(agents.node);
    if (better) answer->mutable_elsewhere()->set_term(agents.term);
    return nullptr;
  }
  Coordinator::Origin origin;
  origin.fresh = fresh;
  origin.known_term = registration.term();
  // Those who ran under the term before know it: no link is needed to reach them.
  origin.key = agents.beat_key;
  origin.taken = [this, alive = std::weak_ptr<bool>(alive_), job](bool taken) {
    if (taken && !alive.expired() && tell_agent_) tell_agent_(job);
  };
  return Make(std::move(job), std::move(origin));
}

void Coordinators::TakeOver(const GangJob& job, TakeOverRequest request) {
  // Under way, or one that another has replaced is on its way out: it will be asked again.
  if (Find(job.Id())) return request.done(false);
  Coordinator::Origin origin;
  origin.fresh = false;
  origin.promised = true;
  origin.after_term = request.after_term;
  origin.key = std::move(request.key);
  origin.closed = request.closed;
  origin.taken = std::move(request.done);
  Make(job, std::move(origin));
}

void Coordinators::ReadCoordinator(const GangJob& job,
                                   std::function<void(std::optional<RecordedCoordinator>)> done) {
  ReadRecord(job, [done = std::move(done)](const std::optional<GangRecord>& record) {
    if (!record) return done(std::nullopt);
    done(RecordedCoordinator{record->term, record->coordinator, lease::WitnessSet::Of(record->witnesses)});
  });
}

void Coordinators::ReadRecord(const GangJob& job, std::function<void(std::optional<GangRecord>)> done) {
  context_.reader->Do([store = context_.store, job, done = std::move(done), &loop = loop_] {
    const Result<GangHead> head = Catalog(store, job.Space(), job.Key()).Load();
    std::optional<GangRecord> found;
    if (head) {
      auto record = GangRecord::Decode(head->record);
      if (record && record->IsOf(job)) {
        found = *std::move(record);
        found->term = head->fence.term;  // who takes over writes it first, and the rest a little later
      }
    }
    loop.Post([done, found = std::move(found)] { done(found); });
  });
}

std::shared_ptr<Coordinator> Coordinators::Make(GangJob job, Coordinator::Origin origin) {
  const std::string id = job.Id();
  auto coordinator = std::make_shared<Coordinator>(context_, std::move(job));
  gangs_[id] = coordinator;
  coordinator->Begin(std::move(origin), [this, alive = std::weak_ptr<bool>(alive_), id] {
    if (!alive.expired()) gangs_.erase(id);
  });
  return coordinator;
}

}  // namespace muster
