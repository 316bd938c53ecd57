#include "ceph/store/cluster_store.h"

#include <utility>

#include "ceph/store/names.h"

namespace muster {
namespace {

constexpr size_t kMostName = 128;

bool FitsASpace(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

}  // namespace

void ClusterStore::SetCluster(const std::string& name) {
  std::string fits = name.substr(0, kMostName);
  for (char& c : fits) {
    if (!FitsASpace(c)) c = '_';
  }
  const std::lock_guard lock(mutex_);
  cluster_ = std::move(fits);
}

std::string ClusterStore::cluster() const {
  const std::lock_guard lock(mutex_);
  return cluster_;
}

Result<std::string> ClusterStore::Prefix() const {
  std::string name = cluster();
  if (name.empty()) {
    return Error{Errc::kUnavailable,
                 "cannot use " + store_->Describe() +
                     ": Slurm has not said yet how this cluster is called (does slurmctld answer? or give "
                     "`cluster` in muster.yaml)"};
  }
  return name + ".";
}

Result<ObjectName> ClusterStore::Below(const ObjectName& object) const {
  Result<std::string> prefix = Prefix();
  if (!prefix) return prefix.error();
  if (Status good = CheckSpace(object.space); !good) return good.error();  // it may be a user's word
  return ObjectName{*prefix + object.space, object.name};
}

std::string ClusterStore::Id() const {
  const std::string name = cluster();
  const std::string id = store_->Id();
  return name.empty() || id.empty() ? "" : name + " in " + id;
}

std::string ClusterStore::Where(const ObjectName& object) const {
  const auto below = Below(object);
  return store_->Where(below ? *below : object);
}

void ClusterStore::WriteAsync(const ObjectName& object, const StoreBuffer& buffer, size_t bytes, Done done) {
  const auto below = Below(object);
  if (!below) return done(below.error());
  store_->WriteAsync(*below, buffer, bytes, std::move(done));
}

void ClusterStore::ReadAsync(const ObjectName& object, size_t limit, ReadDone done) {
  const auto below = Below(object);
  if (!below) return done(below.error());
  store_->ReadAsync(*below, limit, std::move(done));
}

Status ClusterStore::Write(const ObjectName& object, const std::string& data) {
  const auto below = Below(object);
  if (!below) return below.error();
  return store_->Write(*below, data);
}

Result<std::string> ClusterStore::Read(const ObjectName& object) {
  const auto below = Below(object);
  if (!below) return below.error();
  return store_->Read(*below);
}

Status ClusterStore::Remove(const ObjectName& object) {
  const auto below = Below(object);
  if (!below) return below.error();
  return store_->Remove(*below);
}

Result<std::vector<std::string>> ClusterStore::List(const std::string& space, const std::string& prefix) {
  const auto cluster = Prefix();
  if (!cluster) return cluster.error();
  if (Status good = CheckSpace(space); !good) return good.error();
  return store_->List(*cluster + space, prefix);
}

Result<std::vector<std::string>> ClusterStore::ListSpaces() {
  const auto cluster = Prefix();
  if (!cluster) return cluster.error();
  Result<std::vector<std::string>> all = store_->ListSpaces();
  if (!all) return all;
  std::vector<std::string> spaces;
  for (const std::string& space : *all) {
    if (space.starts_with(*cluster)) spaces.push_back(space.substr(cluster->size()));
  }
  return spaces;
}

Result<Head> ClusterStore::ReadHead(const ObjectName& head) {
  const auto below = Below(head);
  if (!below) return below.error();
  return store_->ReadHead(*below);
}

Status ClusterStore::UpdateHead(const ObjectName& head, const HeadUpdate& update) {
  const auto below = Below(head);
  if (!below) return below.error();
  return store_->UpdateHead(*below, update);
}

}  // namespace muster
