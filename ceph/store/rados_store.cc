// The store in a RADOS pool: a space is a namespace, an object an object, a head an object whose xattr
// "fence" guards its omap.
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <rados/librados.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ceph/store/backend.h"
#include "ceph/store/names.h"

namespace muster {
namespace {

using librados::AioCompletion;
using librados::bufferlist;
using librados::IoCtx;
using librados::ObjectReadOperation;
using librados::ObjectWriteOperation;

constexpr char kFence[] = "fence";
constexpr uint64_t kPage = 512;  // omap entries asked for at once
constexpr int kReadHeadAttempts = 10;
constexpr size_t kListPage = 1024;
// A full pool refuses data at once instead of keeping it waiting.
constexpr int kDataFlags = librados::OPERATION_FULL_TRY;
// What is needed to recover must work in a full pool too: heads are small, removals make room.
constexpr int kHeadFlags = librados::OPERATION_FULL_FORCE;

constexpr std::chrono::seconds kConnectPause{1};
constexpr std::chrono::seconds kLongestConnectPause{60};
constexpr char kListed[] = "Ceph has put this client on the blocklist";

enum class Doing { kReading, kWriting };

// A client of the cluster each, with connections of its own: what is small and waited for is not to queue behind shards.
enum class Kind { kSmall, kChunks };
struct Clients {
  std::unique_ptr<librados::Rados> small;
  std::unique_ptr<librados::Rados> chunks;
  // One context for each namespace and client. No context is changed after it was made, so any thread may use it.
  std::map<std::pair<std::string, Kind>, IoCtx> spaces;

  Clients() = default;
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;
  // Waits for what is under way.
  ~Clients() {
    for (auto& [space, io] : spaces) io.aio_flush();
    spaces.clear();
    for (const auto& client : {&small, &chunks}) {
      if (*client) (*client)->shutdown();
    }
  }
};

// What an operation uses, while it is under way.
struct Use {
  std::shared_ptr<Clients> clients;  // first, so that the context is destroyed before its client can end
  IoCtx io;
};

Errc CodeOf(int error, Doing doing) {
  switch (error) {
    case ENOENT:
      return Errc::kNotFound;
    case EPERM:
    case EACCES:
      return Errc::kDenied;
    case ENOSPC:
    case EDQUOT:
      return Errc::kExhausted;
    case EEXIST:
    case ECANCELED:
      return Errc::kConflict;
    case EINVAL:
    case EMSGSIZE:
    case EFBIG:
      return Errc::kInvalid;
    case EIO:  // no replica of the object verifies
      return doing == Doing::kReading ? Errc::kCorrupt : Errc::kUnavailable;
    case ETIMEDOUT:
    case ENOTCONN:
    case ESHUTDOWN:  // this client is on the blocklist: the operation may have been carried out before it was put there
    case EAGAIN:
    case EBUSY:
      return Errc::kUnavailable;
    default:
      return Errc::kInternal;
  }
}

bufferlist ToBuffers(const std::string& text) {
  bufferlist buffers;
  buffers.append(text);
  return buffers;
}

// A completion that is waited for.
class Waited {
 public:
  Waited() : completion_(librados::Rados::aio_create_completion()) {}
  Waited(const Waited&) = delete;
  Waited& operator=(const Waited&) = delete;
  ~Waited() { completion_->release(); }
  AioCompletion* get() { return completion_; }
  int Wait() {
    completion_->wait_for_complete();
    return completion_->get_return_value();
  }
  uint64_t version() { return completion_->get_version64(); }

 private:
  AioCompletion* completion_;
};

// Librados counts who uses its memory.
class RadosBuffer final : public StoreBuffer {
 public:
  explicit RadosBuffer(ceph::bufferptr memory)
      : StoreBuffer({reinterpret_cast<std::byte*>(memory.c_str()), memory.length()}),
        pointer_(std::move(memory)) {}
  [[nodiscard]] bool Idle() const override { return pointer_.raw_nref() == 1; }
  [[nodiscard]] const ceph::bufferptr& pointer() const { return pointer_; }

 private:
  const ceph::bufferptr pointer_;
};

Result<std::shared_ptr<Clients>> Connect(const StoreOptions& options, const std::string& pool);
void LetGo(std::shared_ptr<Clients> clients);

class RadosStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> Open(const StoreOptions& options, const std::string& pool);

