// A store in memory that fails as told.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "ceph/base/worker_pool.h"
#include "ceph/store/store.h"

namespace muster {

class MemoryStore final : public Store {
 public:
  // Called before each operation with its name ("write", "read", "remove", "list", "read_head",
  // "update_head") and its object; an error is what the operation then gives.
  using Fault = std::function<Status(const std::string& operation, const std::string& name)>;

  void SetFault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  // The stored bytes of an object, to be changed by a test; nullptr when it is not there.
  std::string* Bytes(const std::string& name) {
    const auto found = objects_.find(name);
    return found == objects_.end() ? nullptr : &found->second;
  }
  std::map<std::string, std::string>& objects() { return objects_; }
  std::map<std::string, Head>& heads() { return heads_; }
  size_t most_at_once() const { return most_at_once_; }

  void WriteAsync(const ObjectName& object, std::span<const std::byte> data, Done done) override {
    Begin();
    pool_.Post([this, object, data, done = std::move(done)] {
      const Status status =
          Write(object, std::string(reinterpret_cast<const char*>(data.data()), data.size()));
      End();
      done(status);
    });
  }

  void ReadAsync(const ObjectName& object, std::span<std::byte> into, ReadDone done) override {
    Begin();
    pool_.Post([this, object, into, done = std::move(done)] {
      const Result<std::string> data = Read(object);
      End();
      if (!data) return done(data.error());
      const size_t n = std::min(into.size(), data->size());
      std::memcpy(into.data(), data->data(), n);
      done(n);
    });
  }

  Status Write(const ObjectName& object, const std::string& data) override {
    if (Status status = Ask("write", object.name); !status) return status;
    const std::lock_guard lock(mutex_);
    objects_[object.name] = data;
    return {};
  }

  Result<std::string> Read(const ObjectName& object) override {
    if (Status status = Ask("read", object.name); !status) return status.error();
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(object.name);
    if (found == objects_.end())
      return Error{Errc::kNotFound, "cannot read " + object.name + ": it is not there"};
    return found->second;
  }

  Status Remove(const ObjectName& object) override {
    if (Status status = Ask("remove", object.name); !status) return status;
    const std::lock_guard lock(mutex_);
    objects_.erase(object.name);
    return {};
  }

  Result<std::vector<std::string>> List(const std::string& /*space*/, const std::string& prefix) override {
    if (Status status = Ask("list", prefix); !status) return status.error();
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, data] : objects_) {
      if (name.starts_with(prefix)) names.push_back(name);
    }
    return names;
  }

  Result<Head> ReadHead(const ObjectName& head) override {
    if (Status status = Ask("read_head", head.name); !status) return status.error();
    const std::lock_guard lock(mutex_);
    const auto found = heads_.find(head.name);
    if (found == heads_.end()) return Error{Errc::kNotFound, "no head " + head.name};
    return found->second;
  }

  Status UpdateHead(const ObjectName& name, const HeadUpdate& update) override {
    if (Status status = Ask("update_head", name.name); !status) return status;
    const std::lock_guard lock(mutex_);
    const auto found = heads_.find(name.name);
    const bool there = found != heads_.end();
    if (there != update.expect_fence.has_value() || (there && found->second.fence != *update.expect_fence)) {
      return Error{Errc::kConflict, "head " + name.name + " has another fence"};
    }
    Head& head = heads_[name.name];
    head.fence = update.new_fence;
    for (const std::string& key : update.remove) head.entries.erase(key);
    for (const auto& [key, value] : update.set) head.entries[key] = value;
    return {};
  }

  [[nodiscard]] std::string Describe() const override { return "memory"; }

 private:
  Status Ask(const std::string& operation, const std::string& name) {
    Fault fault;
    {
      const std::lock_guard lock(mutex_);
      fault = fault_;
    }
    return fault ? fault(operation, name) : Status();
  }
  void Begin() {
    const std::lock_guard lock(mutex_);
    most_at_once_ = std::max(most_at_once_, ++at_once_);
  }
  void End() {
    const std::lock_guard lock(mutex_);
    --at_once_;
  }

  std::mutex mutex_;
  Fault fault_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, Head> heads_;
  size_t at_once_ = 0;
  size_t most_at_once_ = 0;
  WorkerPool pool_{3, "memory-store"};
};

}  // namespace muster
