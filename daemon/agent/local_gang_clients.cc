// The part of LocalGang that serves the members' programs: saves and restores through libmuster.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ceph/catalog/catalog.h"
#include "ceph/muster.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/send.h"
#include "daemon/auth/session.h"
#include "daemon/base/crash_point.h"

namespace muster {
namespace {

// Saves of one member that may be on their way at once: the library has two staging buffers.
constexpr uint32_t kMaxSaving = 2;

int CodeOf(Errc code) {
  switch (code) {
    case Errc::kInvalid:
      return MUSTER_E_INVALID;
    case Errc::kNotFound:
      return MUSTER_E_NOT_FOUND;
    case Errc::kCorrupt:
      return MUSTER_E_CORRUPT;
    case Errc::kDenied:
      return MUSTER_E_DENIED;
    case Errc::kExhausted:
    case Errc::kUnavailable:
    case Errc::kConflict:
    case Errc::kInternal:
      return MUSTER_E_STORE;
  }
  return MUSTER_E_STORE;
}

template <typename Body>
void SendResult(LocalConnection& connection, wire::Type type, Body body, int status, std::string_view text,
                int fd = -1) {
  text = Fit(text);
  body.status = status;
  body.text_bytes = static_cast<uint32_t>(text.size());
  SendBody(connection, type, body, text, fd);
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
  const auto member = members_.find(hello.rank);
  if (member == members_.end()) {
    return refuse(wire::Refusal::kInvalid,
                  fmt::format("rank {} of gang {} is not on this node", hello.rank, job_.Id()));
  }
  if (!start_ && hello.generation > stop_generation_) {
    // musterd has just restarted: it does not know yet what the coordinator decided, nor perhaps where its
    // members are. The library tries again.
    return refuse(wire::Refusal::kNoGang,
                  fmt::format("gang {} is not connected to its coordinator yet", job_.Id()));
  }
  if (!start_ || hello.generation != start_->generation() || hello.generation != member->second.generation ||
      hello.generation <= stop_generation_) {
    return refuse(wire::Refusal::kStaleGeneration,
                  fmt::format("generation {} of gang {} is over", hello.generation, job_.Id()));
  }
  for (auto& [other, client] : clients_) {
    if (client.rank == hello.rank)
      return refuse(wire::Refusal::kInvalid, fmt::format("rank {} is open already", hello.rank));
  }
  clients_[&connection] = Client{&connection, hello.rank, hello.generation, 0};
  wire::ClientWelcome welcome{};
  welcome.generation = hello.generation;
  welcome.restore_step = start_->restore() ? start_->restore_step() : wire::kNoStep;
  welcome.rank = hello.rank;
  welcome.world_size = job_.task_count;
  welcome.max_shard_bytes = static_cast<uint64_t>(context_.config.max_shard_bytes);
  SendBody(connection, wire::Type::kClientWelcome, welcome);
  if (notify_flags_ != 0) {
    wire::Notify notify{};
    notify.flags = notify_flags_;
    SendBody(connection, wire::Type::kNotify, notify);
  }
  return true;
}

void LocalGang::ClientPacket(LocalConnection& connection, const wire::Header& header, Packet packet) {
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
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body) || !packet.fd.valid())
        return malformed();
      return OnSave(client, body, std::move(packet.fd));
    }
    case wire::Type::kRestore: {
      wire::Restore body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      return OnRestore(client, body);
    }
    case wire::Type::kProgress: {
      wire::Progress body{};
      if (!wire::ReadBody(packet.bytes.data(), packet.bytes.size(), &body)) return malformed();
      if (body.step <= progress_ || body.step == wire::kNoStep) return;  // another member has said so
      progress_ = body.step;
      auto message = Message();
      message.mutable_progress()->set_task(client.rank);
      message.mutable_progress()->set_step(body.step);
      return Up(std::move(message));
    }
    default:
      malformed();
  }
}

void LocalGang::ClientClosed(LocalConnection& connection) {
  clients_.erase(&connection);
}

LocalGang::Client* LocalGang::ClientOf(uint32_t rank, uint64_t generation) {
  for (auto& [connection, client] : clients_) {
    if (client.rank == rank && client.generation == generation) return &client;
  }
  return nullptr;
}

