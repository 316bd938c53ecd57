// How the members of a communicator find each other, and how they end together.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "net/rendezvous/client.h"
#include "net/rendezvous/rendezvous_server.h"

namespace muster {

// That a member has failed, and of what.
struct Failure {
  int rank = 0;
  std::string why;
};
// As in "rank 1 has failed: NCCL 2.27.3 was not done within 1000 ms".
[[nodiscard]] std::string Describe(const Failure& failure);

// A member's connection to the others, through the rendezvous at rank 0, which rank 0 serves for as long as its own one of
// these lives.
//
// Who fails says so, and all others hear of it. Then each says where it is, and rank 0 says who has ended, who says nothing
// and who is elsewhere. So all members give the same reasons, however far apart their own deadlines are. Whether a member's
// process has ended is known from its connection, not from its silence.
//
// Thread-safe from Listen on.
class Members {
 public:
  // `keys_a_member`: how many keys each member may write into the store besides those that this class writes.
  [[nodiscard]] static Result<std::unique_ptr<Members>> Meet(const GroupOptions& options,
                                                             std::size_t keys_a_member,
                                                             rendezvous::Deadline deadline);

  // For whatever they need to tell each other to begin; not any more after Listen.
  [[nodiscard]] rendezvous::Client& store() { return *store_; }

  // They have begun.
  [[nodiscard]] Status Listen();

  // The failure of whichever member failed first, as far as it is known here. Does not wait.
  [[nodiscard]] std::optional<Failure> Heard();

  // This member has failed. The first failure of all, which may be this one.
  Failure Tell(const std::string& why);

  // After Tell, until `deadline` at most: how the other members are, in words. Empty: all are in `where`, as this one is.
  [[nodiscard]] std::string Compare(const std::string& where, rendezvous::Deadline deadline);

 private:
  Members(const GroupOptions& options, std::unique_ptr<rendezvous::Server> server, rendezvous::Client store);
  [[nodiscard]] std::optional<Failure> HeardSoFar();
  // What rank 0 hears from the others until then.
  [[nodiscard]] std::string Gather(const std::string& where, rendezvous::Deadline deadline);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds end_timeout_;
  const std::unique_ptr<rendezvous::Server> server_;  // on rank 0
  std::mutex mutex_;                                  // guards what follows
  std::optional<rendezvous::Client> store_;           // until the members part
  std::optional<Failure> first_;
};

}  // namespace muster
