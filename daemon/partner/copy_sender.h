// Copies this node's shards of committed checkpoints to the node that is its partner.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/own_shards.h"

namespace muster {

class PartnerStream;

// A thread with the lowest priority, and nobody waits for it: what it does not come to is dropped for what is newer. For one
// generation of a gang. The destructor ends what is on its way, which may take long where the resolver does.
class CopySender {
 public:
  CopySender(std::string gang, std::string partner, uint16_t port);
  ~CopySender();
  CopySender(const CopySender&) = delete;
  CopySender& operator=(const CopySender&) = delete;

  // Takes the place of an older one of the same rank that still waits, which is given back: to let its memory go takes time.
  // Thread-safe.
  std::optional<CommittedShard> Push(CommittedShard shard);

 private:
  void Run();
  Status Copy(PartnerStream& stream, const CommittedShard& shard, uint64_t* sent) const;
  void Complain(const Error& why);

  const std::string gang_;
  const std::string partner_;
  const uint16_t port_;
  const std::shared_ptr<Cancel> cancel_ = std::make_shared<Cancel>();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<CommittedShard> waiting_;
  std::optional<Errc> complaint_;  // the thread's
  std::thread thread_;
};

}  // namespace muster