  explicit RadosStore(std::string pool)
      : pool_(std::move(pool)),
        connected_(
            Error{Errc::kUnavailable, "store " + Describe() +
                                          ": the monitors have not answered yet (do they run and can this "
                                          "host reach them? see ceph -s)"}) {}

  ~RadosStore() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (connecting_.joinable()) connecting_.join();  // a try has its timeout, as every operation
    std::unique_lock lock(mutex_);
    std::shared_ptr<Clients> last = std::exchange(clients_, nullptr);
    lock.unlock();
    if (last) LetGo(std::move(last));
  }

  std::unique_ptr<StoreBuffer> NewBuffer(size_t bytes) override;
  void WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) override;
  void ReadAsync(const ObjectName& object, size_t limit, ReadDone done) override;
  Status Write(const ObjectName& object, const std::string& data) override;
  Result<std::string> Read(const ObjectName& object) override;
  Status Remove(const ObjectName& object) override;
  Result<std::vector<std::string>> List(const std::string& space, const std::string& prefix) override;
  Result<Head> ReadHead(const ObjectName& head) override;
  Result<std::vector<std::string>> ListSpaces() override;
  Status UpdateHead(const ObjectName& name, const HeadUpdate& update) override;
  [[nodiscard]] std::string Id() const override;
  [[nodiscard]] std::string Describe() const override { return "rados:" + pool_; }

 private:
  struct PendingWrite {
    RadosStore* store;
    Use use;
    AioCompletion* completion;
    ObjectName object;
    Done done;
  };
  struct PendingRead {
    RadosStore* store;
    Use use;
    AioCompletion* completion;
    ObjectName object;
    bufferlist data;
    ReadDone done;
  };

  static void WriteEnded(librados::completion_t completion, void* argument);
  static void ReadEnded(librados::completion_t completion, void* argument);
  // Calls `found` for each object of a context's namespace, or of all; some may come twice.
  Status EachObject(Use& use, const ObjectName& what,
                    const std::function<void(const librados::ObjectItem&)>& found);
  // kUnavailable while there is no connection.
  Result<Use> Space(const std::string& space, Kind kind);
  // The same for a whole name, checked.
  Result<Use> For(const ObjectName& object, Kind kind = Kind::kSmall);
  // What was asked of `use` has failed.
  Error Failed(const Use& use, const char* what, const ObjectName& object, int rc, Doing doing);
  // One attempt; nothing when the head was changed between its pages.
  std::optional<Result<Head>> ReadHeadOnce(Use& use, const ObjectName& head);
  // On a thread of its own: connects, and again when the clients have been put on the blocklist. What is written under the old
  // clients' names is safe from the new ones: objects are written once, and heads have their fences.
  void KeepConnected(const StoreOptions& options);
  // In place of the clients before.
  void Take(std::shared_ptr<Clients> clients);

  const std::string pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Clients> clients_;  // null: not connected
  Status connected_;                  // how the newest try has ended
  bool tried_ = false;                // there has been one
  bool late_ = false;                 // it is not waited for
  bool listed_ = false;               // clients_ are on the blocklist
  bool closing_ = false;
  std::thread connecting_;
  mutable std::mutex id_mutex_;  // mutex_ may be held for as long as the monitors are waited for
  std::string id_;
};

Error RadosStore::Failed(const Use& use, const char* what, const ObjectName& object, int rc, Doing doing) {
  std::string message = std::string("cannot ") + what + " " + object.space + "/" + object.name + " in " +
                        Describe() + ": " + std::strerror(-rc);
  if (rc == -ETIMEDOUT) message += " (are enough OSDs up? see ceph -s)";
  if (rc == -EDQUOT || rc == -ENOSPC) message += " (the pool is full or at its quota)";
  if (rc == -EPERM) message += " (the key's capabilities do not cover this namespace)";
  if (rc == -ESHUTDOWN) {
    message += " (" + std::string(kListed) + ")";
    const std::lock_guard lock(mutex_);
    if (use.clients == clients_) listed_ = true;
    changed_.notify_all();
  }
  return {CodeOf(-rc, doing), message};
}

