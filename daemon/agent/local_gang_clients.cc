// The part of LocalGang that serves the members' programs: hellos, saves and steps through libmuster.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "base/crash_point.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "daemon/agent/client_answers.h"
#include "daemon/agent/let_go.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/auth/auth_session.h"
#include "daemon/proto/shard_message.h"
#include "daemon/steps/member_page.h"
#include "wire/status_codes.h"

namespace muster {
namespace {

// Saves of one member that may be on their way at once: the library has two staging buffers.
constexpr uint32_t kMaxSaving = 2;
// So long a coordinator has to hear all members' shards, after it was away.
constexpr std::chrono::seconds kToDecide(10);

void TellDelayed(LocalConnection& connection, uint64_t step, int status, const std::string& why) {
  wire::ShardDelayed body{};
  body.step = step;
  SendResult(connection, wire::Type::kShardDelayed, body, status, why);
}

}  // namespace

bool LocalGang::ClientHello(LocalConnection& connection, const wire::ClientHello& hello) {
  const auto refuse = [&](wire::Refusal reason, const std::string& text) {
    Refuse(connection, reason, text);
    return false;
  };
  if (connection.peer().uid != job_.uid && connection.peer().uid != 0) {
    spdlog::warn("gang {}: uid {} (pid {}) tried to join a gang of uid {}", job_.Id(), connection.peer().uid,
                 connection.peer().pid, job_.uid);
    return refuse(wire::Refusal::kDenied, fmt::format("gang {} belongs to another user", job_.Id()));
  }
  const std::string_view token(reinterpret_cast<const char*>(hello.token), sizeof hello.token);
  if (!SameMac(token, token_)) {
    return refuse(wire::Refusal::kDenied,
                  fmt::format("the token is not that of gang {} (MUSTER_TOKEN)", job_.Id()));
  }
  const auto member = std::find_if(members_.begin(), members_.end(), [&](const auto& item) {
    return item.second.generation == hello.generation && item.second.rank == hello.rank;
  });
  const bool other_generation = start_ && hello.generation != start_->generation();
  if (member == members_.end() && !other_generation && start_) {
    return refuse(wire::Refusal::kInvalid,
                  fmt::format("rank {} of gang {} is not on this node", hello.rank, job_.Id()));
  }
  if (!start_ && core_.orders().MayRun(hello.generation)) {
    // musterd has just restarted: it does not know yet what the coordinator decided, nor perhaps where its
    // members are. The library tries again.
    return refuse(wire::Refusal::kNoGang,
                  fmt::format("gang {} is not connected to its coordinator yet", job_.Id()));
  }
  // A coordinator that has taken over may not know of the stop yet.
  if (!start_ || other_generation || member == members_.end() || !core_.orders().MayRun(hello.generation) ||
      member->second.stop.ordered) {
    return refuse(wire::Refusal::kStaleGeneration,
                  fmt::format("generation {} of gang {} is over", hello.generation, job_.Id()));
  }
  for (auto& [other, client] : clients_) {
    if (client.rank == hello.rank)
      return refuse(wire::Refusal::kInvalid, fmt::format("rank {} is open already", hello.rank));
  }
  clients_[&connection] =
      Client{.connection = &connection, .rank = hello.rank, .generation = hello.generation};
  wire::ClientWelcome welcome{};
  welcome.generation = hello.generation;
  welcome.restore_step = start_->restore() ? start_->restore_step() : wire::kNoStep;
  welcome.rank = world_.RankOf(spec_, hello.rank);
  welcome.world_size = world_.spec.MemberCount();
  welcome.max_shard_bytes = LargestShard(context_.config);
  welcome.features = wire::kKnowsShards | wire::kKnowsRanges | wire::kKnowsOutcomes | wire::kExchanges;
  if (context_.memory) {
    clients_[&connection].memory = context_.memory->Join(connection.peer().pid);
    welcome.features |= wire::kGrantsMemory;
  }
  welcome.reconnect_ms = static_cast<uint32_t>(context_.config.reconnect_ms);
  connection.TakeMemory();
  SendBody(connection, wire::Type::kClientWelcome, welcome);
  return true;
}

void LocalGang::ClientPacket(LocalConnection& connection, const wire::Header& header, Packet& packet) {
  const auto found = clients_.find(&connection);
  if (found == clients_.end()) return;
  Client& client = found->second;
  const auto malformed = [&] {
    spdlog::warn("gang {}: rank {}'s program sent a malformed message of type {}", job_.Id(), client.rank,
                 header.type);
    Refuse(connection, wire::Refusal::kMalformed, fmt::format("malformed message of type {}", header.type));
  };
  switch (static_cast<wire::Type>(header.type)) {
    case wire::Type::kSave: {
      wire::Save body{};
      if (!wire::ReadGrownBody(packet.bytes.data(), packet.bytes.size(), wire::kFirstSave, &body) ||
          !packet.fd.valid())
        return malformed();
      return OnSave(client, body, std::move(packet.fd));
    }
    case wire::Type::kGiveUp: {
      wire::GiveUp body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      return GiveUp(client.rank, body.step, "it was given up for a newer one");
    }
    case wire::Type::kAskOutcome: {
      wire::AskOutcome body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      return OnAskOutcome(client, body.step);
    }
    case wire::Type::kAskMemory: {
      wire::AskMemory body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body) || !packet.fd.valid() ||
          !client.memory)
        return malformed();
      return OnAskMemory(client, body, LetGoBy(context_.chores, std::move(packet.fd)));
    }
    case wire::Type::kRestore: {
      wire::Restore body{};
      body.rank = wire::kOwnShard;
      if (!wire::ReadGrownBody(packet.bytes.data(), packet.bytes.size(), wire::kFirstRestore, &body))
        return malformed();
      return OnRestore(client, body);
    }
    case wire::Type::kDescribe: {
      wire::Describe body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      return OnDescribe(client, body);
    }
    case wire::Type::kReadRange: {
      wire::ReadRange body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      return OnReadRange(client, body);
    }
    case wire::Type::kExchange: {
      const auto exchange = ReadExchange({packet.bytes.data(), packet.bytes.size()});
      if (!exchange || !exchanges_) return malformed();
      return OnExchange(client, *exchange);
    }
    case wire::Type::kAskMissing: {
      const auto ask = ReadAskMissing({packet.bytes.data(), packet.bytes.size()});
      if (!ask || !exchanges_) return malformed();
      return exchanges_->AskMissing(world_.RankOf(spec_, client.rank), ask->body.number,
                                    std::string(ask->key));
    }
    case wire::Type::kStepPage: {
      auto page = steps::MapPage(packet.fd);
      if (!page) return malformed();
      if (!steps_.Attend(client.rank, *page)) {
        return Refuse(connection, wire::Refusal::kNoGang,
                      fmt::format("musterd cannot write the state of gang {}", job_.Id()));
      }
      if (sampler_) sampler_->SetPage(client.rank, *std::move(page));
      SendBody(connection, wire::Type::kStepPageTaken, wire::StepPageHandover{});
      return;
    }
    default:
      malformed();
  }
}

