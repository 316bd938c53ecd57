#include "net/collectives/gloo_collectives.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/transport/tcp/device.h>

#include <bit>
#include <csignal>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "net/collectives/gloo_mesh.h"
#include "net/collectives/local_address.h"
#include "net/rendezvous/client.h"
#include "net/rendezvous/rendezvous_server.h"
#include "net/rendezvous/socket.h"

namespace muster {
namespace {

// An IPv4 address as a socket for both families shows it.
constexpr std::string_view kMapped = "::ffff:";

void AddInto(void* out, const void* left, const void* right, std::size_t count) {
  auto* sum = static_cast<float*>(out);
  const auto* a = static_cast<const float*>(left);
  const auto* b = static_cast<const float*>(right);
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

// Both algorithms add in an order that is fixed by the count of members and the length. Halving and doubling
// takes log2(size) exchanges where the ring takes size - 1, for the same bytes, but only on powers of two
// does it stay within the mesh's connections.
gloo::AllreduceOptions::Algorithm AlgorithmFor(int size) {
  return std::has_single_bit(static_cast<unsigned>(size)) ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                          : gloo::AllreduceOptions::Algorithm::RING;
}

class GlooCollectives final : public Collectives {
 public:
  // `mesh` is null in a group of one.
  GlooCollectives(const GroupOptions& options, std::shared_ptr<GlooMesh> mesh)
      : rank_(options.rank),
        size_(options.size),
        timeout_(options.operation_timeout),
        mesh_(std::move(mesh)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kHost; }

  Status AllReduceSum(std::span<float> values) override {
    if (values.empty()) return {};
    return Run("all-reduce of " + std::to_string(values.size()) + " values", [&] {
      gloo::AllreduceOptions operation(mesh_);
      operation.setOutput(values.data(), values.size());
      operation.setAlgorithm(AlgorithmFor(size_));
      operation.setReduceFunction(&AddInto);
      operation.setTimeout(timeout_);
      gloo::allreduce(operation);
    });
  }

  Status Broadcast(std::span<std::byte> bytes, int root) override {
    if (root < 0 || root >= size_) {
      return Error{Errc::kInvalid,
                   "broadcast from rank " + std::to_string(root) + " in a group of " + std::to_string(size_)};
    }
    if (bytes.empty()) return {};
    return Run("broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root),
               [&] {
                 gloo::BroadcastOptions operation(mesh_);
                 operation.setOutput(reinterpret_cast<char*>(bytes.data()), bytes.size());
                 operation.setRoot(root);
                 operation.setTimeout(timeout_);
                 gloo::broadcast(operation);
               });
  }

  Status Barrier() override {
    return Run("barrier", [&] {
      gloo::BarrierOptions operation(mesh_);
      operation.setTimeout(timeout_);
      gloo::barrier(operation);
    });
  }

 private:
  Status Run(const std::string& what, const std::function<void()>& operation) {
    if (mesh_ == nullptr) return {};
    if (!broken_.empty()) return Error{Errc::kUnavailable, broken_};
    try {
      operation();
      return {};
    } catch (const std::exception& e) {
      broken_ = what + ", rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                ": a member is lost or does not answer: " + e.what();
    }
    // The members that wait for this one learn of the loss by its closing.
    try {
      mesh_->closeConnections();
    } catch (const std::exception& e) {
      broken_ += std::string("; closing: ") + e.what();
    }
    return Error{Errc::kUnavailable, broken_};
  }

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<GlooMesh> mesh_;
  std::string broken_;
};

void IgnoreSigpipe() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) == 0 &&
      current.sa_handler == SIG_DFL) {
    current.sa_handler = SIG_IGN;
    (void)::sigaction(SIGPIPE, &current, nullptr);
  }
}

// Whether every member is on this host, by the word of whoever chose MASTER_ADDR.
bool AllHere(const GroupOptions& options) {
  return rendezvous::IsLoopback(options.master_addr) || options.master_addr == "localhost";
}

// `way`: this member's address on its connection to rank 0. It is good for the data too, but on rank 0's own
// host it may be a loopback one that members elsewhere cannot reach, where /etc/hosts gives the host's name
// such an address.
gloo::transport::tcp::attr Interface(const GroupOptions& options, std::string way) {
  gloo::transport::tcp::attr attributes;
  if (!options.interface.empty()) {
    attributes.iface = options.interface;
    return attributes;
  }
  if (rendezvous::IsLoopback(way) && !AllHere(options)) way = OwnNameAddress().value_or(way);
  if (way.starts_with(kMapped)) way.erase(0, kMapped.size());
  attributes.hostname = way;
  return attributes;
}

// Rank 0 serves, everybody connects; the server is needed until the first barrier is passed.
Result<std::shared_ptr<GlooMesh>> Meet(const GroupOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.connect_timeout;
  std::unique_ptr<rendezvous::Server> server;
  if (options.rank == 0) {
    const auto members = static_cast<std::size_t>(options.size);
    Result<std::unique_ptr<rendezvous::Server>> started =
        rendezvous::Server::Start({.port = options.master_port,
                                   .round = options.round,
                                   .max_entries = members,
                                   .max_connections = members + 64});
    if (!started) return started.error();
    server = std::move(*started);
  }
  Result<rendezvous::Client> store = rendezvous::Client::Connect({.host = options.master_addr,
                                                                  .port = options.master_port,
                                                                  .round = options.round,
                                                                  .deadline = deadline});
  if (!store) return store.error();
  Result<std::string> way = store->LocalAddress();
  if (!way) return way.error();
  try {
    auto mesh = std::make_shared<GlooMesh>(options.rank, options.size);
    auto device = gloo::transport::tcp::CreateDevice(Interface(options, std::move(*way)));
    if (Status connected = mesh->Connect(*store, std::move(device), options.connect_timeout); !connected) {
      return connected.error();
    }
    gloo::BarrierOptions barrier(mesh);
    barrier.setTimeout(options.connect_timeout);
    gloo::barrier(barrier);
    return mesh;
  } catch (const std::exception& e) {
    return Error{Errc::kUnavailable, "connecting rank " + std::to_string(options.rank) + " of " +
                                         std::to_string(options.size) + " with its peers: " + e.what()};
  }
}

}  // namespace

Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options) {
  std::shared_ptr<GlooMesh> mesh;
  if (options.size > 1) {
    IgnoreSigpipe();
    Result<std::shared_ptr<GlooMesh>> met = Meet(options);
    if (!met) return met.error();
    mesh = std::move(*met);
  }
  return std::unique_ptr<Collectives>(std::make_unique<GlooCollectives>(options, std::move(mesh)));
}

}  // namespace muster
