// The part of LocalGang that gives checkpoints to the members' programs: one's own shard, or any other's for a program
// that goes on with another number of members than saved it.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/crash_point.h"
#include "ceph/catalog/catalog.h"
#include "daemon/agent/client_answers.h"
#include "daemon/agent/let_go.h"
#include "daemon/agent/local_gang.h"
#include "wire/status_codes.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kAskAgain{1'000};

// Whose shard of a checkpoint a request is for.
Result<uint32_t> ShardOf(const Manifest& manifest, uint32_t asked, uint32_t own, uint32_t world, bool saves) {
  if (asked != wire::kOwnShard) {
    if (asked < manifest.world_size) return asked;
    return Error{Errc::kInvalid,
                 fmt::format("the checkpoint of step {} has no shard of rank {}: it was saved by {} "
                             "members",
                             manifest.step, asked, manifest.world_size)};
  }
  if (!saves) {
    return Error{Errc::kInvalid,
                 "only those who train have shards of their own in a checkpoint: read theirs with "
                 "muster_restore_open_shard (in Python Gang.restore_shards)"};
  }
  if (manifest.world_size == world) return own;
  return Error{
      Errc::kInvalid,
      fmt::format("the checkpoint of step {} was saved by {} members, this gang has {}: read its shards with "
                  "muster_restore_info and muster_restore_open_shard (in Python Gang.restore_shards), and "
                  "divide them anew",
                  manifest.step, manifest.world_size, world)};
}

}  // namespace

void LocalGang::OnRestore(Client& client, const wire::Restore& restore) {
  // One at a time: each takes a shard's memory.
  if (client.restoring) {
    wire::Restored body{};
    body.step = restore.step;
    SendResult(*client.connection, wire::Type::kRestored, body, wire::kStatusBusy,
               "a restore of this member is on its way already");
    return;
  }
  uint64_t step = restore.step;
  if (step == wire::kNoStep && start_->restore()) step = start_->restore_step();
  if (step == wire::kNoStep) {
    wire::Restored body{};
    SendResult(*client.connection, wire::Type::kRestored, body, wire::kStatusNotFound,
               fmt::format("gang {} has no checkpoint yet", job_.Id()));
    return;
  }
  client.restoring = true;
  ShowSaving(client.rank);
  CrashPoint("agent.restore");
  const int64_t begun_ns = BoottimeNs();
  const bool own = restore.rank == wire::kOwnShard || restore.rank == client.rank;
  if (own && RestoreFromMemory(client, step, begun_ns)) return;
  if (own && RestoreFromPartner(client.asker(), step, begun_ns)) return;
  RestoreFromStore(client.asker(), step, restore.rank, begun_ns);
}

// False when it is not here. What is here and proves to be something else is looked for elsewhere.
bool LocalGang::RestoreFromMemory(Client& client, uint64_t step, int64_t begun_ns) {
  if (!start_->restore() || step != start_->restore_step() || !Saves()) return false;
  const uint64_t saved_in = start_->restore_generation();
  const HeldShard* held = held_.Find(client.rank, saved_in, step);
  if (held == nullptr || held->world_size != world_.spec.MemberCount()) return false;
  context_.engine.CheckStaged(
      held->shard, *held->memory,
      [weak = weak_from_this(), &loop = context_.loop, asker = client.asker(), step, saved_in, begun_ns,
       memory = LetGoBy(context_.chores, held->memory), shard = held->shard](const Status& checked) {
        loop.Post([weak, asker, step, saved_in, begun_ns, memory, shard, checked] {
          const auto self = weak.lock();
          if (!self || self->ClientOf(asker) == nullptr) return;
          UniqueFd copy(checked ? ::fcntl((*memory)->fd(), F_DUPFD_CLOEXEC, 0) : -1);
          if (copy.valid()) {
            self->TellRestored(asker.rank, asker.generation, shard.bytes, true, 0, begun_ns);
            return self->RestoreDone(asker, step, std::move(copy), shard);
          }
          spdlog::info("gang {}: rank {}, step {}: not from memory: {}", self->job_.Id(), asker.rank, step,
                       checked ? std::strerror(errno) : checked.error().message);
          self->Let(self->held_.Drop(asker.rank, saved_in, step));
          if (!self->RestoreFromPartner(asker, step, begun_ns))
            self->RestoreFromStore(asker, step, wire::kOwnShard, begun_ns);
        });
      });
  return true;
}