// Saves of a generation that the engine writes for a member, whichever of its connections has begun them.
size_t LocalGang::SavesOnTheirWay(uint32_t rank, uint64_t generation) const {
  return static_cast<size_t>(std::distance(writing_.lower_bound({generation, rank, 0}),
                                           writing_.lower_bound({generation, rank + 1, 0})));
}

void LocalGang::ShowSaving(uint32_t rank) {
  if (!sampler_ || !start_) return;
  size_t count = SavesOnTheirWay(rank, start_->generation());
  for (const auto& [connection, client] : clients_) {
    if (client.rank == rank && client.restoring) ++count;
  }
  sampler_->SetCheckpoints(rank, static_cast<uint32_t>(count));
}

void LocalGang::ClientClosed(LocalConnection& connection) {
  const auto closed = clients_.extract(&connection);
  if (closed) steps_.Ended(closed.mapped().generation, closed.mapped().rank);
}

LocalGang::Client* LocalGang::ClientOf(uint32_t rank, uint64_t generation) {
  for (auto& [connection, client] : clients_) {
    if (client.rank == rank && client.generation == generation) return &client;
  }
  return nullptr;
}

LocalGang::Client* LocalGang::ClientOf(const Asker& asker) {
  Client* client = ClientOf(asker.rank, asker.generation);
  return client != nullptr && client->reader == asker.connection.lock() ? client : nullptr;
}

