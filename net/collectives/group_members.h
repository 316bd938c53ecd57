// How the members of a communicator find each other, and how they end together.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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
// these lives. In a gang its port is the kernel's choice, and the exchange tells the members of it and of the round, which is
// a secret: nobody else is served.
//
// Who fails says so, and all others hear of it. Then each says where it is, and rank 0 says who has ended, who says nothing
// and who is elsewhere. So all members give the same reasons, however far apart their own deadlines are. Whether a member's
// process has ended is known from its connection, not from its silence.
//
// Thread-safe from Listen on.
class Members {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Members>> Meet(const GroupOptions& options,
                                                             rendezvous::Deadline deadline);

  // What they need to tell each other to begin, as Exchange says: once, and before Listen.
  [[nodiscard]] Result<std::vector<std::string>> Exchanged(const std::string& key, const std::string& value,
                                                           rendezvous::Deadline deadline);

  // The address from which this member reaches rank 0, in numbers. Before Listen.
  [[nodiscard]] Result<std::string> LocalAddress() const { return store_->LocalAddress(); }

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

  const GroupOptions options_;
  const std::unique_ptr<rendezvous::Server> server_;  // on rank 0
  std::mutex mutex_;                                  // guards what follows
  std::optional<rendezvous::Client> store_;           // until the members part
  std::optional<Failure> first_;
};

}  // namespace muster
