// Where gang records and checkpoints live: RADOS, or a directory. Two kinds of things are in it:
// objects (written once, read, removed) and heads (small guarded maps, changed by compare-and-swap).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

// `space` separates users (a RADOS namespace, a sub-directory): "u20001". `name` is built by Muster alone,
// from validated parts: letters, digits, '.', '_', '-', '/'.
struct ObjectName {
  std::string space;
  std::string name;
};

// A guarded map. `fence` says who may change it: a change names the fence it expects, and fails with
// kConflict when the head has another one.
struct Head {
  std::string fence;
  std::map<std::string, std::string> entries;
};

struct HeadUpdate {
  std::optional<std::string> expect_fence;  // nullopt: the head must not exist yet
  std::string new_fence;                    // may equal the expected one
  std::map<std::string, std::string> set;
  std::vector<std::string> remove;
  // Entries that must be so for the change to be made, for writers under one fence that do not know of each other; one that
  // is not there counts as "".
  std::map<std::string, std::string> expect = {};
};

// Memory that a store takes data from without a copy. A store may go on reading it after it has said that an operation is
// over, for one that has timed out may still be on its way: its content must not change while it is not idle.
class StoreBuffer {
 public:
  explicit StoreBuffer(std::span<std::byte> memory) : memory_(memory) {}
  virtual ~StoreBuffer() = default;
  StoreBuffer(const StoreBuffer&) = delete;
  StoreBuffer& operator=(const StoreBuffer&) = delete;
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  [[nodiscard]] virtual bool Idle() const { return true; }

 private:
  const std::span<std::byte> memory_;
};

// What was read; the owner keeps the memory.
struct StoreData {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Thread-safe. Synchronous calls may block up to the configured operation timeout, never for ever; a
// timed-out write's outcome is unknown (kUnavailable). Callbacks run on a thread of the store and must not
// block.
class Store {
 public:
  using Done = std::function<void(Status)>;
  using ReadDone = std::function<void(Result<StoreData>)>;

  virtual ~Store() = default;

  // For WriteAsync; not zeroed.
  virtual std::unique_ptr<StoreBuffer> NewBuffer(size_t bytes);
  // Writes the first `bytes` bytes of a buffer of this store durably as a whole object. The buffer must live, and its
  // content must stay, until `done` has been called.
  virtual void WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) = 0;
  // Reads up to `limit` bytes from the start of an object. kNotFound when it is not there.
  virtual void ReadAsync(const ObjectName& object, size_t limit, ReadDone done) = 0;

  virtual Status Write(const ObjectName& object, const std::string& data) = 0;
  virtual Result<std::string> Read(const ObjectName& object) = 0;
  // Success also when it is not there.
  virtual Status Remove(const ObjectName& object) = 0;
  // Names of the objects of a space that begin with `prefix`, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& space, const std::string& prefix) = 0;

  // The spaces that have anything in them, sorted. Slow where many objects are: it looks at all of them.
  virtual Result<std::vector<std::string>> ListSpaces() = 0;

  // kNotFound when the head does not exist.
  virtual Result<Head> ReadHead(const ObjectName& head) = 0;
  // All or nothing, durable when it returns success. kConflict when the fence, or an entry, is not the expected one.
  virtual Status UpdateHead(const ObjectName& head, const HeadUpdate& update) = 0;

  // The same for all hosts that use this store, and for no other store: "rados:FSID/POOL", "dir:NUMBER". "": not known, because
  // there is no connection yet, or a directory cannot keep its number. Does not block.
  [[nodiscard]] virtual std::string Id() const = 0;
  // What this store is, for messages: "rados:muster", "dir:/var/lib/muster".
  [[nodiscard]] virtual std::string Describe() const = 0;
  // Where an object lies, for messages, as the store's own tools find it: "alpha.u1000/data/x in rados:muster".
  [[nodiscard]] virtual std::string Where(const ObjectName& object) const {
    return object.space + "/" + object.name + " in " + Describe();
  }
};

struct StoreOptions {
  std::string url;  // "rados:POOL" or "dir:/PATH"
  std::string ceph_conf = "/etc/ceph/ceph.conf";
  std::string ceph_user = "muster";  // client.NAME
  int operation_timeout_seconds = 30;
  // Set: OpenStore does not wait longer than kStorePatience for a store that does not answer. Its operations give kUnavailable
  // until it does; it is tried again and again. Told on a thread of the store: why a try has failed (the first time: that it
  // is not waited for any more), that Ceph has put the client on its blocklist, and success when it is there after that. Must not block.
  std::function<void(const Status&)> late = {};
};
inline constexpr std::chrono::seconds kStorePatience{3};

// Connects. An error names the url and what to check.
Result<std::unique_ptr<Store>> OpenStore(const StoreOptions& options);

}  // namespace muster