Result<Use> RadosStore::Space(const std::string& space, Kind kind) {
  const std::lock_guard lock(mutex_);
  if (!clients_) return Error{Errc::kUnavailable, connected_.error().message};
  const auto found = clients_->spaces.find({space, kind});
  if (found != clients_->spaces.end()) return Use{clients_, found->second};
  IoCtx io;
  const auto& client = kind == Kind::kSmall ? clients_->small : clients_->chunks;
  if (const int rc = client->ioctx_create(pool_.c_str(), io); rc < 0) {
    return Error{CodeOf(-rc, Doing::kReading),
                 "cannot open the pool of " + Describe() + ": " + std::strerror(-rc)};
  }
  io.set_namespace(space);
  clients_->spaces.emplace(std::pair(space, kind), io);
  return Use{clients_, std::move(io)};
}

std::string RadosStore::Id() const {
  const std::lock_guard lock(id_mutex_);
  return id_;
}

Result<Use> RadosStore::For(const ObjectName& object, Kind kind) {
  if (Status status = CheckObjectName(object); !status) return status.error();
  return Space(object.space, kind);
}

void RadosStore::WriteEnded(librados::completion_t /*completion*/, void* argument) {
  const std::unique_ptr<PendingWrite> pending(static_cast<PendingWrite*>(argument));
  const int rc = pending->completion->get_return_value();
  pending->completion->release();
  pending->done(
      rc < 0 ? Status(pending->store->Failed(pending->use, "write", pending->object, rc, Doing::kWriting))
             : Status());
}

std::unique_ptr<StoreBuffer> RadosStore::NewBuffer(size_t bytes) {
  return std::make_unique<RadosBuffer>(
      ceph::bufferptr(ceph::buffer::create_page_aligned(static_cast<unsigned>(bytes))));
}

void RadosStore::WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) {
  Result<Use> use = For(object, Kind::kChunks);
  if (!use) return done(use.error());
  ceph::bufferptr memory = static_cast<const RadosBuffer&>(buffer).pointer();
  // Librados remembers the checksum of memory that it has sent; writing through it makes it forget. With an old one the
  // OSD would refuse the message for ever.
  if (memory.length() > 0) {
    const char first = *memory.c_str();
    memory.copy_in(0, 1, &first);
  }
  bufferlist buffers;
  buffers.append(memory, 0, static_cast<unsigned>(bytes));
  ObjectWriteOperation operation;
  operation.write_full(buffers);
  auto pending =
      std::make_unique<PendingWrite>(PendingWrite{this, *std::move(use), nullptr, object, std::move(done)});
  PendingWrite* raw = pending.release();  // WriteEnded's from here on
  raw->completion = librados::Rados::aio_create_completion(raw, &WriteEnded);
  if (const int rc = raw->use.io.aio_operate(object.name, raw->completion, &operation, kDataFlags); rc < 0) {
    const std::unique_ptr<PendingWrite> again(raw);
    again->completion->release();
    again->done(Failed(again->use, "write", object, rc, Doing::kWriting));
  }
}

void RadosStore::ReadEnded(librados::completion_t /*completion*/, void* argument) {
  const std::unique_ptr<PendingRead> pending(static_cast<PendingRead*>(argument));
  const int rc = pending->completion->get_return_value();
  pending->completion->release();
  if (rc < 0)
    return pending->done(pending->store->Failed(pending->use, "read", pending->object, rc, Doing::kReading));
  const auto data = std::make_shared<bufferlist>(std::move(pending->data));
  pending->done(StoreData{{reinterpret_cast<const std::byte*>(data->c_str()), data->length()}, data});
}

void RadosStore::ReadAsync(const ObjectName& object, size_t limit, ReadDone done) {
  Result<Use> use = For(object, Kind::kChunks);
  if (!use) return done(use.error());
  auto pending =
      std::make_unique<PendingRead>(PendingRead{this, *std::move(use), nullptr, object, {}, std::move(done)});
  PendingRead* raw = pending.release();  // ReadEnded's from here on
  raw->completion = librados::Rados::aio_create_completion(raw, &ReadEnded);
  if (const int rc = raw->use.io.aio_read(object.name, raw->completion, &raw->data, limit, 0); rc < 0) {
    const std::unique_ptr<PendingRead> again(raw);
    again->completion->release();
    again->done(Failed(again->use, "read", object, rc, Doing::kReading));
  }
}

Status RadosStore::Write(const ObjectName& object, const std::string& data) {
  Result<Use> use = For(object);
  if (!use) return use.error();
  ObjectWriteOperation operation;
  operation.write_full(ToBuffers(data));
  if (const int rc = use->io.operate(object.name, &operation, kDataFlags); rc < 0) {
    return Failed(*use, "write", object, rc, Doing::kWriting);
  }
  return {};
}