void LocalGang::DropClients(const char* why) {
  for (auto& [connection, client] : clients_) Refuse(*connection, wire::Refusal::kStaleGeneration, why);
  clients_.clear();
}

// ---- save
// --------------------------------------------------------------------------------------------------------

void LocalGang::OnSave(Client& client, const wire::Save& save, UniqueFd memory) {
  wire::ShardDurable answer{};
  answer.step = save.step;
  const auto refuse = [&](int status, const std::string& text) {
    SendResult(*client.connection, wire::Type::kShardDurable, answer, status, text);
  };
  if (client.generation != start_->generation() || client.generation <= stop_generation_) {
    return refuse(MUSTER_E_DENIED, fmt::format("generation {} is over", client.generation));
  }
  if (save.step == wire::kNoStep) return refuse(MUSTER_E_INVALID, "that number is not a step");
  if (save.bytes == 0 || save.bytes > static_cast<uint64_t>(context_.config.max_shard_bytes)) {
    return refuse(MUSTER_E_TOO_LARGE, fmt::format("a shard of {} bytes; 1 to {} are allowed (max_shard_size)",
                                                  save.bytes, context_.config.max_shard_bytes));
  }
  if (client.saving >= kMaxSaving)
    return refuse(MUSTER_E_BUSY, "two saves of this member are on their way already");
  // One content for one (generation, step, rank): objects of a checkpoint are never written twice.
  if (!saved_.insert({client.rank, save.step}).second) {
    return refuse(MUSTER_E_INVALID,
                  fmt::format("step {} has been saved in this generation already", save.step));
  }
  ++client.saving;
  const std::weak_ptr<LocalGang> weak = weak_from_this();
  Loop& loop = context_.loop;
  const uint32_t rank = client.rank;
  const uint64_t generation = client.generation;
  const uint64_t step = save.step;
  context_.engine.WriteShard(job_.Space(), job_.Key(), step, Fence{start_->term(), generation}, rank,
                             std::move(memory), save.bytes,
                             [weak, &loop, rank, generation, step](Result<Shard> shard) {
                               loop.Post([weak, rank, generation, step, shard = std::move(shard)] {
                                 if (const auto self = weak.lock())
                                   self->ShardDone(rank, generation, step, shard);
                               });
                             });
}

void LocalGang::ShardDone(uint32_t rank, uint64_t generation, uint64_t step, const Result<Shard>& shard) {
  if (Client* client = ClientOf(rank, generation)) {
    if (client->saving > 0) --client->saving;
    wire::ShardDurable answer{};
    answer.step = step;
    SendResult(*client->connection, wire::Type::kShardDurable, answer,
               shard ? MUSTER_OK : CodeOf(shard.error().code), shard ? "" : shard.error().message);
  }
  if (!start_ || start_->generation() != generation) return;
  v1::ShardWritten written;
  written.set_generation(generation);
  written.set_step(step);
  written.mutable_shard()->set_rank(rank);
  if (shard) {
    v1::Shard* s = written.mutable_shard();
    s->set_bytes(shard->bytes);
    s->set_chunk_bytes(shard->chunk_bytes);
    s->set_prefix(shard->prefix);
    for (const Digest& digest : shard->chunks) {
      s->mutable_digests()->append(reinterpret_cast<const char*>(digest.data()), digest.size());
    }
  } else {
    spdlog::warn("gang {}: rank {}, step {}: {}", job_.Id(), rank, step, shard.error().message);
    written.set_error(shard.error().message);
    saved_.erase({rank, step});
  }
  CrashPoint("agent.shard_reported");
  unacknowledged_[{rank, step}] = written;
  auto message = Message();
  *message.mutable_shard_written() = std::move(written);
  Up(std::move(message));
}

void LocalGang::OnCommitted(const v1::Committed& committed) {
  std::erase_if(unacknowledged_, [&](const auto& item) { return item.first.second == committed.step(); });
  if (!start_ || start_->generation() != committed.generation()) return;
  for (auto& [connection, client] : clients_) {
    if (client.generation != committed.generation()) continue;
    wire::Committed body{};
    body.step = committed.step();
    SendResult(*connection, wire::Type::kCommitted, body,
               committed.error().empty() ? MUSTER_OK : MUSTER_E_STORE, committed.error());
  }
}

