#include "daemon/coordinator/node_links.h"

#include <utility>

namespace muster {

void NodeLinks::Attach(uint32_t node, std::shared_ptr<Link> link) {
  Node& attached = nodes_[node];
  if (attached.link && attached.link != link) attached.link->Close("the same node has connected again");
  attached.link = std::move(link);
}

bool NodeLinks::Detach(uint32_t node, const Link* link) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.link.get() != link) return false;
  found->second.link.reset();
  return true;
}

void NodeLinks::Close(uint32_t node, const std::string& why) {
  Node& closed = nodes_[node];
  if (closed.link) std::exchange(closed.link, nullptr)->Close(why);
}

void NodeLinks::CloseAll(const std::string& why) {
  for (const auto& [index, node] : nodes_) {
    if (node.link) node.link->Close(why);
  }
}

std::shared_ptr<Link> NodeLinks::Of(uint32_t node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : found->second.link;
}

std::string NodeLinks::NameOf(uint32_t node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? "" : found->second.name;
}

std::set<uint32_t> NodeLinks::Here() const {
  std::set<uint32_t> here;
  for (const auto& [index, node] : nodes_) {
    if (node.link) here.insert(index);
  }
  return here;
}

v1::CoordinatorMessage NodeLinks::NewMessage() const {
  v1::CoordinatorMessage message;
  message.set_gang(job_.Id());
  message.set_term(core_.fence().term());
  return message;
}

void NodeLinks::Send(uint32_t node, const v1::CoordinatorMessage& message) const {
  Send(node, message.SerializeAsString());
}

void NodeLinks::Send(uint32_t node, const std::string& payload) const {
  if (const auto link = Of(node)) link->Send(payload);
}

void NodeLinks::Broadcast(const v1::CoordinatorMessage& message) const {
  for (const auto& [index, node] : nodes_) Send(index, message);
}

}  // namespace muster