Result<std::string> RadosStore::Read(const ObjectName& object) {
  Result<Use> use = For(object);
  if (!use) return use.error();
  bufferlist data;
  // A length of 0 reads all of it.
  if (const int rc = use->io.read(object.name, data, 0, 0); rc < 0)
    return Failed(*use, "read", object, rc, Doing::kReading);
  return data.to_str();
}

Status RadosStore::Remove(const ObjectName& object) {
  Result<Use> use = For(object);
  if (!use) return use.error();
  ObjectWriteOperation operation;
  operation.remove();
  const int rc = use->io.operate(object.name, &operation, librados::OPERATION_FULL_FORCE);
  if (rc < 0 && rc != -ENOENT) return Failed(*use, "remove", object, rc, Doing::kWriting);
  return {};
}

Status RadosStore::EachObject(Use& use, const ObjectName& what,
                              const std::function<void(const librados::ObjectItem&)>& found) {
  IoCtx& io = use.io;
  const librados::ObjectCursor end = io.object_list_end();
  librados::ObjectCursor at = io.object_list_begin();
  while (!io.object_list_is_end(at)) {
    std::vector<librados::ObjectItem> page;
    librados::ObjectCursor next;
    const int rc = io.object_list(at, end, kListPage, {}, &page, &next);
    if (rc < 0) return Failed(use, "list", what, rc, Doing::kReading);
    for (const librados::ObjectItem& item : page) found(item);
    at = next;
  }
  return {};
}

Result<std::vector<std::string>> RadosStore::ListSpaces() {
  Result<Use> use = Space(librados::all_nspaces, Kind::kSmall);
  if (!use) return use.error();
  std::set<std::string> spaces;
  const Status listed = EachObject(*use, {"*", "*"}, [&](const librados::ObjectItem& item) {
    if (CheckSpace(item.nspace)) spaces.insert(item.nspace);
  });
  if (!listed) return listed.error();
  return std::vector<std::string>(spaces.begin(), spaces.end());
}

Result<std::vector<std::string>> RadosStore::List(const std::string& space, const std::string& prefix) {
  if (Status status = CheckSpace(space); !status) return status.error();
  if (Status status = CheckPrefix(prefix); !status) return status.error();
  Result<Use> use = Space(space, Kind::kSmall);
  if (!use) return use.error();
  std::set<std::string> names;  // an object may come twice when placement groups move meanwhile
  const Status listed = EachObject(*use, {space, prefix + "*"}, [&](const librados::ObjectItem& item) {
    if (item.nspace == space && item.oid.starts_with(prefix)) names.insert(item.oid);
  });
  if (!listed) return listed.error();
  return std::vector<std::string>(names.begin(), names.end());
}

std::optional<Result<Head>> RadosStore::ReadHeadOnce(Use& use, const ObjectName& name) {
  Head head;
  uint64_t version = 0;
  std::string after;
  bool more = true;
  for (bool first = true; more; first = false) {
    bufferlist fence;
    std::map<std::string, bufferlist> page;
    int fence_rc = 0;
    int page_rc = 0;
    ObjectReadOperation operation;
    if (first) {
      operation.getxattr(kFence, &fence, &fence_rc);
    } else {
      operation.assert_version(version);
    }
    operation.omap_get_vals2(after, kPage, &page, &more, &page_rc);
    Waited waited;
    int rc = use.io.aio_operate(name.name, waited.get(), &operation, nullptr);
    if (rc == 0) rc = waited.Wait();
    if (!first && (rc == -ERANGE || rc == -EOVERFLOW || rc == -ENOENT)) return std::nullopt;
    if (rc == -ENODATA) {
      return Error{Errc::kCorrupt,
                   "object " + name.space + "/" + name.name + " in " + Describe() + " is no head"};
    }
    if (rc < 0) return Failed(use, "read", name, rc, Doing::kReading);
    if (first) {
      head.fence = fence.to_str();
      version = waited.version();
    }
    for (auto& [key, value] : page) head.entries.emplace(key, value.to_str());
    if (page.empty()) break;
    after = page.rbegin()->first;
  }
  return head;
}

Result<Head> RadosStore::ReadHead(const ObjectName& name) {
  Result<Use> use = For(name);
  if (!use) return use.error();
  for (int attempt = 0; attempt < kReadHeadAttempts; ++attempt) {
    if (auto head = ReadHeadOnce(*use, name)) return std::move(*head);
  }
  return Error{Errc::kUnavailable, "head " + name.space + "/" + name.name + " in " + Describe() +
                                       " changes faster than it can be read"};
}