void LocalGang::RestoreFromStore(const Asker& asker, uint64_t step, uint32_t asked, int64_t begun_ns) {
  if (ClientOf(asker) == nullptr) return;
  const auto done = [weak = weak_from_this(), &loop = context_.loop, chores = context_.chores, asker, step,
                     asked,
                     begun_ns](Result<UniqueFd> memory, const Shard& shard, const CheckpointInfo& entry) {
    auto shared = LetGoBy(chores, std::move(memory));
    loop.Post([weak, asker, step, asked, begun_ns, shard, entry, shared] {
      const auto self = weak.lock();
      if (!self || self->ClientOf(asker) == nullptr) return;
      if (*shared) {
        if (shard.rank == asker.rank)
          self->TellRestored(asker.rank, asker.generation, shard.bytes, false, 0, begun_ns);
        return self->RestoreDone(asker, step, *shared, shard);
      }
      const auto again = [weak, asker, step, asked, begun_ns] {
        if (const auto gang = weak.lock()) gang->RestoreFromStore(asker, step, asked, begun_ns);
      };
      const auto fail = [weak, asker, step](const Error& error) {
        if (const auto gang = weak.lock()) gang->RestoreDone(asker, step, error, {});
      };
      self->NotRead({asker, entry, again, fail}, shared->error());
    });
  };
  context_.reader.Do([store = context_.store, &engine = context_.engine, space = job_.Space(),
                      key = job_.Key(), step, asked, rank = asker.rank, world = world_.spec.MemberCount(),
                      saves = Saves(), done, reader = std::weak_ptr<const void>(asker.connection)] {
    if (reader.expired()) return;
    CheckpointInfo entry;
    auto manifest = Catalog(store, space, key).LoadManifest(step, &entry);
    if (!manifest) return done(manifest.error(), {}, entry);
    const Result<uint32_t> which = ShardOf(*manifest, asked, rank, world, saves);
    if (!which) return done(which.error(), {}, entry);
    const Shard& shard = manifest->shards[*which];
    engine.ReadShard(
        space, shard,
        [done, shard, entry](Result<UniqueFd> memory) { done(std::move(memory), shard, entry); }, reader);
  });
}

void LocalGang::TellRestored(uint32_t rank, uint64_t generation, uint64_t bytes, bool from_memory,
                             uint64_t from_partner, int64_t begun_ns) {
  if (!start_ || start_->generation() != generation) return;
  auto message = Message();
  v1::ShardRestored* restored = message.mutable_shard_restored();
  restored->set_rank(rank);
  restored->set_generation(generation);
  restored->set_bytes(bytes);
  restored->set_from_memory(from_memory);
  restored->set_from_partner(from_partner);
  restored->set_elapsed_ns(BoottimeNs() - begun_ns);
  Up(std::move(message));
}

// A checkpoint may be removed, or its step saved anew, while it is read: what is missing of one that has left the list is no
// damage, and what the list has now is the answer.
void LocalGang::NotRead(const Reading& reading, const Error& error) {
  if (Status same = SameStore(*context_.store, start_->store()); !same) return reading.fail(same.error());
  if (AskLater(reading, error)) return;
  if (error.code != Errc::kCorrupt) return reading.fail(error);
  context_.reader.Do([weak = weak_from_this(), &loop = context_.loop, store = context_.store,
                      space = job_.Space(), key = job_.Key(), reading, error] {
    loop.Post([weak, reading, error, listed = Catalog(store, space, key).CheckListed(reading.entry)] {
      const auto self = weak.lock();
      if (!self || self->ClientOf(reading.asker) == nullptr) return;
      if (!listed && self->AskLater(reading, listed.error())) return;
      if (!listed && listed.error().code == Errc::kNotFound) return reading.again();
      if (listed) self->ReportIfBad(reading, error);
      reading.fail(error);
    });
  });
}

// A store that does not answer is asked again for as long as the member waits: no program is to end because of it. False:
// it is no such error, or nobody waits.
bool LocalGang::AskLater(const Reading& reading, const Error& error) {
  if (error.code != Errc::kUnavailable || ClientOf(reading.asker) == nullptr) return false;
  spdlog::warn("gang {}: rank {} waits for its state: {}; the store is asked again", job_.Id(),
               reading.asker.rank, error.message);
  if (!delay_said_) {
    delay_said_ = 0;
    TellJobOfDelay(reading.asker.generation,
                   fmt::format("members wait for their state: {}; the store is asked again", error.message));
  }
  context_.loop.After(kAskAgain, [weak = weak_from_this(), asker = reading.asker, again = reading.again] {
    const auto self = weak.lock();
    if (self && self->ClientOf(asker) != nullptr) again();
  });
  return true;
}

