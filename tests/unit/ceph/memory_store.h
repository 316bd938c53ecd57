// A store in memory that fails as told.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/worker_pool.h"
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
  // So many of the next updates of heads are carried out, and their answers are lost.
  void LoseAnswers(size_t count) {
    const std::lock_guard lock(mutex_);
    lost_answers_ = count;
  }
  // What `look` gives of the objects; nobody changes them meanwhile.
  template <typename Look>
  auto Locked(Look look) {
    const std::lock_guard lock(mutex_);
    return look(objects_);
  }
  // While nobody uses the store: the stored bytes of an object, to be changed by a test; nullptr when it is not there.
  std::string* Bytes(const std::string& name) {
    const auto found = objects_.find(name);
    return found == objects_.end() ? nullptr : &found->second;
  }
  std::map<std::string, std::string>& objects() { return objects_; }
  void SetId(std::string id) { id_ = std::move(id); }
  // As after operations that have timed out: buffers stay in use.
  void KeepBuffersInUse() { buffers_in_use_ = true; }
  size_t buffers_made() const { return buffers_made_; }
  size_t buffers_there() const { return buffers_there_; }
  std::map<std::string, Head>& heads() { return heads_; }
  // Of asynchronous operations, however many are under way.
  void SetLatency(std::chrono::milliseconds latency) { latency_ = latency; }
  size_t most_at_once() const { return most_at_once_; }
  size_t at_once() {
    const std::lock_guard lock(mutex_);
    return at_once_;
  }

  std::unique_ptr<StoreBuffer> NewBuffer(size_t bytes) override {
    ++buffers_made_;
    return std::make_unique<Buffer>(bytes, buffers_in_use_, buffers_there_);
  }

  void WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) override {
    Begin();
    pool_.PostAfter(latency_, [this, object, data = buffer.memory().first(bytes), done = std::move(done)] {
      const Status status =
          Write(object, std::string(reinterpret_cast<const char*>(data.data()), data.size()));
      End();
      done(status);
    });
  }

  void ReadAsync(const ObjectName& object, size_t limit, ReadDone done) override {
    Begin();
    pool_.PostAfter(latency_, [this, object, limit, done = std::move(done)] {
      const Result<std::string> read = Read(object);
      End();
      if (!read) return done(read.error());
      const auto data = std::make_shared<std::string>(read->substr(0, limit));
      done(StoreData{std::as_bytes(std::span(*data)), data});
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

  Result<std::vector<std::string>> ListSpaces() override { return std::vector<std::string>{"u1"}; }

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
    for (const auto& [key, value] : update.expect) {
      const bool has = there && found->second.entries.contains(key);
      if ((has ? found->second.entries.at(key) : "") != value)
        return Error{Errc::kConflict, "head " + name.name + " was changed"};
    }
    Head& head = heads_[name.name];
    head.fence = update.new_fence;
    for (const std::string& key : update.remove) head.entries.erase(key);
    for (const auto& [key, value] : update.set) head.entries[key] = value;
    if (lost_answers_ == 0) return {};
    --lost_answers_;
    return Error{Errc::kUnavailable, "no answer"};
  }

  [[nodiscard]] std::string Id() const override { return id_; }
  [[nodiscard]] std::string Describe() const override { return "memory"; }

 private:
  class Buffer final : public StoreBuffer {
   public:
    Buffer(size_t bytes, const std::atomic<bool>& in_use, std::atomic<size_t>& there)
        : Buffer(new std::byte[bytes], bytes, in_use, there) {}
    ~Buffer() override { --there_; }
    [[nodiscard]] bool Idle() const override { return !in_use_; }

   private:
    Buffer(std::byte* memory, size_t bytes, const std::atomic<bool>& in_use, std::atomic<size_t>& there)
        : StoreBuffer({memory, bytes}), memory_(memory), in_use_(in_use), there_(there) {
      ++there_;
    }
    const std::unique_ptr<std::byte[]> memory_;
    const std::atomic<bool>& in_use_;
    std::atomic<size_t>& there_;
  };

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
  std::atomic<bool> buffers_in_use_{false};
  std::atomic<size_t> buffers_made_{0};
  std::atomic<size_t> buffers_there_{0};
  std::atomic<std::chrono::milliseconds> latency_{std::chrono::milliseconds(0)};
  std::string id_ = "memory:1";
  size_t lost_answers_ = 0;
  std::map<std::string, std::string> objects_;
  std::map<std::string, Head> heads_;
  size_t at_once_ = 0;
  size_t most_at_once_ = 0;
  WorkerPool pool_{6, "memory-store"};
};

}  // namespace muster
