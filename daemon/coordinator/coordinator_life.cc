// How a coordinator begins when it has its gang's record, and how it ends.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/record_of_gang.h"

namespace muster {
namespace {

// How long the result of a finished gang stays in memory; the record stays in the store.
constexpr auto kLinger = std::chrono::seconds(2);

}  // namespace

void Coordinator::Begin(Origin origin, std::function<void()> over) {
  origin_ = std::move(origin);
  over_ = std::move(over);
  claim_.Begin(origin_);
}

void Coordinator::Begin(const RecordClaim::Taken& taken) {
  const GangHead& head = taken.head;
  core_.Take(head.fence, GoodOf(head), head.latest);
  if (origin_.taken) origin_.taken(true);
  if (taken.after == TakeOver::Swap::After::kEnd) return OverAlready(*taken.record);
  const GangRecord* previous = taken.after == TakeOver::Swap::After::kGang ? &*taken.record : nullptr;
  if (previous != nullptr) history_.GoOn(*previous);
  slurm_.Take(history_.created_ns());
  // The former coordinator may have ended before it told Slurm.
  if (previous != nullptr && Is(*previous, gang::State::kStarting))
    slurm_.CommentOnFault(previous->first_cause);
  if (taken.record) {
    const bool same_gang = taken.record->IsOf(job_);
    if (taken.record->IsOfStep(job_)) hangs_.Remember(taken.record->starts, same_gang);
  }
  checkpoints_.Take(head, history_.created_ns());
  const Fence& fence = core_.fence().fence();
  spdlog::info("gang {}: this node coordinates, term {}, generation {}{}", job_.Id(), fence.term,
               fence.generation, previous != nullptr && TermsOf(*previous) ? ", recovering" : "");
  lease_.Take(origin_.key);
  core_.Begin(Settings(), previous, {origin_.promised, origin_.closed, taken.asked_at, clock_->Now()},
              nodes_.Here());
  AddHistory("coordinator", fmt::format("{} coordinates, term {}", context_.self, core_.fence().term()));
  core_.Go();
  lease_.LeadBehind(records_.writer());
  slurm_.Begin();
  checkpoints_.Collect();
  HearEarly(claim_.TakeEarly());
}

void Coordinator::HearEarly(std::vector<RecordClaim::Early> all) {
  using Early = RecordClaim::Early;
  const auto take = [this](const Early& early) {
    if (!early.message.has_register_()) return Message(early.node, early.message);
    Registered(early.node, early.message.register_());
  };
  // Nodes whose links have ended meanwhile come first. They have registered, so the gang loses or replaces them, and does not take them
  // for nodes that were dead when the step was launched.
  std::map<uint32_t, std::vector<Early>> gone;
  std::vector<Early> here;
  for (Early& early : all) {
    auto& those = nodes_.Of(early.node) ? here : gone[early.node];
    those.push_back(std::move(early));
  }
  for (const auto& [node, said] : gone) {
    for (const Early& early : said) take(early);
    Left(node);
  }
  for (const Early& early : here) {
    if (nodes_.Of(early.node) == early.link) take(early);  // else this coordinator has closed it
  }
}

// The agents have missed the end, with the coordinator that was before this one: their supervisors may leave.
void Coordinator::OverAlready(const GangRecord& record) {
  auto message = nodes_.NewMessage();
  *message.mutable_finish() = FinishOf(record.succeeded, record.finish_cause, record.finish_code);
  nodes_.Broadcast(message);
  Lose(std::move(message));
}

void Coordinator::Refuse(const std::string& why, bool job_is_over) {
  auto message = nodes_.NewMessage();
  message.mutable_refused()->set_text(fmt::format("gang {}: {}", job_.Id(), why));
  message.mutable_refused()->set_job_is_over(job_is_over);
  // What a requeued job has left behind is refused in the course of things.
  spdlog::log(job_is_over ? spdlog::level::warn : spdlog::level::err, "{}", message.refused().text());
  nodes_.Broadcast(message);
  Lose(std::move(message));
}

void Coordinator::StepDown(const std::string& successor, uint64_t term) {
  if (core_.lost()) return;
  spdlog::warn("gang {}: {} coordinates now; this coordinator of term {} steps down", job_.Id(),
               successor.empty() ? "another node" : successor, core_.fence().term());
  auto message = nodes_.NewMessage();
  message.set_term(0);
  message.mutable_elsewhere()->set_known(false);
  Lose(message);
  message.set_term(term);
  const auto node = job_.NodeOf(successor);
  message.mutable_elsewhere()->set_known(node.has_value());
  message.mutable_elsewhere()->set_node(node.value_or(0));
  nodes_.Broadcast(message);
}

void Coordinator::Lose(v1::CoordinatorMessage last_word) {
  last_word_ = std::move(last_word);
  core_.Lose();
  lease_.End();
  MaybeOver();
}

void Coordinator::MaybeOver() {
  if (!over_ || linger_timer_ != 0 || !core_.over() || !nodes_.Here().empty()) return;
  linger_timer_ = loop_.After(kLinger, [this] {
    linger_timer_ = 0;
    core_.EndSaves();
    // Behind what is still to be done, the record before all: it is not lost when the store is slow, and the loop does not
    // wait for it in the destructor.
    std::function<void()> next = [&loop = loop_, over = std::exchange(over_, nullptr)] { loop.Post(over); };
    records_.writer().Do(checkpoints_.AtTheEnd(lease_.AtTheEnd(std::move(next))));
  });
}

}  // namespace muster
