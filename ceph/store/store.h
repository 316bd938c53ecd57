// Where gang records and checkpoints live: RADOS, or a directory. Two kinds of things are in it:
// objects (written once, read, removed) and heads (small guarded maps, changed by compare-and-swap).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"

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
};

// Thread-safe. Synchronous calls may block up to the configured operation timeout, never for ever; a
// timed-out write's outcome is unknown (kUnavailable). Callbacks run on a thread of the store and must not
// block.
class Store {
 public:
  using Done = std::function<void(Status)>;
  using ReadDone = std::function<void(Result<size_t>)>;

  virtual ~Store() = default;

  // Writes a whole object durably. `data` must stay valid and unchanged until `done` has been called.
  virtual void WriteAsync(const ObjectName& object, std::span<const std::byte> data, Done done) = 0;
  // Reads up to into.size() bytes from the start of an object; gives the bytes read. kNotFound when it is not
  // there.
  virtual void ReadAsync(const ObjectName& object, std::span<std::byte> into, ReadDone done) = 0;

  virtual Status Write(const ObjectName& object, const std::string& data) = 0;
  virtual Result<std::string> Read(const ObjectName& object) = 0;
  // Success also when it is not there.
  virtual Status Remove(const ObjectName& object) = 0;
  // Names of the objects of a space that begin with `prefix`, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& space, const std::string& prefix) = 0;

  // kNotFound when the head does not exist.
  virtual Result<Head> ReadHead(const ObjectName& head) = 0;
  // All or nothing, durable when it returns success. kConflict when the fence is not the expected one.
  virtual Status UpdateHead(const ObjectName& head, const HeadUpdate& update) = 0;

  // What this store is, for messages: "rados:muster", "dir:/var/lib/muster".
  [[nodiscard]] virtual std::string Describe() const = 0;
};

struct StoreOptions {
  std::string url;  // "rados:POOL" or "dir:/PATH"
  std::string ceph_conf = "/etc/ceph/ceph.conf";
  std::string ceph_user = "muster";  // client.NAME
  int operation_timeout_seconds = 30;
};

// Connects. An error names the url and what to check.
Result<std::unique_ptr<Store>> OpenStore(const StoreOptions& options);

}  // namespace muster
