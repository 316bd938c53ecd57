// The connections of one member for Gloo's algorithms.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "net/rendezvous/socket.h"

namespace muster {

// The ranks at a distance of a power of two from `rank`, around a ring of `size`: sorted, without `rank`
// itself. Ring, halving and doubling, binomial tree and dissemination barrier need these and no others, so a
// member has 2 log2(size) connections, not size - 1. The relation is symmetric.
[[nodiscard]] std::vector<int> MeshPeers(int rank, int size);

// A Gloo context that is connected to MeshPeers. Gloo's own full mesh would connect everybody with everybody.
class GlooMesh : public gloo::Context {
 public:
  GlooMesh(int rank, int size) : gloo::Context(rank, size) {}

  // Gives the others this member's addresses, takes its peers', connects. Gloo's part throws; the caller turns that
  // into an error value.
  [[nodiscard]] Status Connect(const Exchange& exchange, std::shared_ptr<gloo::transport::Device> device,
                               rendezvous::Deadline deadline);

  // By when all that is begun from now on must be done; at first that of Connect. Gloo's own timeouts do not count.
  void SetDeadline(rendezvous::Deadline deadline);

  // Ends all connections: who waits here gets an exception that says `why`, who waits elsewhere one that says that
  // this member has closed. Any thread may call it, once it is connected.
  void Cut(const std::string& why);
};

}  // namespace muster
