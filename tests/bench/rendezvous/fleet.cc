#include "tests/bench/rendezvous/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "daemon/proto/node_table.h"
#include "daemon/rpc/grpc_link.h"

namespace muster {
namespace {

constexpr auto kPatience = std::chrono::minutes(3);

// Ports of one node say nothing about another's, as where jobs come and go.
uint32_t Port(uint32_t node) {
  return 20'000 + node * 7'919 % 9'991;
}

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "rendezvous_bench: %s\n", why.c_str());
  std::_Exit(1);
}

}  // namespace

Fleet::Fleet(FleetOptions options, std::vector<std::unique_ptr<Worker>>& dialers)
    : options_(std::move(options)),
      gang_(fmt::format("{}.0", options_.job)),
      node_list_(fmt::format("n[1-{}]", options_.nodes)),
      dialers_(dialers),
      nodes_(options_.nodes) {}

Fleet::~Fleet() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  std::vector<std::shared_ptr<Link>> links;
  for (Node& node : nodes_) {
    if (node.link) links.push_back(node.link);
  }
  lock.unlock();
  for (const auto& link : links) link->Close("the benchmark is done with it");
  lock.lock();
  if (!changed_.wait_for(lock, kPatience, [this] { return open_ == 0; })) Die("links do not close");
}

void Fleet::Open(uint32_t node) {
  LinkEvents events;
  events.message = [this, node](const std::string& payload) { Heard(node, payload); };
  events.closed = [this, node](const std::string& why) { Closed(node, why); };
  {
    const std::lock_guard lock(mutex_);
    ++open_;
  }
  auto link =
      OpenLink(options_.coordinator, options_.address, std::move(events),
               [&](std::function<void()> work) { dialers_[node % dialers_.size()]->Do(std::move(work)); });
  const std::lock_guard lock(mutex_);
  nodes_[node].link = std::move(link);
}

v1::AgentMessage Fleet::Message() const {
  v1::AgentMessage message;
  message.set_gang(gang_);
  return message;
}

void Fleet::Send(uint32_t node, const v1::AgentMessage& message) {
  nodes_[node].link->Send(message.SerializeAsString());
}

void Fleet::Register(uint32_t node) {
  auto message = Message();
  v1::Register* r = message.mutable_register_();
  r->set_job_id(options_.job);
  r->set_node(node);
  r->set_node_count(options_.nodes);
  r->set_task_count(options_.nodes * options_.tasks);
  r->set_node_name(fmt::format("n{}", node + 1));
  r->set_node_list(node_list_);
  r->set_coordinator(1);
  r->set_lease_port(Port(node));
  for (uint32_t i = 0; i < options_.tasks; ++i) {
    v1::Member* member = r->add_members();
    member->set_task(node * options_.tasks + i);
    member->set_local_id(i);
  }
  Send(node, message);
}

void Fleet::Executed(uint32_t node, uint64_t generation) {
  auto message = Message();
  for (uint32_t i = 0; i < options_.tasks; ++i)
    message.mutable_executed()->add_tasks(node * options_.tasks + i);
  message.mutable_executed()->set_generation(generation);
  Send(node, message);
}

void Fleet::Exited(uint32_t node, uint64_t generation, int wait_status) {
  auto message = Message();
  v1::MemberExited* exited = message.mutable_exited();
  exited->set_task(node * options_.tasks);
  exited->set_generation(generation);
  exited->set_status(wait_status);
  exited->set_program("bench");
  Send(node, message);
}

void Fleet::Stopped(uint32_t node, uint64_t generation) {
  auto message = Message();
  message.mutable_stopped()->set_generation(generation);
  message.mutable_stopped()->set_lease_port(Port(node));
  Send(node, message);
}

void Fleet::Give(uint32_t node, uint64_t generation) {
  auto message = Message();
  v1::Gather* gather = message.mutable_gather();
  gather->set_generation(generation);
  gather->set_members(options_.nodes * options_.tasks);
  gather->set_key("bench");
  for (uint32_t i = 0; i < options_.tasks; ++i) {
    gather->add_ranks(node * options_.tasks + i);
    gather->add_values(fmt::format("{:0128}", node * options_.tasks + i));
  }
  Send(node, message);
}

