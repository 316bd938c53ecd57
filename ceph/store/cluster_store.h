// The part of a store that is one Slurm cluster's. Users' numbers and jobs' numbers are the same in every cluster: what two clusters
// keep in one pool must not meet.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ceph/store/store.h"

namespace muster {

// Thread-safe. The space "u20001" is CLUSTER.u20001 in the store below. Until the cluster's name is known all operations give
// kUnavailable.
class ClusterStore final : public Store {
 public:
  explicit ClusterStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  // What a space's name cannot have becomes "_".
  void SetCluster(const std::string& name);
  // "": not known yet.
  [[nodiscard]] std::string cluster() const;

  std::unique_ptr<StoreBuffer> NewBuffer(size_t bytes) override { return store_->NewBuffer(bytes); }
  void WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) override;
  void ReadAsync(const ObjectName& object, size_t limit, ReadDone done) override;
  Status Write(const ObjectName& object, const std::string& data) override;
  Result<std::string> Read(const ObjectName& object) override;
  Status Remove(const ObjectName& object) override;
  Result<std::vector<std::string>> List(const std::string& space, const std::string& prefix) override;
  // This cluster's.
  Result<std::vector<std::string>> ListSpaces() override;
  Result<Head> ReadHead(const ObjectName& head) override;
  Status UpdateHead(const ObjectName& head, const HeadUpdate& update) override;
  // "CLUSTER in " and the store's.
  [[nodiscard]] std::string Id() const override;
  [[nodiscard]] std::string Describe() const override { return store_->Describe(); }
  [[nodiscard]] std::string Where(const ObjectName& object) const override;

 private:
  Result<std::string> Prefix() const;
  Result<ObjectName> Below(const ObjectName& object) const;

  const std::shared_ptr<Store> store_;
  mutable std::mutex mutex_;
  std::string cluster_;
};

}  // namespace muster
