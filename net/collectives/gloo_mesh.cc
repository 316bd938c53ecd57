#include "net/collectives/gloo_mesh.h"

#include <gloo/transport/pair.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "net/collectives/gloo_transport.h"

namespace muster {
namespace {

constexpr const char* kAddressesKey = "collectives.gloo";

// What member `from` gave for member `to`: one address for each of its peers, in their order, all of the same length.
Result<std::vector<char>> AddressFor(const std::string& given, int from, int to, int size) {
  const std::vector<int> peers = MeshPeers(from, size);
  const auto found = std::lower_bound(peers.begin(), peers.end(), to);
  if (given.empty() || given.size() % peers.size() != 0 || found == peers.end() || *found != to) {
    return Error{Errc::kInvalid, "rank " + std::to_string(from) + " gave " + std::to_string(given.size()) +
                                     " bytes, not addresses for " + std::to_string(peers.size()) +
                                     " peers; is its WORLD_SIZE " + std::to_string(size) + " too?"};
  }
  const auto bytes = static_cast<std::ptrdiff_t>(given.size() / peers.size());
  const auto begin = given.begin() + (found - peers.begin()) * bytes;
  return std::vector<char>(begin, begin + bytes);
}

}  // namespace

std::vector<int> MeshPeers(int rank, int size) {
  std::vector<int> peers;
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    peers.push_back(static_cast<int>((rank + distance) % size));
    peers.push_back(static_cast<int>((rank + size - distance) % size));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

Status GlooMesh::Connect(const Exchange& exchange, std::shared_ptr<gloo::transport::Device> device,
                         rendezvous::Deadline deadline) {
  const std::vector<int> peers = MeshPeers(rank, size);
  auto transport = device->createContext(rank, size);
  transport->setTimeout(TimeUntil(deadline));
  std::string addresses;
  for (const int peer : peers) {
    auto& pair = transport->createPair(peer);
    pair->setLocalRank(0);  // Gloo reads it in no path that is used here, and leaves it uninitialised
    const std::vector<char> bytes = pair->address().bytes();
    addresses.append(bytes.begin(), bytes.end());
  }
  const Result<std::vector<std::string>> given = exchange(kAddressesKey, addresses, deadline);
  if (!given) return given.error();
  // Side by side: Gloo's event loop lets each connection wait for its next tick, up to 10 ms. A future's
  // destructor waits for its thread, so none outlives this function; each gives up at the transport's
  // timeout.
  std::vector<std::future<void>> connections;
  for (const int peer : peers) {
    Result<std::vector<char>> address =
        AddressFor((*given)[static_cast<std::size_t>(peer)], peer, rank, size);
    if (!address) return address.error();
    connections.push_back(std::async(
        std::launch::async,
        [pair = transport->getPair(peer).get(), bytes = std::move(*address)] { pair->connect(bytes); }));
  }
  for (std::future<void>& connection : connections) connection.get();
  device_ = std::move(device);
  transportContext_ = std::make_shared<CuttableTransport>(std::move(transport), deadline);
  return {};
}

void GlooMesh::SetDeadline(rendezvous::Deadline deadline) {
  static_cast<CuttableTransport&>(*transportContext_).SetDeadline(deadline);
}

void GlooMesh::Cut(const std::string& why) {
  for (const int peer : MeshPeers(rank, size)) {
    try {
      getPair(peer)->close();
    } catch (const std::exception&) {
      continue;  // it has failed already
    }
  }
  static_cast<CuttableTransport&>(*transportContext_).Cut(why);
}

}  // namespace muster
