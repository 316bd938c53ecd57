#include "net/collectives/group_members.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "net/collectives/one_line.h"
#include "net/collectives/store_exchange.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

// Of an exchange.
constexpr const char* kPlaceKey = "collectives.place";
// In the rendezvous.
constexpr const char* kFirstKey = "failed";
constexpr const char* kVerdictKey = "verdict";
constexpr std::size_t kMostNamed = 8;

// Where a member is; empty when its connection has ended before it said so.
std::string WordKey(int rank) {
  return "last/" + std::to_string(rank);
}

// What no two processes write there.
std::string HereKey(int rank) {
  return "here/" + std::to_string(rank);
}
std::string Self() {
  return std::to_string(::getpid()) + " " + std::to_string(Clock::now().time_since_epoch().count());
}

// The two above, and a value that the members give one another; the first failure, the verdict, and who has not come.
constexpr std::size_t kKeysOfEach = 3;
constexpr std::size_t kKeysOfAll = 3;

// Where rank 0 serves the rendezvous, and of which round.
struct Place {
  std::uint16_t port = 0;
  std::string round;
};

Result<std::string> Secret() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return Error{Errc::kUnavailable, "getrandom: " + std::generic_category().message(errno)};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned byte : bytes) {
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

// By the group's own exchange.
Result<std::vector<std::string>> ByExchange(const GroupOptions& options, const std::string& key,
                                            const std::string& value, rendezvous::Deadline deadline) {
  Result<std::vector<std::string>> values = options.exchange(key, value, deadline);
  if (values && values->size() != static_cast<std::size_t>(options.size)) {
    return Error{Errc::kInvalid, "the exchange under the key " + key + " brought " +
                                     std::to_string(values->size()) + " values, and the group has " +
                                     std::to_string(options.size) + " members"};
  }
  return values;
}

// The place of rank 0, which gives it to the others as "PORT ROUND".
Result<Place> Told(const GroupOptions& options, const Place& own, rendezvous::Deadline deadline) {
  const std::string value = options.rank == 0 ? std::to_string(own.port) + " " + own.round : std::string();
  const Result<std::vector<std::string>> values = ByExchange(options, kPlaceKey, value, deadline);
  if (!values) return values.error();
  const std::string& given = values->front();
  const char* const last = given.data() + given.size();
  Place place;
  const auto [end, error] = std::from_chars(given.data(), last, place.port);
  if (error != std::errc() || end == last || *end != ' ' || place.port == 0)
    return Error{Errc::kInvalid, "rank 0 has not said where the members are to meet"};
  place.round.assign(end + 1, last);
  return place;
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
    : options_(options), server_(std::move(server)), store_(std::move(store)) {}

Result<std::unique_ptr<Members>> Members::Meet(const GroupOptions& options, rendezvous::Deadline deadline) {
  std::unique_ptr<rendezvous::Server> server;
  Place place{options.master_port, options.round};
  if (options.rank == 0) {
    if (options.exchange) {
      Result<std::string> secret = Secret();
      if (!secret) return secret.error();
      place = {0, std::move(*secret)};
    }
    const auto members = static_cast<std::size_t>(options.size);
    Result<std::unique_ptr<rendezvous::Server>> started =
        rendezvous::Server::Start({.port = place.port,
                                   .round = place.round,
                                   .max_entries = members * kKeysOfEach + kKeysOfAll,
                                   .max_connections = members + 64});
    if (!started) return started.error();
    server = std::move(*started);
    place.port = server->port();
  }
  if (options.exchange) {
    Result<Place> told = Told(options, place, deadline);
    if (!told) return told.error();
    place = std::move(*told);
  }
  Result<rendezvous::Client> store = rendezvous::Client::Connect(
      {.host = options.master_addr, .port = place.port, .round = place.round, .deadline = deadline});
  if (!store) return store.error();
  if (Status here = store->Set(HereKey(options.rank), Self()); !here) return here.error();
  if (Status kept = store->Will(WordKey(options.rank), {}); !kept) return kept.error();
  return std::unique_ptr<Members>(new Members(options, std::move(server), std::move(*store)));
}

Result<std::vector<std::string>> Members::Exchanged(const std::string& key, const std::string& value,
                                                    rendezvous::Deadline deadline) {
  if (options_.exchange) return ByExchange(options_, key, value, deadline);
  return ExchangeThrough(*store_, options_, key, value, deadline);
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
  first_ = Failure{options_.rank, OneLine(why)};
  if (!store_ || !store_->good()) return *first_;
  store_->SetDeadline(Clock::now() + options_.end_timeout / 4, options_.end_timeout / 8);
  const Status told = store_->Set(kFirstKey, std::to_string(options_.rank) + " " + first_->why);
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
  if (options_.rank == 0) {
    // What is left is for the others to hear it.
    verdict = Gather(where, deadline - left / 2);
    (void)store_->Set(kVerdictKey, verdict);
    store_.reset();
    (void)server_->LeftBy(deadline);
    return verdict;
  }
  store_->SetDeadline(deadline - left / 4, std::chrono::floor<std::chrono::milliseconds>(left / 4));
  Result<std::string> told = Error{Errc::kUnavailable, ""};
  const bool was_good = store_->good();
  if (was_good && store_->Set(WordKey(options_.rank), OneLine(where))) told = store_->Get(kVerdictKey);
  if (told) {
    verdict = OneLine(*told);
  } else if (store_->good() || (was_good && Clock::now() >= deadline - left / 4)) {
    verdict = "no word from rank 0";
  }
  store_.reset();
  return verdict;
}

std::string Members::Gather(const std::string& where, rendezvous::Deadline deadline) {
  store_->SetDeadline(deadline, options_.end_timeout / 8);
  std::vector<int> ended;
  std::vector<int> silent;
  std::string elsewhere;
  int rank = 1;
  for (; rank < options_.size && store_->good() && Clock::now() < deadline + options_.end_timeout / 8;
       ++rank) {
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
  if (rank < options_.size) add("no time was left to hear the ranks from " + std::to_string(rank) + " on");
  return text;
}

}  // namespace muster
