// Moves checkpoints between the store and the muster command: shards to read, to verify, and new checkpoints to commit.
// The command speaks on the local socket (docs/formats.md, Local protocol): the kernel says whose it is, and shards travel in
// memfds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/manifest.h"
#include "ceph/engine/engine.h"
#include "ceph/store/store.h"
#include "daemon/agent/command_connections.h"
#include "daemon/agent/local_socket.h"
#include "daemon/config/config.h"
#include "wire/wire.h"

namespace muster {

// On the loop's thread only. Must outlive the connections.
class CheckpointExchange final : public CommandConnections {
 public:
  CheckpointExchange(Loop& loop, const Config& config, std::shared_ptr<Store> store, Engine& engine);
  ~CheckpointExchange();

  bool Hello(LocalConnection& connection, std::string_view packet) override;
  void Handle(LocalConnection& connection, const wire::Header& header, Packet& packet) override;
  // A checkpoint that was begun and not committed is forgotten, and what it has in the store is removed. A write is given up.
  void Closed(LocalConnection& connection) override;

  // Of one user at once; each may have a shard's memory on its way. One whose connection has gone counts until what it has
  // under way has ended, or memory would be on its way without limit.
  static constexpr size_t kMaxPerUser = 4;

 private:
  struct Import {
    std::string key;
    Manifest manifest;  // but for the shards
    std::map<uint32_t, Shard> shards;
    std::optional<uint64_t> room;  // bytes that the user may store yet; nothing: as many as there are
  };
  struct Session {
    LocalConnection* connection = nullptr;  // null when it has gone
    uid_t peer = 0;
    std::string space;
    bool busy = false;  // a question is being answered
    std::optional<Manifest> opened;
    CheckpointInfo entry;  // of what is opened
    std::optional<Import> import;
    std::shared_ptr<ShardWrite> write;  // under way
  };
  using SharedSession = std::shared_ptr<Session>;

  void Open(const SharedSession& session, std::string_view packet);
  void ReadOrVerify(const SharedSession& session, const wire::CommandShard& question, bool read);
  // Why a shard of the open checkpoint cannot be read: what is not listed any more is not damaged.
  void CannotRead(const SharedSession& session, const wire::CommandAnswer& answer, const Error& error);
  void Begin(const SharedSession& session, std::string_view packet);
  void Write(const SharedSession& session, const wire::CommandShard& question, UniqueFd&& memory);
  void Commit(const SharedSession& session);
  void Answer(const SharedSession& session, wire::CommandAnswer answer, int status, std::string_view text,
              int fd = -1);
  // Runs `work` on the worker, and what it gives back on the loop.
  void Work(std::function<std::function<void()>()> work);
  void Forget(const SharedSession& session);
  [[nodiscard]] size_t CountOf(uid_t peer) const;

  Loop& loop_;
  const Config& config_;
  std::shared_ptr<Store> store_;
  Engine& engine_;
  std::map<LocalConnection*, SharedSession> sessions_;
  std::set<SharedSession> ending_;  // without a connection
  // Gone with this object: what comes back later finds nothing.
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;  // last: its work uses the rest
};

}  // namespace muster
