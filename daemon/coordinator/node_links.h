// The links of a coordinator to the agents of its gang's nodes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/coordinator/core.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/link/link.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

// On the loop's thread only.
class NodeLinks {
 public:
  NodeLinks(const GangJob& job, const CoordinatorCore& core) : job_(job), core_(core) {}

  // The node has this link from now on; the link that the node had before is closed.
  void Attach(uint32_t node, std::shared_ptr<Link> link);
  // The link has ended. False: it was not the node's any more.
  bool Detach(uint32_t node, const Link* link);
  // The node has registered under this name.
  void SetName(uint32_t node, const std::string& name) { nodes_[node].name = name; }
  // The node has no link from now on.
  void Close(uint32_t node, const std::string& why);
  void CloseAll(const std::string& why);

  // Null: the node has no link.
  [[nodiscard]] std::shared_ptr<Link> Of(uint32_t node) const;
  // "": the node has not registered.
  [[nodiscard]] std::string NameOf(uint32_t node) const;
  // The nodes that have a link.
  [[nodiscard]] std::set<uint32_t> Here() const;

  // A message of this gang and term, to be filled.
  [[nodiscard]] v1::CoordinatorMessage NewMessage() const;
  // What is sent to a node without a link is dropped.
  void Send(uint32_t node, const v1::CoordinatorMessage& message) const;
  void Send(uint32_t node, const std::string& payload) const;
  void Broadcast(const v1::CoordinatorMessage& message) const;

 private:
  struct Node {
    std::shared_ptr<Link> link;
    std::string name;
  };
  const GangJob& job_;
  const CoordinatorCore& core_;
  std::map<uint32_t, Node> nodes_;
};

}  // namespace muster