void LocalGang::OnNotify(const v1::Notify& notify) {
  notify_flags_ |= (notify.should_checkpoint() ? wire::kShouldCheckpoint : 0) |
                   (notify.should_exit() ? wire::kShouldExit : 0);
  wire::Notify body{};
  body.flags = notify_flags_;
  for (auto& [connection, client] : clients_) SendBody(*connection, wire::Type::kNotify, body);
}

// ---- restore
// -----------------------------------------------------------------------------------------------------

void LocalGang::OnRestore(Client& client, const wire::Restore& restore) {
  // One at a time: each takes a shard's memory.
  if (client.restoring) {
    wire::Restored body{};
    body.step = restore.step;
    SendResult(*client.connection, wire::Type::kRestored, body, MUSTER_E_BUSY,
               "a restore of this member is on its way already");
    return;
  }
  uint64_t step = restore.step;
  if (step == wire::kNoStep && start_->restore()) step = start_->restore_step();
  if (step == wire::kNoStep) {
    wire::Restored body{};
    SendResult(*client.connection, wire::Type::kRestored, body, MUSTER_E_NOT_FOUND,
               fmt::format("gang {} has no checkpoint yet", job_.Id()));
    return;
  }
  client.restoring = true;
  const std::weak_ptr<LocalGang> weak = weak_from_this();
  Loop& loop = context_.loop;
  Engine& engine = context_.engine;
  const uint32_t rank = client.rank;
  const uint64_t generation = client.generation;
  const std::string space = job_.Space();
  CrashPoint("agent.restore");
  const auto done = [weak, &loop, rank, generation, step](Result<UniqueFd> memory, uint64_t bytes) {
    // std::function must be copyable; a descriptor is not.
    auto shared = std::make_shared<Result<UniqueFd>>(std::move(memory));
    loop.Post([weak, rank, generation, step, bytes, shared] {
      if (const auto self = weak.lock()) self->RestoreDone(rank, generation, step, std::move(*shared), bytes);
    });
  };
  context_.reader.Do(
      [store = context_.store, &engine, space, key = job_.Key(), step, rank, world = job_.task_count, done] {
        auto manifest = Catalog(store, space, key).LoadManifest(step);
        if (!manifest) return done(manifest.error(), 0);
        if (manifest->world_size != world) {
          return done(Error{Errc::kInvalid,
                            fmt::format("the checkpoint of step {} was saved by {} members, this gang has {}",
                                        step, manifest->world_size, world)},
                      0);
        }
        const Shard& shard = manifest->shards[rank];
        engine.ReadShard(space, shard, [done, bytes = shard.bytes](Result<UniqueFd> memory) {
          done(std::move(memory), bytes);
        });
      });
}

void LocalGang::RestoreDone(uint32_t rank, uint64_t generation, uint64_t step, Result<UniqueFd> memory,
                            uint64_t bytes) {
  if (!start_ || start_->generation() != generation) return;
  // Only the generation's own starting point sends the gang back; another step is the program's own question.
  if (!memory && start_->restore() && step == start_->restore_step() &&
      (memory.error().code == Errc::kCorrupt || memory.error().code == Errc::kNotFound)) {
    auto message = Message();
    v1::CheckpointBad* bad = message.mutable_checkpoint_bad();
    bad->set_task(rank);
    bad->set_generation(generation);
    bad->set_step(step);
    bad->set_reason(memory.error().message);
    Up(std::move(message));
  }
  Client* client = ClientOf(rank, generation);
  if (client == nullptr) return;
  client->restoring = false;
  wire::Restored body{};
  body.step = step;
  body.bytes = bytes;
  if (memory) {
    SendResult(*client->connection, wire::Type::kRestored, body, MUSTER_OK, "", memory->get());
  } else {
    SendResult(*client->connection, wire::Type::kRestored, body, CodeOf(memory.error().code),
               memory.error().message);
  }
}

}  // namespace muster
