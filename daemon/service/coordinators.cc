#include "daemon/service/coordinators.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace muster {

Coordinators::Coordinators(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store)
    : loop_(loop), config_(config), self_(std::move(self)), store_(std::move(store)) {}

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
    std::string why_not;
    const auto coordinator = For(registration, &why_not);
    if (!coordinator || coordinator->job().Id() != message.gang()) {
      v1::CoordinatorMessage refusal;
      refusal.set_gang(message.gang());
      refusal.mutable_refused()->set_text(why_not.empty() ? "the registration contradicts itself" : why_not);
      link->Send(refusal.SerializeAsString());
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

std::shared_ptr<Coordinator> Coordinators::For(const v1::Register& registration, std::string* why_not) {
  GangJob job;
  job.job_id = registration.job_id();
  job.step_id = registration.step_id();
  job.restart_count = registration.restart_count();
  job.uid = registration.uid();
  job.gid = registration.gid();
  job.task_count = registration.task_count();
  job.node_list = registration.node_list();
  job.options_text = registration.options();
  if (Status complete = job.Complete(); !complete) {
    *why_not = complete.error().message;
    return nullptr;
  }
  if (registration.node() >= job.hosts.size() || job.hosts[registration.node()] != registration.node_name()) {
    *why_not =
        fmt::format("{} is not node {} of {}", registration.node_name(), registration.node(), job.node_list);
    return nullptr;
  }
  for (const v1::Member& member : registration.members()) {
    if (member.task() >= job.task_count) {
      *why_not = "a member is outside the step";
      return nullptr;
    }
  }
  if (job.Candidates().front() != self_) {
    *why_not =
        fmt::format("gang {} is coordinated by {}, not by {}", job.Id(), job.Candidates().front(), self_);
    return nullptr;
  }
  const std::string id = job.Id();
  if (auto known = Find(id)) {
    if (known->job().node_list == job.node_list && known->job().uid == job.uid) return known;
    *why_not = fmt::format("gang {} is another one here", id);
    return nullptr;
  }
  auto coordinator = std::make_shared<Coordinator>(loop_, config_, self_, store_, std::move(job));
  gangs_[id] = coordinator;
  coordinator->Begin([this, alive = std::weak_ptr<bool>(alive_), id] {
    if (!alive.expired()) gangs_.erase(id);
  });
  return coordinator;
}

}  // namespace muster