void LocalGang::DropClients(const char* why) {
  for (auto& [connection, client] : clients_) Refuse(*connection, wire::Refusal::kStaleGeneration, why);
  clients_.clear();
  manifests_.reset();
}

// ---- save
// --------------------------------------------------------------------------------------------------------

bool LocalGang::Saves() const {
  const auto trains = [](const ClusterSpec::Node& node) { return node.Trains(); };
  return place_ &&
         (spec_.nodes[*place_].Trains() || std::none_of(spec_.nodes.begin(), spec_.nodes.end(), trains));
}

// All members say the same, once the coordinator knows how large the gang's checkpoints are: none writes in vain.
Status LocalGang::HasRoom(uint64_t shard_bytes) const {
  if (storage_.limit() == 0) return {};
  const uint64_t need = storage_.need() != 0 ? storage_.need() : shard_bytes * world_.spec.MemberCount();
  if (storage_.use() < storage_.limit() && need <= storage_.limit() - storage_.use()) return {};
  return Error{
      Errc::kExhausted,
      fmt::format("the checkpoint may take {} bytes, and {} of the {} that a user may have are in use "
                  "(user_storage_limit; muster report storage): delete others, or keep fewer",
                  need, storage_.use(), storage_.limit())};
}

// Whether what this member saves comes to checkpoints.
Status LocalGang::OthersSave(uint32_t rank) const {
  const auto since = core_.search().linked_at();
  const bool waits = since && context_.loop.Now() - Loop::Time(std::chrono::nanoseconds(*since)) > kToDecide;
  if (!waits || reports_.Undecided(rank) < ShardReports::kMostOfRank) return {};
  return Error{Errc::kInvalid,
               fmt::format("{} saves of rank {} wait for other members', which have not come: a checkpoint "
                           "is made of the same step's saves of all members",
                           ShardReports::kMostOfRank, rank)};
}

void LocalGang::OnSave(Client& client, const wire::Save& save, UniqueFd&& memory) {
  wire::ShardDurable answer{};
  answer.step = save.step;
  const auto refuse = [&](int status, const std::string& text) {
    SendResult(*client.connection, wire::Type::kShardDurable, answer, status, text);
  };
  if (client.generation != start_->generation() || !core_.orders().MayRun(client.generation)) {
    return refuse(wire::kStatusDenied, fmt::format("generation {} is over", client.generation));
  }
  if (!place_)
    return refuse(wire::kStatusDenied,
                  fmt::format("this node has no part in generation {}", client.generation));
  if (!Saves()) {
    return refuse(wire::kStatusDenied, fmt::format("a checkpoint is made of the shards of those who train; a "
                                                   "member of role {} has none in it",
                                                   spec_.RoleOf(spec_.nodes[*place_])));
  }
  if (save.step == wire::kNoStep) return refuse(wire::kStatusInvalid, "that number is not a step");
  if (const uint64_t most = LargestShard(context_.config); save.bytes == 0 || save.bytes > most) {
    return refuse(wire::kStatusTooLarge,
                  fmt::format("a shard of {} bytes; 1 to {} are allowed (max_shard_size, and {} chunks)",
                              save.bytes, most, kMaxShardChunks));
  }
  // A member whose connection broke hands its save over again. A refusal would free the member's memory for the next step, while the
  // engine still reads the memory. So nothing is said now: ShardDone answers.
  const auto underway = writing_.find({client.generation, client.rank, save.step});
  if (underway != writing_.end() && underway->second.memory->Is(memory)) {
    // The new connection has not heard of it.
    if (!underway->second.delay.empty())
      TellDelayed(*client.connection, save.step, wire::StatusOf(Errc::kUnavailable), underway->second.delay);
    return;
  }
  if (SavesOnTheirWay(client.rank, client.generation) >= kMaxSaving)
    return refuse(wire::kStatusBusy, "two saves of this member are on their way already");
  const bool again = !saved_[client.rank].Add(save.step);
  if (again && !MaySaveAgain(client.rank, save.step)) {
    return refuse(wire::kStatusInvalid,
                  fmt::format("step {} has been saved in this generation already, or is below the last {}",
                              save.step, RecentSteps::kKept));
  }
  const std::weak_ptr<LocalGang> weak = weak_from_this();
  Loop& loop = context_.loop;
  const uint32_t rank = client.rank;
  const uint64_t generation = client.generation;
  const uint64_t step = save.step;
  Status may = HasRoom(save.bytes);
  if (may) may = OthersSave(rank);
  if (may) may = SameStore(*context_.store, start_->store());
  if (!may) return ShardDone(rank, generation, step, may.error(), nullptr);
  HeldShards::Dropped dropped;
  if (again) dropped = held_.Drop(rank, generation, step);
  const auto staged = held_.Take(rank, std::move(memory), &dropped);
  Let(std::move(dropped));
  if (!staged) return ShardDone(rank, generation, step, staged.error(), nullptr);
  Writing& writing = writing_[{generation, rank, step}];
  writing.memory = *staged;
  writing.held_ns = std::max<int64_t>(save.held_ns, 0);
  writing.write = context_.engine.WriteShard(
      job_.Space(), PrefixFor(rank, step, again), rank, **staged, save.bytes, BaseFor(rank, step),
      [weak, &loop, rank, generation, step, memory = LetGoBy(context_.chores, *staged)](Result<Shard> shard) {
        loop.Post([weak, rank, generation, step, memory, shard = std::move(shard)] {
          if (const auto self = weak.lock()) self->ShardDone(rank, generation, step, shard, *memory);
        });
      },
      [weak, &loop, rank, generation, step](const Status& status) {
        loop.Post([weak, rank, generation, step, status] {
          if (const auto self = weak.lock()) self->ShardDelayed(rank, generation, step, status);
        });
      });
  ShowSaving(rank);
}

