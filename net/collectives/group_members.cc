#include "net/collectives/group_members.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "net/collectives/one_line.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFirstKey = "failed";
constexpr const char* kVerdictKey = "verdict";
constexpr std::size_t kMostNamed = 8;

// Where a member is; empty when its connection has ended before it said so.
std::string WordKey(int rank) {
  return "last/" + std::to_string(rank);
}

// "RANK WHY", by a member.
Failure Parsed(const std::string& text) {
  Failure failure;
  const char* const last = text.data() + text.size();
  const char* const end = std::from_chars(text.data(), last, failure.rank).ptr;
  failure.why = OneLine(std::string_view(end, last));
  failure.why.erase(0, failure.why.find_first_not_of(' '));
  return failure;
}

std::string Ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return text;
}

}  // namespace

std::string Describe(const Failure& failure) {
  return "rank " + std::to_string(failure.rank) + " has failed: " + failure.why;
}

Members::Members(const GroupOptions& options, std::unique_ptr<rendezvous::Server> server,
                 rendezvous::Client store)
    : rank_(options.rank),
      size_(options.size),
      end_timeout_(options.end_timeout),
      server_(std::move(server)),
      store_(std::move(store)) {}

Result<std::unique_ptr<Members>> Members::Meet(const GroupOptions& options, std::size_t keys_a_member,
                                               rendezvous::Deadline deadline) {
  std::unique_ptr<rendezvous::Server> server;
  if (options.rank == 0) {
    const auto members = static_cast<std::size_t>(options.size);
    // Each member's word; the first failure, and the verdict.
    const std::size_t entries = members * (keys_a_member + 1) + 2;
    Result<std::unique_ptr<rendezvous::Server>> started =
        rendezvous::Server::Start({.port = options.master_port,
                                   .round = options.round,
                                   .max_entries = entries,
                                   .max_connections = members + 64});
    if (!started) return started.error();
    server = std::move(*started);
  }
  Result<rendezvous::Client> store = rendezvous::Client::Connect({.host = options.master_addr,
                                                                  .port = options.master_port,
                                                                  .round = options.round,
                                                                  .deadline = deadline});
  if (!store) return store.error();
  if (Status kept = store->Will(WordKey(options.rank), {}); !kept) return kept.error();
  return std::unique_ptr<Members>(new Members(options, std::move(server), std::move(*store)));
}

Status Members::Listen() {
  const std::lock_guard lock(mutex_);
  return store_->Watch(kFirstKey);
}

std::optional<Failure> Members::Heard() {
  const std::lock_guard lock(mutex_);
  return HeardSoFar();
}

std::optional<Failure> Members::HeardSoFar() {
  if (first_ || !store_ || !store_->good()) return first_;
  const Result<std::optional<std::string>> told = store_->Watched();
  if (told && *told) first_ = Parsed(**told);
  return first_;
}

Failure Members::Tell(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (HeardSoFar()) return *first_;
  first_ = Failure{rank_, OneLine(why)};
  if (!store_ || !store_->good()) return *first_;
  store_->SetDeadline(Clock::now() + end_timeout_ / 4, end_timeout_ / 8);
  const Status told = store_->Set(kFirstKey, std::to_string(rank_) + " " + first_->why);
  if (!told && store_->good()) {  // somebody has written another one
    if (const Result<std::string> theirs = store_->Get(kFirstKey); theirs) first_ = Parsed(*theirs);
  }
  return *first_;
}

std::string Members::Compare(const std::string& where, rendezvous::Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!store_) return {};
  const auto left = deadline - Clock::now();
  std::string verdict = "rank 0, through which the members speak, has ended";
  if (rank_ == 0) {
    // What is left is for the others to hear it.
    verdict = Gather(where, deadline - left / 2);
    (void)store_->Set(kVerdictKey, verdict);
    store_.reset();
    (void)server_->LeftBy(deadline);
    return verdict;
  }
  store_->SetDeadline(deadline - left / 4, std::chrono::floor<std::chrono::milliseconds>(left / 4));
  if (store_->good() && store_->Set(WordKey(rank_), OneLine(where))) {
    if (const Result<std::string> told = store_->Get(kVerdictKey); told) {
      verdict = OneLine(*told);
    } else if (store_->good()) {
      verdict = "no word from rank 0";
    }
  }
  store_.reset();
  return verdict;
}

std::string Members::Gather(const std::string& where, rendezvous::Deadline deadline) {
  store_->SetDeadline(deadline, end_timeout_ / 8);
  std::vector<int> ended;
  std::vector<int> silent;
  std::string elsewhere;
  int rank = 1;
  for (; rank < size_ && store_->good() && Clock::now() < deadline + end_timeout_ / 8; ++rank) {
    const Result<std::string> word = store_->Get(WordKey(rank));
    if (!word) {
      silent.push_back(rank);
    } else if (word->empty()) {
      ended.push_back(rank);
    } else if (*word != where && elsewhere.empty()) {
      elsewhere = "rank 0 is in " + where + ", but rank " + std::to_string(rank) + " in " + OneLine(*word);
    }
  }
  std::string text;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (!ended.empty()) add(Ranks(ended) + (ended.size() == 1 ? " has ended" : " have ended"));
  if (!silent.empty()) add("no word from " + Ranks(silent));
  if (!elsewhere.empty()) add(elsewhere);
  if (rank < size_) add("no time was left to hear the ranks from " + std::to_string(rank) + " on");
  return text;
}

}  // namespace muster