void LocalGang::Let(HeldShards::Dropped dropped) {
  if (!dropped.empty()) context_.chores->Do([dropped = std::move(dropped)] {});
}

void LocalGang::RestoreDone(const Asker& asker, uint64_t step, const Result<UniqueFd>& memory,
                            const Shard& shard) {
  Client* client = ClientOf(asker);
  if (client == nullptr) return;
  // All of its objects have just been found to be good.
  if (memory && shard.rank == asker.rank && start_->restore() && step == start_->restore_step())
    SetBase(asker.rank, step, shard);
  if (memory) delay_said_.reset();
  client->restoring = false;
  ShowSaving(asker.rank);
  wire::Restored body{};
  body.step = step;
  body.bytes = shard.bytes;
  if (memory) {
    SendResult(*client->connection, wire::Type::kRestored, body, wire::kStatusOk, "", memory->get());
  } else {
    SendResult(*client->connection, wire::Type::kRestored, body, wire::StatusOf(memory.error().code),
               memory.error().message);
  }
}

// Only the generation's own starting point sends the gang back; another step is the program's own question, and so is what
// this generation has saved of the same step.
void LocalGang::ReportIfBad(const Reading& reading, const Error& error) {
  const CheckpointInfo& entry = reading.entry;
  if (!start_->restore() || entry.step != start_->restore_step()) return;
  if (entry.fence.generation == reading.asker.generation) return;
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const auto& item) {
    return item.second.rank == reading.asker.rank && item.second.generation == reading.asker.generation;
  });
  if (found == members_.end()) return;
  v1::CheckpointBad bad;
  bad.set_task(found->first);
  bad.set_generation(reading.asker.generation);
  bad.set_step(entry.step);
  bad.set_reason(error.message);
  bad.set_manifest(entry.manifest);
  auto message = Message();
  *message.mutable_checkpoint_bad() = bad;
  told_again_.bad_checkpoint = std::move(bad);
  SaveState();  // before the member hears of it, and ends
  Up(std::move(message));
}

void LocalGang::OnDescribe(Client& client, const wire::Describe& describe) {
  wire::Described answer{};
  answer.step = describe.step;
  if (answer.step == wire::kNoStep && start_->restore()) answer.step = start_->restore_step();
  if (answer.step == wire::kNoStep) {
    return SendResult(*client.connection, wire::Type::kDescribed, answer, wire::kStatusNotFound,
                      fmt::format("gang {} has no checkpoint yet", job_.Id()));
  }
  if (client.restoring) {
    return SendResult(*client.connection, wire::Type::kDescribed, answer, wire::kStatusBusy,
                      "a restore of this member is on its way already");
  }
  client.restoring = true;
  ShowSaving(client.rank);
  DescribeTo(client.asker(), answer);
}

void LocalGang::DescribeTo(const Asker& asker, wire::Described answer) {
  auto done = [weak = weak_from_this(), asker, answer](const Result<Manifest>& manifest,
                                                       const CheckpointInfo& entry) mutable {
    const auto self = weak.lock();
    if (!self || self->ClientOf(asker) == nullptr) return;
    const auto tell = [weak, asker](const wire::Described& said, int status, const std::string& text) {
      const auto gang = weak.lock();
      Client* client = gang ? gang->ClientOf(asker) : nullptr;
      if (client == nullptr) return;
      client->restoring = false;
      gang->ShowSaving(asker.rank);
      SendResult(*client->connection, wire::Type::kDescribed, said, status, text);
    };
    if (!manifest) {
      const auto again = [weak, asker, answer] {
        if (const auto gang = weak.lock()) gang->DescribeTo(asker, answer);
      };
      const auto fail = [tell, answer](const Error& error) {
        tell(answer, wire::StatusOf(error.code), error.message);
      };
      return self->NotRead({asker, entry, again, fail}, manifest.error());
    }
    answer.world_size = manifest->world_size;
    for (const Shard& shard : manifest->shards) answer.bytes += shard.bytes;
    tell(answer, wire::kStatusOk, "");
  };
  context_.reader.Do([store = context_.store, &loop = context_.loop, space = job_.Space(), key = job_.Key(),
                      step = answer.step, done] {
    CheckpointInfo entry;
    auto manifest = Catalog(store, space, key).LoadManifest(step, &entry);
    loop.Post([done, manifest = std::move(manifest), entry]() mutable { done(manifest, entry); });
  });
}

}  // namespace muster