void LocalGang::ShardDelayed(uint32_t rank, uint64_t generation, uint64_t step, const Status& status) {
  const auto found = writing_.find({generation, rank, step});
  if (found == writing_.end() || !start_ || start_->generation() != generation) return;
  found->second.delay = status ? "" : status.error().message;
  if (Client* client = ClientOf(rank, generation)) {
    TellDelayed(*client->connection, step, status ? wire::kStatusOk : wire::StatusOf(status.error().code),
                found->second.delay);
  }
  if (status || delay_said_) return;
  delay_said_ = step;
  spdlog::warn("gang {}: rank {}, step {}: {}; it is tried again", job_.Id(), rank, step,
               status.error().message);
  auto message = Message();
  v1::ShardDelayed* delayed = message.mutable_shard_delayed();
  delayed->set_rank(rank);
  delayed->set_generation(generation);
  delayed->set_step(step);
  delayed->set_error(status.error().message);
  Up(std::move(message));
  TellJobOfDelay(generation,
                 fmt::format("the checkpoint of step {} is not taken: {}; training goes on, the newest "
                             "saves stay in memory and are tried again",
                             step, status.error().message));
}

// Rank 0's stderr is the job's: the others' nodes say nothing.
void LocalGang::TellJobOfDelay(uint64_t generation, const std::string& text) {
  const auto first = std::find_if(members_.begin(), members_.end(), [&](const auto& item) {
    return item.second.rank == 0 && item.second.generation == generation;
  });
  if (first == members_.end()) return;
  v1::Report report;
  report.set_task(first->first);
  report.set_text(fmt::format("muster: gang {}: {}\n", job_.Id(), text));
  OnReport(report);
}

// What it has not written yet will not be a part of a checkpoint.
void LocalGang::GiveUp(uint32_t rank, uint64_t step, const char* why) {
  if (!start_) return;
  const auto found = writing_.find({start_->generation(), rank, step});
  if (found == writing_.end() || std::exchange(found->second.given_up, true)) return;
  const std::string& delay = found->second.delay;
  if (found->second.write) {
    found->second.write->Stop(
        {Errc::kUnavailable, fmt::format("{}{}{}", why, delay.empty() ? "" : ": ", delay)});
  }
}