Status RadosStore::UpdateHead(const ObjectName& name, const HeadUpdate& update) {
  Result<Use> use = For(name);
  if (!use) return use.error();
  ObjectWriteOperation operation;
  if (update.expect_fence) {
    operation.cmpxattr(kFence, LIBRADOS_CMPXATTR_OP_EQ, ToBuffers(*update.expect_fence));
  } else {
    operation.create(true);
  }
  if (!update.expect.empty()) {
    // What is not there compares as if it were empty.
    std::map<std::string, std::pair<bufferlist, int>> assertions;
    for (const auto& [key, value] : update.expect)
      assertions.emplace(key, std::pair(ToBuffers(value), LIBRADOS_CMPXATTR_OP_EQ));
    int compared = 0;
    operation.omap_cmp(assertions, &compared);
  }
  operation.setxattr(kFence, ToBuffers(update.new_fence));
  if (!update.remove.empty()) operation.omap_rm_keys({update.remove.begin(), update.remove.end()});
  if (!update.set.empty()) {
    std::map<std::string, bufferlist> values;
    for (const auto& [key, value] : update.set) values.emplace(key, ToBuffers(value));
    operation.omap_set(values);
  }
  const int rc = use->io.operate(name.name, &operation, kHeadFlags);
  if (rc == -ENOENT || rc == -ENODATA || rc == -ECANCELED || rc == -EEXIST) {
    const std::string what = !update.expect_fence ? "exists already"
                             : update.expect.empty()
                                 ? "does not have fence " + *update.expect_fence
                                 : "was changed, or does not have fence " + *update.expect_fence;
    return Error{Errc::kConflict, "head " + name.space + "/" + name.name + " in " + Describe() + " " + what};
  }
  if (rc < 0) return Failed(*use, "update", name, rc, Doing::kWriting);
  return {};
}

// To the cluster, with the pool found.
Result<std::unique_ptr<librados::Rados>> ConnectClient(const StoreOptions& options, const std::string& pool,
                                                       Kind kind) {
  const std::string who = "client." + options.ceph_user;
  const auto failed = [&](const std::string& what, int rc, const std::string& check) {
    return Error{CodeOf(-rc, Doing::kReading), "store " + options.url + ": cannot " + what + " as " + who +
                                                   ": " + std::strerror(-rc) + " (" + check + ")"};
  };
  auto cluster = std::make_unique<librados::Rados>();
  if (const int rc = cluster->init2(who.c_str(), "ceph", 0); rc < 0) {
    return failed("start the Ceph client", rc, "is ceph_user a client's name without 'client.'?");
  }
  if (const int rc = cluster->conf_read_file(options.ceph_conf.c_str()); rc < 0) {
    return failed("read " + options.ceph_conf, rc, "does the file exist, and is it readable?");
  }
  // All three wait for ever by default.
  const std::string seconds = std::to_string(options.operation_timeout_seconds);
  std::vector<std::pair<const char*, std::string>> settings = {{"rados_osd_op_timeout", seconds},
                                                               {"rados_mon_op_timeout", seconds},
                                                               {"client_mount_timeout", seconds}};
  // By default a client with 100 MiB under way blocks whoever asks for more, as long as a few OSDs do not answer. The engine
  // bounds what is under way itself, and no thread of it may be held up: it stops writes whose memory is to be given back.
  if (kind == Kind::kChunks) {
    settings.emplace_back("objecter_inflight_op_bytes", "0");
    settings.emplace_back("objecter_inflight_ops", "0");
  }
  for (const auto& [key, value] : settings) {
    if (const int rc = cluster->conf_set(key, value.c_str()); rc < 0) {
      return failed(std::string("set ") + key, rc, "is the Ceph client of version 14 or later?");
    }
  }
  if (const int rc = cluster->connect(); rc < 0) {
    return failed(
        "connect to the monitors of " + options.ceph_conf, rc,
        "do the monitors run and can this host reach them, and is the keyring of " + who + " readable?");
  }
  IoCtx io;
  if (const int rc = cluster->ioctx_create(pool.c_str(), io); rc < 0) {
    return failed("open the pool", rc, "does 'ceph osd pool ls' list it?");
  }
  return cluster;
}

