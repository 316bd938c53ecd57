#include "daemon/service/checkpoint_exchange.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "ceph/catalog/object_names.h"
#include "ceph/catalog/stored_bytes.h"
#include "daemon/agent/client_answers.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/config/configured_retention.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/service/new_checkpoint.h"
#include "wire/status_codes.h"

namespace muster {
namespace {

// A gang's key in a packet; the store checks its form again.
template <typename Body>
std::optional<std::string> KeyIn(std::string_view packet, const Body& body) {
  const char* piece[1] = {};
  if (!wire::ReadTail<Body, 1>(packet.data(), packet.size(), {body.key_bytes}, piece)) return std::nullopt;
  std::string key(piece[0], body.key_bytes);
  const std::string_view name = std::string_view(key).substr(std::min<size_t>(key.find('-') + 1, key.size()));
  const bool known = key.starts_with("name-") || key.starts_with("job-");
  if (!known || !wire::detail::IsName(name.data(), name.size())) return std::nullopt;
  return key;
}

// Checkpoints are removed while others read them, and what is missing of one that has left the list is not damage.
Error UnlessRemoved(Catalog catalog, const CheckpointInfo& entry, const Error& error) {
  if (error.code != Errc::kCorrupt && error.code != Errc::kNotFound) return error;
  const Status listed = catalog.CheckListed(entry);
  return listed ? error : listed.error();
}

}  // namespace

CheckpointExchange::CheckpointExchange(Loop& loop, const Config& config, std::shared_ptr<Store> store,
                                       Engine& engine)
    : loop_(loop), config_(config), store_(std::move(store)), engine_(engine) {}

CheckpointExchange::~CheckpointExchange() = default;

bool CheckpointExchange::Hello(LocalConnection& connection, std::string_view packet) {
  const auto hello = ReadPacket<wire::CommandHello>(packet);
  if (!hello) {
    Refuse(connection, wire::Refusal::kMalformed, "malformed hello");
    return false;
  }
  const uid_t peer = connection.peer().uid;
  const uid_t uid = hello->uid == wire::kOwnUid ? peer : hello->uid;
  if (uid != peer && peer != 0) {
    Refuse(connection, wire::Refusal::kDenied, "only root may ask for another user's gangs");
    return false;
  }
  if (CountOf(peer) >= kMaxPerUser) {
    Refuse(
        connection, wire::Refusal::kDenied,
        fmt::format("{} exports, imports and verifications of yours run on this node already", kMaxPerUser));
    return false;
  }
  auto session = std::make_shared<Session>();
  session->connection = &connection;
  session->peer = peer;
  session->space = SpaceOf(uid);
  sessions_[&connection] = session;
  wire::CommandAnswer welcome{};
  welcome.bytes = LargestShard(config_);
  connection.TakeMemory();
  Answer(session, welcome, wire::kStatusOk, "");
  return true;
}

void CheckpointExchange::Handle(LocalConnection& connection, const wire::Header& header, Packet& packet) {
  const auto found = sessions_.find(&connection);
  if (found == sessions_.end()) return;
  const SharedSession session = found->second;
  const std::string_view bytes(packet.bytes.data(), packet.bytes.size());
  const auto type = static_cast<wire::Type>(header.type);
  if (session->busy) {
    return Refuse(connection, wire::Refusal::kMalformed, "the last question has not been answered yet");
  }
  const auto shard = ReadPacket<wire::CommandShard>(bytes);
  session->busy = true;
  switch (type) {
    case wire::Type::kCommandOpen:
      return Open(session, bytes);
    case wire::Type::kCommandRead:
    case wire::Type::kCommandVerify:
      if (shard) return ReadOrVerify(session, *shard, type == wire::Type::kCommandRead);
      break;
    case wire::Type::kCommandBegin:
      return Begin(session, bytes);
    case wire::Type::kCommandWrite:
      if (shard && packet.fd.valid()) return Write(session, *shard, std::move(packet.fd));
      break;
    case wire::Type::kCommandCommit:
      return Commit(session);
    default:
      break;
  }
  session->busy = false;
  Refuse(connection, wire::Refusal::kMalformed, fmt::format("malformed message of type {}", header.type));
}

void CheckpointExchange::Closed(LocalConnection& connection) {
  const auto found = sessions_.find(&connection);
  if (found == sessions_.end()) return;
  const SharedSession session = found->second;
  sessions_.erase(found);
  session->connection = nullptr;
  ending_.insert(session);
  if (session->write) session->write->GiveUp({Errc::kConflict, "the connection has ended"});
  if (!session->busy) Forget(session);  // else when what is under way has ended
}

size_t CheckpointExchange::CountOf(uid_t peer) const {
  const auto open = std::count_if(sessions_.begin(), sessions_.end(),
                                  [&](const auto& item) { return item.second->peer == peer; });
  const auto ending = std::count_if(ending_.begin(), ending_.end(),
                                    [&](const SharedSession& session) { return session->peer == peer; });
  return static_cast<size_t>(open + ending);
}

void CheckpointExchange::Answer(const SharedSession& session, wire::CommandAnswer answer, int status,
                                std::string_view text, int fd) {
  session->busy = false;
  if (session->connection == nullptr) return Forget(session);
  SendResult(*session->connection, wire::Type::kCommandAnswer, answer, status, text, fd);
}

void CheckpointExchange::Work(std::function<std::function<void()>()> work) {
  worker_.Do([&loop = loop_, alive = std::weak_ptr(alive_), work = std::move(work)] {
    loop.Post([alive, then = work()] {
      if (!alive.expired()) then();
    });
  });
}

// ---- a committed checkpoint

void CheckpointExchange::Open(const SharedSession& session, std::string_view packet) {
  const auto question = ReadPacket<wire::CommandOpen>(packet);
  const auto key = question ? KeyIn(packet, *question) : std::nullopt;
  if (!key) return Answer(session, {}, wire::kStatusInvalid, "that is no gang's key");
  Work([this, session, key = *key, step = question->step]() -> std::function<void()> {
    Catalog catalog(store_, session->space, key);
    CheckpointInfo entry;
    auto manifest = std::make_shared<Result<Manifest>>(catalog.LoadManifest(step, &entry));
    if (!*manifest && manifest->error().code == Errc::kCorrupt)
      *manifest = UnlessRemoved(std::move(catalog), entry, manifest->error());
    return [this, session, manifest, entry] {
      if (!*manifest) {
        const Error& error = manifest->error();
        return Answer(session, {}, wire::StatusOf(error.code), error.message);
      }
      wire::CommandAnswer answer{};
      answer.step = (*manifest)->step;
      answer.bytes = (*manifest)->TotalBytes();
      answer.world_size = (*manifest)->world_size;
      session->opened = std::move(**manifest);
      session->entry = entry;
      Answer(session, answer, wire::kStatusOk, "");
    };
  });
}

void CheckpointExchange::ReadOrVerify(const SharedSession& session, const wire::CommandShard& question,
                                      bool read) {
  if (!session->opened || question.rank >= session->opened->world_size)
    return Answer(session, {}, wire::kStatusInvalid, "no checkpoint is open that has such a shard");
  const Shard& shard = session->opened->shards[question.rank];
  wire::CommandAnswer answer{};
  answer.step = session->opened->step;
  answer.bytes = shard.bytes;
  answer.world_size = session->opened->world_size;
  const auto done = [this, session, answer, alive = std::weak_ptr(alive_),
                     &loop = loop_](Result<UniqueFd> memory) {
    // std::function must be copyable; a descriptor is not.
    auto shared = std::make_shared<Result<UniqueFd>>(std::move(memory));
    loop.Post([this, session, answer, alive, shared] {
      if (alive.expired()) return;
      if (!*shared) return CannotRead(session, answer, shared->error());
      Answer(session, answer, wire::kStatusOk, "", (*shared)->get());
    });
  };
  if (read && question.offset > shard.bytes)
    return Answer(session, {}, wire::kStatusInvalid,
                  fmt::format("the shard of rank {} ends before", question.rank));
  if (read) {
    const uint64_t bytes = std::min({question.bytes, wire::kMaxCommandRead, shard.bytes - question.offset});
    return engine_.ReadRange(session->space, shard, question.offset, bytes, done);
  }
  engine_.VerifyShard(session->space, shard, [done](const Status& good) {
    done(good ? Result<UniqueFd>(UniqueFd()) : good.error());
  });
}

void CheckpointExchange::CannotRead(const SharedSession& session, const wire::CommandAnswer& answer,
                                    const Error& error) {
  if (!session->opened) return Answer(session, answer, wire::StatusOf(error.code), error.message);
  Work([this, session, answer, error, key = session->opened->key,
        entry = session->entry]() -> std::function<void()> {
    const Error why = UnlessRemoved(Catalog(store_, session->space, key), entry, error);
    return [this, session, answer, why] { Answer(session, answer, wire::StatusOf(why.code), why.message); };
  });
}

// ---- a new one

void CheckpointExchange::Begin(const SharedSession& session, std::string_view packet) {
  const auto question = ReadPacket<wire::CommandBegin>(packet);
  const auto key = question ? KeyIn(packet, *question) : std::nullopt;
  if (!key || !key->starts_with("name-"))
    return Answer(session, {}, wire::kStatusInvalid, "that is no key of --gang=name=KEY");
  if (question->step == wire::kNoStep || question->world_size == 0 ||
      question->world_size > kMaxImportedMembers) {
    return Answer(session, {}, wire::kStatusInvalid,
                  fmt::format("a checkpoint has 1 to {} shards, and a step", kMaxImportedMembers));
  }
  if (session->import)
    return Answer(session, {}, wire::kStatusInvalid, "a checkpoint has been begun already");
  Import import;
  import.key = *key;
  import.manifest.key = *key;
  import.manifest.step = question->step;
  import.manifest.world_size = question->world_size;
  Work([this, session, import = std::move(import)]() mutable -> std::function<void()> {
    auto fence = BeginNewCheckpoint(store_, session->space, import.key, import.manifest.step);
    if (fence && config_.user_storage_limit != 0) {
      const auto limit = static_cast<uint64_t>(config_.user_storage_limit);
      const auto use = StorageUse(store_, session->space).Read();
      if (!use) fence = use.error();
      if (use) import.room = limit - std::min(limit, *use);
    }
    return [this, session, import, fence] {
      if (!fence) {
        const int code =
            fence.error().code == Errc::kConflict ? wire::kStatusBusy : wire::StatusOf(fence.error().code);
        return Answer(session, {}, code, fence.error().message);
      }
      session->import = import;
      session->import->manifest.fence = *fence;
      wire::CommandAnswer answer{};
      answer.step = import.manifest.step;
      answer.world_size = import.manifest.world_size;
      Answer(session, answer, wire::kStatusOk, "");
    };
  });
}

void CheckpointExchange::Write(const SharedSession& session, const wire::CommandShard& question,
                               UniqueFd&& memory) {
  if (!session->import) return Answer(session, {}, wire::kStatusInvalid, "no checkpoint has been begun");
  Import& import = *session->import;
  if (question.rank >= import.manifest.world_size || import.shards.contains(question.rank))
    return Answer(session, {}, wire::kStatusInvalid, "that shard is not one that is missing");
  if (const uint64_t most = LargestShard(config_); question.bytes == 0 || question.bytes > most) {
    return Answer(session, {}, wire::kStatusTooLarge,
                  fmt::format("a shard of {} bytes; 1 to {} are allowed (max_shard_size, and {} chunks)",
                              question.bytes, most, kMaxShardChunks));
  }
  if (import.room && question.bytes > *import.room) {
    return Answer(session, {}, wire::kStatusTooLarge,
                  fmt::format("it would take more than the {} bytes that the checkpoints of a user may take "
                              "(user_storage_limit; muster report storage)",
                              config_.user_storage_limit));
  }
  const auto staged = StagedMemory::Take(std::move(memory));
  if (!staged) return Answer(session, {}, wire::StatusOf(staged.error().code), staged.error().message);
  if (import.room) *import.room -= question.bytes;
  const Manifest& manifest = import.manifest;
  const std::string prefix = ShardPrefix(import.key, manifest.step, manifest.fence, question.rank);
  session->write = engine_.WriteShard(
      session->space, prefix, question.rank, **staged, question.bytes, {},
      [this, session, alive = std::weak_ptr(alive_), &loop = loop_](Result<Shard> shard) {
        loop.Post([this, session, alive, shard = std::move(shard)] {
          if (alive.expired()) return;
          session->write.reset();
          if (!shard) return Answer(session, {}, wire::StatusOf(shard.error().code), shard.error().message);
          wire::CommandAnswer answer{};
          answer.step = session->import->manifest.step;
          answer.bytes = shard->bytes;
          answer.world_size = session->import->manifest.world_size;
          session->import->shards.emplace(shard->rank, *shard);
          Answer(session, answer, wire::kStatusOk, "");
        });
      });
}

void CheckpointExchange::Commit(const SharedSession& session) {
  if (!session->import || session->import->shards.size() < session->import->manifest.world_size)
    return Answer(session, {}, wire::kStatusInvalid, "not all shards have been written");
  Manifest manifest = std::move(session->import->manifest);
  for (auto& [rank, shard] : session->import->shards) manifest.shards.push_back(std::move(shard));
  manifest.created_ns = RealtimeNs();
  session->import.reset();
  Work([this, session, manifest = std::move(manifest)]() -> std::function<void()> {
    const Status status = CommitNewCheckpoint(store_, session->space, manifest, RetentionOf(config_));
    wire::CommandAnswer answer{};
    answer.step = manifest.step;
    answer.bytes = manifest.TotalBytes();
    answer.world_size = manifest.world_size;
    return [this, session, answer, status] {
      Answer(session, answer, status ? wire::kStatusOk : wire::StatusOf(status.error().code),
             status ? "" : status.error().message);
    };
  });
}

void CheckpointExchange::Forget(const SharedSession& session) {
  session->opened.reset();
  if (!session->import) {
    ending_.erase(session);
    return;
  }
  Work([this, session, import = *std::exchange(session->import, std::nullopt)]() {
    RemoveNewCheckpoint(*store_, session->space, import.manifest);
    return [this, session] { ending_.erase(session); };
  });
}

}  // namespace muster