void LocalGang::StopWritingStep(uint64_t step, const char* why) {
  for (const auto& [key, writing] : writing_) {
    const auto& [generation, rank, of] = key;
    if (of == step) GiveUp(rank, step, why);
  }
}

// The coordinator knows: it was committed, it has failed, its shard was reported by the musterd before this one. Else it was lost
// with that musterd, and the others are not to wait for it.
void LocalGang::OnAskOutcome(const Client& client, uint64_t step) {
  if (!start_ || client.generation != start_->generation()) return;
  if (writing_.contains({client.generation, client.rank, step})) return;
  if (!reports_.MayAdd(client.rank, step)) return;
  v1::ShardWritten lost;
  lost.set_generation(client.generation);
  lost.set_step(step);
  lost.mutable_shard()->set_rank(client.rank);
  lost.set_error(
      fmt::format("musterd on {} was restarted, and nobody was told of the shard of rank {} before",
                  context_.self, client.rank));
  lost.set_given_up(true);
  lost.set_lost(true);
  reports_.Add(lost);
  auto message = Message();
  *message.mutable_shard_written() = std::move(lost);
  Up(std::move(message));
}

void LocalGang::StopWriting(uint64_t before) {
  for (const auto& [key, writing] : writing_) {
    if (std::get<0>(key) < before && writing.write)
      writing.write->Stop({Errc::kConflict, "its generation is over"});
  }
}

// The newest save, while it is not committed: another member has failed, and all save the step once more. One content of it is
// written after the other.
bool LocalGang::MaySaveAgain(uint32_t rank, uint64_t step) const {
  const auto saved = saved_.find(rank);
  return saved != saved_.end() && saved->second.Highest() == step &&
         (!newest_committed_ || *newest_committed_ < step) &&
         !writing_.contains({start_->generation(), rank, step});
}

// Nothing has been written under it: saved_ has what this musterd has begun, and not what the one before had.
std::string LocalGang::PrefixFor(uint32_t rank, uint64_t step, bool again) const {
  std::optional<uint32_t> write;
  if (again || generation_before_ == start_->generation()) write = std::random_device{}();
  return ShardPrefix(job_.Key(), step, {start_->term(), start_->generation()}, rank, write);
}

// What a save may share chunks with. With one checkpoint kept, its objects may go while a save is on its way.
ShardBase LocalGang::BaseFor(uint32_t rank, uint64_t step) {
  Base& base = bases_[rank];
  ++base.saves;
  const bool share = context_.config.incremental == "yes" && context_.config.keep_checkpoints >= 2;
  if (!share || !base.shard || base.step >= step) return {};
  return {base.shard, base.saves};
}

void LocalGang::SetBase(uint32_t rank, uint64_t step, const Shard& shard) {
  Base& base = bases_[rank];
  if (base.shard && base.step > step) return;
  base.step = step;
  base.shard = std::make_shared<const Shard>(shard);
}

