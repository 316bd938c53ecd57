#include "net/collectives/gloo_collectives.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <exception>
#include <utility>

#include "net/collectives/gloo_mesh.h"
#include "net/collectives/gloo_reduce_scatter.h"
#include "net/collectives/group_members.h"
#include "net/collectives/local_address.h"
#include "net/collectives/one_line.h"
#include "net/rendezvous/socket.h"

namespace muster {
namespace {

// An IPv4 address as a socket for both families shows it.
constexpr std::string_view kMapped = "::ffff:";

// Both algorithms add in an order that is fixed by the count of members and the length. Halving and doubling
// takes log2(size) exchanges where the ring takes size - 1, for the same bytes, but only on powers of two
// does it stay within the mesh's connections.
gloo::AllreduceOptions::Algorithm AlgorithmFor(int size) {
  return std::has_single_bit(static_cast<unsigned>(size)) ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                          : gloo::AllreduceOptions::Algorithm::RING;
}

// Gloo's options take a buffer as elements of a C++ type.
template <typename Options>
void SetOutput(Options& options, const Operation& operation, void* data) {
  switch (operation.type) {
    case DataType::kInt64:
      return options.setOutput(static_cast<std::int64_t*>(data), operation.count);
    case DataType::kFloat:
      return options.setOutput(static_cast<float*>(data), operation.count);
  }
}

class GlooCollectives final : public Collectives {
 public:
  // `mesh` is null in a group of one.
  GlooCollectives(const GroupOptions& options, std::unique_ptr<Members> members,
                  std::shared_ptr<GlooMesh> mesh)
      : Collectives(options, std::move(members)), mesh_(std::move(mesh)) {}

  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kHost; }
  [[nodiscard]] bool repeatable() const override { return true; }

 private:
  Status Carry(const Operation& operation, void* data,
               std::chrono::steady_clock::time_point deadline) override {
    if (mesh_ == nullptr) return {};
    mesh_->SetDeadline(deadline);
    try {
      Do(operation, data);
      return {};
    } catch (const std::exception& e) {
      const bool late = std::chrono::steady_clock::now() >= deadline;
      return Error{late ? Errc::kExhausted : Errc::kUnavailable,
                   "a member is lost or does not answer: " + OneLine(e.what())};
    }
  }

  // The members that wait for this one learn of it by its closing.
  void Cut(const std::string& why) override {
    if (mesh_ != nullptr) mesh_->Cut(why);
  }

  // Gloo takes it for granted that members send what others wait for: a longer message ends the process, a shorter one
  // passes for the whole. So what differs has another tag, and never meets.
  void Do(const Operation& operation, void* data) {
    const std::uint32_t tag = DigestOf(operation);
    switch (operation.kind) {
      case Operation::Kind::kAllReduce: {
        gloo::AllreduceOptions options(mesh_);
        SetOutput(options, operation, data);
        options.setAlgorithm(AlgorithmFor(size()));
        options.setReduceFunction(ReductionOf(operation.type, operation.op));
        options.setTag(tag);
        return gloo::allreduce(options);
      }
      case Operation::Kind::kReduceScatter:
        return muster::ReduceScatter(*mesh_, operation, static_cast<std::byte*>(data));
      case Operation::Kind::kAllGather: {
        gloo::AllgatherOptions options(mesh_);
        SetOutput(options, operation, data);
        options.setTag(tag);
        return gloo::allgather(options);
      }
      case Operation::Kind::kBroadcast: {
        gloo::BroadcastOptions options(mesh_);
        options.setOutput(static_cast<char*>(data), operation.bytes);
        options.setRoot(operation.root);
        options.setTag(tag);
        return gloo::broadcast(options);
      }
      case Operation::Kind::kBarrier: {
        gloo::BarrierOptions options(mesh_);
        options.setTag(tag);
        return gloo::barrier(options);
      }
    }
  }

  const std::shared_ptr<GlooMesh> mesh_;
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

// Connects to the other members.
Result<std::shared_ptr<GlooMesh>> Connect(const GroupOptions& options, const Exchange& exchange,
                                          const std::string& address, rendezvous::Deadline deadline) {
  IgnoreSigpipe();
  const std::string heading =
      "connecting rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) + ": ";
  try {
    auto mesh = std::make_shared<GlooMesh>(options.rank, options.size);
    auto device = gloo::transport::tcp::CreateDevice(Interface(options, address));
    if (Status connected = mesh->Connect(exchange, std::move(device), deadline); !connected) {
      return Error{connected.error().code, heading + connected.error().message};
    }
    gloo::BarrierOptions barrier(mesh);
    gloo::barrier(barrier);
    return mesh;
  } catch (const std::exception& e) {
    return Error{Errc::kUnavailable, heading + OneLine(e.what())};
  }
}

}  // namespace

Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options,
                                                         const Exchange& exchange, const std::string& address,
                                                         rendezvous::Deadline deadline) {
  Result<std::shared_ptr<GlooMesh>> mesh = Connect(options, exchange, address, deadline);
  if (!mesh) return mesh.error();
  return std::unique_ptr<Collectives>(std::make_unique<GlooCollectives>(options, nullptr, std::move(*mesh)));
}

Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options) {
  if (options.memory != MemoryKind::kHost)
    return Error{Errc::kInvalid, "collectives: gloo works on host memory only"};
  if (options.size == 1) {
    return std::unique_ptr<Collectives>(std::make_unique<GlooCollectives>(options, nullptr, nullptr));
  }
  const auto deadline = std::chrono::steady_clock::now() + options.connect_timeout;
  Result<std::unique_ptr<Members>> members = Members::Meet(options, deadline);
  if (!members) return members.error();
  const Result<std::string> address = (*members)->LocalAddress();
  if (!address) return address.error();
  const Exchange exchange = [&members](const std::string& key, const std::string& value,
                                       rendezvous::Deadline by) {
    return (*members)->Exchanged(key, value, by);
  };
  Result<std::shared_ptr<GlooMesh>> mesh = Connect(options, exchange, *address, deadline);
  if (!mesh) return mesh.error();
  if (Status listens = (*members)->Listen(); !listens) return listens.error();
  return std::unique_ptr<Collectives>(
      std::make_unique<GlooCollectives>(options, std::move(*members), std::move(*mesh)));
}

}  // namespace muster