Result<std::shared_ptr<Clients>> Connect(const StoreOptions& options, const std::string& pool) {
  auto clients = std::make_shared<Clients>();
  for (const Kind kind : {Kind::kSmall, Kind::kChunks}) {
    auto client = ConnectClient(options, pool, kind);
    if (!client) return client.error();
    (kind == Kind::kSmall ? clients->small : clients->chunks) = *std::move(client);
  }
  return clients;
}

std::string IdOf(librados::Rados& client, const std::string& pool) {
  std::string fsid;
  const int64_t number = client.pool_lookup(pool.c_str());
  if (client.cluster_fsid(&fsid) != 0 || number < 0) return "";
  return "rados:" + fsid + "/" + std::to_string(number);
}

// The OSDs know who is on the blocklist; the monitors let everybody connect.
bool IsListed(const Clients& clients, const std::string& pool) {
  IoCtx io;
  uint64_t bytes = 0;
  time_t changed = 0;
  return clients.small->ioctx_create(pool.c_str(), io) == 0 &&
         io.stat("muster", &bytes, &changed) == -ESHUTDOWN;
}

// Ends clients. The last reference must not be one of their own threads': the end waits for these threads.
void LetGo(std::shared_ptr<Clients> clients) {
  while (clients.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void RadosStore::Take(std::shared_ptr<Clients> clients) {
  std::string id = IdOf(*clients->small, pool_);
  {
    const std::lock_guard lock(id_mutex_);
    id_ = std::move(id);
  }
  std::unique_lock lock(mutex_);
  std::shared_ptr<Clients> before = std::exchange(clients_, std::move(clients));
  listed_ = false;
  lock.unlock();
  if (before) LetGo(std::move(before));
}

// The first try is Open's as long as that waits for it.
void RadosStore::KeepConnected(const StoreOptions& options) {
  std::chrono::seconds pause = kConnectPause;
  for (bool listed = false;; listed = true) {
    for (;;) {
      auto clients = Connect(options, pool_);
      if (clients && listed && IsListed(**clients, pool_)) {
        clients =
            Error{Errc::kUnavailable, "store " + Describe() + ": " + kListed +
                                          ", and so is a new client (does the list have this host's address? "
                                          "see ceph osd blocklist ls)"};
      }
      const Status status = clients ? Status() : Status(clients.error());
      if (clients) Take(*std::move(clients));
      std::unique_lock lock(mutex_);
      tried_ = true;
      connected_ = status;
      changed_.notify_all();
      if (late_) options.late(connected_);
      if (connected_) break;
      if (!late_ && status.error().code != Errc::kUnavailable) return;
      if (changed_.wait_for(lock, pause, [&] { return closing_; })) return;
      if (listed) pause = std::min(2 * pause, kLongestConnectPause);
    }
    const auto since = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || listed_; });
    if (closing_) return;
    late_ = true;
    options.late(
        Error{Errc::kUnavailable, "store " + Describe() + ": " + kListed + "; a new client takes its place"});
    // The sooner clients are listed again, the longer the pause before the next ones.
    const bool lasted = std::chrono::steady_clock::now() - since > kLongestConnectPause;
    pause = lasted ? kConnectPause : std::min(2 * pause, kLongestConnectPause);
    if (!lasted && changed_.wait_for(lock, pause / 2, [&] { return closing_; })) return;
  }
}

Result<std::unique_ptr<Store>> RadosStore::Open(const StoreOptions& options, const std::string& pool) {
  auto store = std::make_unique<RadosStore>(pool);
  if (!options.late) {
    auto clients = Connect(options, pool);
    if (!clients) return clients.error();
    store->Take(*std::move(clients));
    return std::unique_ptr<Store>(std::move(store));
  }
  store->connecting_ = std::thread([raw = store.get(), options] { raw->KeepConnected(options); });
  {
    std::unique_lock lock(store->mutex_);
    store->changed_.wait_for(lock, kStorePatience, [&] { return store->tried_; });
    const Status connected = store->connected_;
    if (!connected && connected.error().code != Errc::kUnavailable) {
      lock.unlock();
      return connected.error();
    }
    store->late_ = !connected;
    if (!connected) options.late(connected);
  }
  return std::unique_ptr<Store>(std::move(store));
}

const bool registered = RegisterBackend("rados", &RadosStore::Open);

}  // namespace
}  // namespace muster

// Named by the link option of muster_store_rados, so that the linker takes this file although nothing calls
// it.
extern "C" const bool muster_store_rados_is_linked;
const bool muster_store_rados_is_linked = muster::registered;