void LocalGang::ShardDone(uint32_t rank, uint64_t generation, uint64_t step, const Result<Shard>& shard,
                          const std::shared_ptr<StagedMemory>& memory) {
  v1::ShardWritten written;
  if (shard) {
    PutShard(*shard, written.mutable_shard());
    if (Status fits = CheckFits(written.shard()); !fits) {
      // The next one shares nothing, and is listed in fewer bytes.
      bases_[rank].shard.reset();
      return ShardDone(rank, generation, step, fits.error(), nullptr);
    }
  }
  bool given_up = false;
  if (const auto found = writing_.find({generation, rank, step}); found != writing_.end()) {
    given_up = found->second.given_up;
    written.set_held_ns(found->second.held_ns);
    const auto took = std::chrono::steady_clock::now() - found->second.began;
    written.set_written_ns(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
    writing_.erase(found);
  }
  // Also when the member has died meanwhile: the next generation may start from it.
  if (shard && start_ && start_->generation() == generation)
    Let(held_.Hold({generation, step, world_.spec.MemberCount(), *shard, memory}));
  if (Client* client = ClientOf(rank, generation)) {
    ShowSaving(rank);
    wire::ShardDurable answer{};
    answer.step = step;
    SendResult(*client->connection, wire::Type::kShardDurable, answer,
               shard ? wire::kStatusOk : wire::StatusOf(shard.error().code),
               shard ? "" : shard.error().message);
  }
  if (!start_ || start_->generation() != generation) return;
  written.set_generation(generation);
  written.set_step(step);
  written.mutable_shard()->set_rank(rank);
  if (shard) {
    SetBase(rank, step, *shard);
    const auto older = writing_.lower_bound({generation, rank, 0});
    written.set_older_to_come(older != writing_.end() && older->first < std::tuple(generation, rank, step));
  } else {
    spdlog::log(given_up ? spdlog::level::debug : spdlog::level::warn, "gang {}: rank {}, step {}: {}",
                job_.Id(), rank, step, shard.error().message);
    written.set_error(shard.error().message);
    written.set_given_up(given_up);
    // What is under way of one that was given up may still be written: its objects have had their one content.
    if (!given_up) saved_[rank].Remove(step);
  }
  CrashPoint("agent.shard_reported");
  reports_.Add(written);
  auto message = Message();
  *message.mutable_shard_written() = std::move(written);
  Up(std::move(message));
}

// A member whose musterd was restarted hands its save over twice: where the checkpoint has what was written first, this node
// has in memory what nothing consists of.
void LocalGang::ForgetOthers(const v1::Committed& committed) {
  const auto is_other = [&](const Shard& shard) {
    const auto& written = committed.written();
    return HasWrite(shard.prefix) && std::find(written.begin(), written.end(), shard.prefix) == written.end();
  };
  for (const auto& [task, member] : members_) {
    const HeldShard* held = held_.Find(member.rank, committed.generation(), committed.step());
    if (held != nullptr && is_other(held->shard))
      Let(held_.Drop(member.rank, committed.generation(), committed.step()));
  }
  for (auto& [rank, base] : bases_) {
    if (base.shard && base.step == committed.step() && is_other(*base.shard)) base.shard.reset();
  }
}

void LocalGang::OnCommitted(const v1::Committed& committed) {
  reports_.Decided(committed.generation(), committed.step());
  if (!start_ || start_->generation() != committed.generation()) return;
  if (committed.error().empty()) {
    if (delay_said_ && *delay_said_ <= committed.step()) delay_said_.reset();
    if (!newest_committed_ || *newest_committed_ < committed.step()) newest_committed_ = committed.step();
    StopWritingStep(committed.step(), "it is committed already");
    ForgetOthers(committed);
    CopyToPartner(committed.generation(), committed.step());
    Let(held_.Committed(committed.generation(), committed.step()));
  } else {
    if (told_again_.failed_saves.Add(committed.generation(), committed.step(), committed.error()))
      SaveState();
    StopWritingStep(committed.step(), "another member's shard is missing");
    // Whatever the reason was: the next ones stand alone, unless one that is newer has been found to be whole.
    if (!newest_committed_ || *newest_committed_ < committed.step()) {
      for (auto& [rank, base] : bases_) base.shard.reset();
    }
  }
  for (auto& [connection, client] : clients_) {
    if (client.generation != committed.generation()) continue;
    wire::Committed body{};
    body.step = committed.step();
    SendResult(*connection, wire::Type::kCommitted, body,
               committed.error().empty() ? wire::kStatusOk : wire::kStatusStore, committed.error());
  }
}

steps::NodeSide::Hooks LocalGang::MakeStepHooks() {
  steps::NodeSide::Hooks hooks;
  hooks.answer = [this](const v1::StepAnswer& answer) {
    auto message = Message();
    *message.mutable_step_answer() = answer;
    Up(std::move(message));
  };
  hooks.news = [this](const v1::StepNews& news) {
    auto message = Message();
    *message.mutable_step_news() = news;
    Up(std::move(message));
  };
  hooks.keep = [this](bool again) { return SaveState(again); };
  // libmuster's clock.
  hooks.now = [] {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  };
  hooks.after = [this](int64_t ms, std::function<void()> what) {
    context_.loop.After(std::chrono::milliseconds(ms), std::move(what));
  };
  return hooks;
}

}  // namespace muster
