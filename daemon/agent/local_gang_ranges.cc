// The part of LocalGang that gives parts of shards to the members' programs: for slices of tensors, which a gang of another
// size takes from those who saved them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/agent/client_answers.h"
#include "daemon/agent/local_gang.h"
#include "wire/status_codes.h"

namespace muster {

void LocalGang::OnReadRange(Client& client, const wire::ReadRange& request) {
  wire::RangeRead answer{};
  answer.step = request.step;
  answer.offset = request.offset;
  if (answer.step == wire::kNoStep && start_->restore()) answer.step = start_->restore_step();
  if (answer.step == wire::kNoStep) {
    return SendResult(*client.connection, wire::Type::kRangeRead, answer, wire::kStatusNotFound,
                      fmt::format("gang {} has no checkpoint yet", job_.Id()));
  }
  if (client.restoring) {
    return SendResult(*client.connection, wire::Type::kRangeRead, answer, wire::kStatusBusy,
                      "a restore of this member is on its way already");
  }
  client.restoring = true;
  ShowSaving(client.rank);
  ReadRangeTo(client.asker(), answer, request.bytes, request.rank);
}

// `asked` bytes of the shard of `whose`.
void LocalGang::ReadRangeTo(const Asker& asker, wire::RangeRead answer, uint64_t asked, uint32_t whose) {
  if (!manifests_) manifests_ = std::make_shared<ManifestCache>(context_.store, job_.Space(), job_.Key());
  const auto done = [weak = weak_from_this(), &loop = context_.loop, asker, answer, asked, whose](
                        wire::RangeRead said, const CheckpointInfo& entry, Result<UniqueFd> memory) {
    // std::function must be copyable; a descriptor is not.
    auto shared = std::make_shared<Result<UniqueFd>>(std::move(memory));
    loop.Post([weak, asker, answer, asked, whose, said, entry, shared]() mutable {
      const auto self = weak.lock();
      if (!self || self->ClientOf(asker) == nullptr) return;
      const auto tell = [weak, asker, said](int status, const std::string& text, int fd) {
        const auto gang = weak.lock();
        Client* client = gang ? gang->ClientOf(asker) : nullptr;
        if (client == nullptr) return;
        client->restoring = false;
        gang->ShowSaving(asker.rank);
        SendResult(*client->connection, wire::Type::kRangeRead, said, status, text, fd);
      };
      if (*shared) return tell(wire::kStatusOk, "", (*shared)->get());
      const auto again = [weak, asker, answer, asked, whose] {
        if (const auto gang = weak.lock()) gang->ReadRangeTo(asker, answer, asked, whose);
      };
      const auto fail = [tell](const Error& error) { tell(wire::StatusOf(error.code), error.message, -1); };
      self->NotRead({asker, entry, again, fail}, shared->error());
    });
  };
  context_.reader.Do([manifests = manifests_, &engine = context_.engine, space = job_.Space(), answer, asked,
                      whose, done]() mutable {
    CheckpointInfo entry;
    const auto found = manifests->Get(answer.step, &entry);
    if (!found) return done(answer, entry, found.error());
    const Manifest& manifest = **found;
    // A step is saved once under one fence.
    answer.checkpoint = manifest.fence.term << 32 ^ manifest.fence.generation;
    if (whose >= manifest.world_size) {
      return done(answer, entry,
                  Error{Errc::kInvalid,
                        fmt::format("the checkpoint of step {} has no shard of rank {}: it was saved by "
                                    "{} members",
                                    answer.step, whose, manifest.world_size)});
    }
    const Shard& shard = manifest.shards[whose];
    answer.shard_bytes = shard.bytes;
    if (answer.offset > shard.bytes) {
      return done(answer, entry,
                  Error{Errc::kInvalid, fmt::format("the shard of rank {} has {} bytes, none at {}", whose,
                                                    shard.bytes, answer.offset)});
    }
    answer.bytes = std::min(asked, shard.bytes - answer.offset);
    engine.ReadRange(
        space, shard, answer.offset, answer.bytes,
        [done, answer, entry](Result<UniqueFd> memory) { done(answer, entry, std::move(memory)); });
  });
}

}  // namespace muster
