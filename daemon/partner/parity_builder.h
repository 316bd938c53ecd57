// Makes the parity that this node keeps of its group's shards, checkpoint after checkpoint.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/result.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/parity_group.h"
#include "daemon/partner/parity_parts.h"

namespace muster {

// A thread with the lowest priority that gets the other nodes' chunks from them, and nobody waits for it: what it does not
// come to is left out for what is newer. For one generation of a gang. The destructor ends what is on its way, which may take
// long where the resolver does.
class ParityBuilder {
 public:
  // `group`: as this node sees it.
  // `cancel` ends it early, as the destructor does.
  ParityBuilder(std::string gang, ParityGroup group, uint16_t port, uint64_t max_shard_bytes,
                std::shared_ptr<ParityParts> parts, std::shared_ptr<Cancel> cancel);
  ~ParityBuilder();
  ParityBuilder(const ParityBuilder&) = delete;
  ParityBuilder& operator=(const ParityBuilder&) = delete;

  // A checkpoint is committed. Takes the place of an older one that still waits. Thread-safe.
  void Build(uint64_t generation, uint64_t step);

 private:
  using Clock = std::chrono::steady_clock;
  struct Checkpoint {
    uint64_t generation = 0;
    uint64_t step = 0;
  };
  struct Member;

  void Run();
  Status BuildSlot(const Checkpoint& of, size_t slot);
  Result<Member> Ask(const Checkpoint& of, size_t node, uint32_t rank, Clock::time_point until);
  Status Fill(const Checkpoint& of, size_t slot, std::vector<Member>& members,
              const std::vector<uint64_t>& rows);
  // False: there is no time for that, something else is to be done.
  bool Pause(Clock::duration pause);
  void Complain(const Error& why);

  const std::string gang_;
  const ParityGroup group_;
  const uint16_t port_;
  const uint64_t max_shard_bytes_;
  const std::shared_ptr<ParityParts> parts_;
  const std::shared_ptr<Cancel> cancel_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Checkpoint> waiting_;
  // The thread's:
  std::optional<Errc> complaint_;
  size_t next_slot_ = 0;
  std::thread thread_;
};

}  // namespace muster