void Fleet::TakeValues(uint32_t node, const v1::Gathered& gathered) {
  const size_t members = static_cast<size_t>(options_.nodes) * options_.tasks;
  if (gathered.values().size() != members * (4 + 128)) Die("the values are not whole");
  auto message = Message();
  v1::Gather* taken = message.mutable_gather();
  taken->set_generation(gathered.generation());
  taken->set_members(static_cast<uint32_t>(members));
  taken->set_key(gathered.key());
  taken->set_taken(true);
  Send(node, message);
}

void Fleet::Heard(uint32_t index, const std::string& payload) {
  const auto now = Clock::now();
  std::shared_ptr<const std::string> spec;
  {
    const std::lock_guard lock(mutex_);
    spec = spec_;
  }
  v1::CoordinatorMessage message;
  const bool same = spec && payload == *spec;
  if (!same && !message.ParseFromString(payload)) Die("a message does not parse");
  if (message.has_refused()) Die(fmt::format("refused: {}", message.refused().text()));
  if (message.has_gathered()) TakeValues(index, message.gathered());
  if (message.has_start() && !IsWhole(message.start())) Die("a spec is not whole");
  const std::lock_guard lock(mutex_);
  last_ = std::max(last_, now);
  Node& node = nodes_[index];
  if (same) {
    node.started = spec_generation_;
  } else {
    if (message.has_start() && message.start().generation() > spec_generation_) {
      spec_ = std::make_shared<const std::string>(payload);
      spec_bytes_ = payload.size();
      spec_generation_ = message.start().generation();
    }
    Take(node, message);
  }
  changed_.notify_all();
}

void Fleet::Take(Node& node, const v1::CoordinatorMessage& message) {
  if (message.has_attended()) node.attended = true;
  if (message.has_start()) node.started = message.start().generation();
  if (message.has_stop()) node.stop_ordered = message.stop().generation();
  if (message.has_finish()) node.finished = true;
  if (message.has_gathered()) node.gathered = true;
}

void Fleet::Closed(uint32_t /*node*/, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!closing_) Die(fmt::format("a link was closed: {}", why));
  --open_;
  changed_.notify_all();
}

bool Fleet::IsWhole(v1::Start start) const {
  if (!UnpackNodes(&start) || start.nodes_size() != static_cast<int>(options_.nodes)) return false;
  std::vector<bool> seen(static_cast<size_t>(options_.nodes) * options_.tasks);
  for (const v1::NodeSpec& node : start.nodes()) {
    if (node.name() != fmt::format("n{}", node.node() + 1) || node.lease_port() == 0) return false;
    for (const uint32_t rank : node.ranks()) {
      if (rank >= seen.size() || seen[rank]) return false;
      seen[rank] = true;
    }
  }
  return std::all_of(seen.begin(), seen.end(), [](bool there) { return there; });
}

template <typename Has>
Fleet::Clock::time_point Fleet::WaitFor(const char* what, uint32_t count, Has has) {
  std::unique_lock lock(mutex_);
  // Nodes have it one after another: only the first that has not is looked at again.
  uint32_t done = 0;
  uint32_t next = 0;
  const bool good = changed_.wait_for(lock, kPatience, [&] {
    while (done < count && next < nodes_.size()) {
      if (!has(nodes_[next])) return false;
      ++next;
      ++done;
    }
    return done >= count;
  });
  if (!good) Die(fmt::format("{} of {} nodes are {}", done, count, what));
  return last_;
}

Fleet::Clock::time_point Fleet::WaitAttended(uint32_t nodes) {
  return WaitFor("attended", nodes, [](const Node& node) { return node.attended; });
}

Fleet::Clock::time_point Fleet::WaitReady(uint64_t generation) {
  return WaitFor("ready", options_.nodes,
                 [=](const Node& node) { return node.attended && node.started >= generation; });
}

Fleet::Clock::time_point Fleet::WaitStopOrdered(uint64_t generation) {
  return WaitFor("told to stop", options_.nodes,
                 [=](const Node& node) { return node.stop_ordered >= generation; });
}

Fleet::Clock::time_point Fleet::WaitGathered() {
  return WaitFor("given all values", options_.nodes, [](const Node& node) { return node.gathered; });
}

Fleet::Clock::time_point Fleet::WaitFinished() {
  return WaitFor("finished", options_.nodes, [](const Node& node) { return node.finished; });
}

}  // namespace muster
