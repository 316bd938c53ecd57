// The gradient of all members, added up while the rest of it is still computed.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "net/collectives/work_queue.h"
#include "train/state.h"

namespace muster::train {

struct ExchangeOptions {
  // Parts of the gradient travel together until they have so many bytes; a message should not be small.
  std::size_t bucket_bytes = std::size_t{1} << 20U;
  // Whether a part travels while the next ones are computed; else all of them do when the last one is there. The sums have
  // the same bits either way.
  bool overlap = true;
};

// One step after the other: the gradient is written from its end to its beginning, each part is said to be ready, and
// Finish waits for the sums. It travels from where it lies: a group of several members takes the memory of the Ops. Not
// thread-safe.
class GradientExchange {
 public:
  // `shared`: floats that travel with the last part. `ops` and `group` outlive this.
  GradientExchange(Ops& ops, Collectives& group, const ExchangeOptions& options, std::size_t parameters,
                   std::size_t shared);

  [[nodiscard]] std::span<float> gradient() { return values_.values().subspan(shared_); }
  [[nodiscard]] std::span<float> shared() { return values_.values().first(shared_); }

  // This part of the gradient will not change any more when the Ops have done what they were given. It ends where the one
  // before it began.
  void Ready(Slice part);

  // All parts are ready, and what is shared has been written. Afterwards both are sums over all members.
  [[nodiscard]] Status Finish();

 private:
  void Begin(Slice part);

  Ops& ops_;
  Collectives& group_;
  const ExchangeOptions options_;
  const std::size_t shared_;
  Buffer values_;               // what is shared, then the gradient
  std::size_t end_;             // of what has not been begun
  std::vector<Slice> waiting_;  // without overlap
  std::vector<std::future<Status>> under_way_;
  std::unique_ptr<WorkQueue> queue_;  // the last: it ends before the values do. None without overlap
};

}  // namespace muster::train
