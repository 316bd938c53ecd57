// The other end of libmuster for its tests: speaks the wire protocol on a socket of its own, keeps the shards
// in memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "wire/step_page.h"

namespace muster {

class FakeMusterd {
 public:
  struct Rules {
    bool durable = true;    // shards become durable as they come
    bool committed = true;  // and checkpoints committed
    int save_status = 0;    // what Committed says then
    std::string save_text;
    uint64_t restore_step = wire::kNoStep;
    uint64_t max_shard_bytes = 0;
    bool first_version = false;  // its welcome, and nothing newer
    uint32_t features = wire::kKnowsShards | wire::kKnowsRanges | wire::kKnowsOutcomes | wire::kGrantsMemory;
    uint32_t reconnect_ms = 0;
    size_t memories = SIZE_MAX;         // so many may take memory
    uint64_t most_memory = UINT64_MAX;  // bytes that one may take
    bool answers_memory = true;         // questions for it
    uint64_t checkpoint = 1;            // what ranges say to be of
    uint64_t range_cut = 0;             // bytes that ranges are too short by
    bool range_sealed = true;
    uint32_t restore_world = 4;   // members that saved the checkpoints
    std::string described_error;  // not empty: what Describe gives
    bool takes_page = true;       // of the member's steps
    std::vector<uint64_t> tells;  // steps that are said to be committed right after a welcome
    wire::Refusal refusal = {};   // not 0: hellos are refused so
    std::string refusal_text;
  };

  explicit FakeMusterd(std::string socket_path);
  FakeMusterd(const FakeMusterd&) = delete;
  FakeMusterd& operator=(const FakeMusterd&) = delete;
  ~FakeMusterd();

  // As the daemon's stop and start: connections close, the socket goes away. Shards and rules stay.
  void Start();
  void Stop();

  void Change(const std::function<void(Rules&)>& change);
  // Says something to every client.
  void SendDurable(uint64_t step, int status = 0, const std::string& text = "");
  void SendDelayed(uint64_t step, int status, const std::string& text = "");
  void SendCommitted(uint64_t step, int status = 0, const std::string& text = "");
  // Writes it to the newest page.
  void Order(const wire::StepOrder& order);
  // From now on the newest page says for an hour that a musterd is there.
  void SeeClient();
  void SendRaw(const std::string& packet);
  // What a Restore of `step` gives: the memory is not sealed when `sealed` is false.
  void PutShard(uint64_t step, const std::string& bytes, bool sealed = true);

  // Waits (at most 10 s) until the condition on what has been seen holds.
  bool Await(const std::function<bool(const FakeMusterd&)>& condition);
  void Look(const std::function<void(const FakeMusterd&)>& look);
  // Under the lock of Await or Look, or when nothing is under way.
  [[nodiscard]] size_t clients() const { return clients_.size(); }
  std::vector<uint64_t> saves;      // steps, as they came
  std::vector<uint64_t> given_up;   // the same
  std::vector<uint64_t> asked;      // the same: saves whose outcome was asked for
  std::vector<uint64_t> wanted;     // the same: bytes of memory
  std::vector<std::string> hellos;  // "GANG rank R generation G"
  std::map<uint64_t, std::string> shards;
  std::map<std::pair<uint64_t, uint32_t>, std::string> others;  // by step and rank
  std::shared_ptr<wire::StepPage> page;                         // the newest one
  struct Range {
    uint32_t rank;
    uint64_t offset;
    uint64_t bytes;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;  // that were asked for: of `others`

 private:
  void Serve();
  void Take(int fd, const char* packet, size_t size, UniqueFd memory);
  void Send(int fd, const void* packet, size_t size, int descriptor = -1);
  void Describe(int fd, const char* packet, size_t size);
  void ReadRange(int fd, const char* packet, size_t size);
  void SendResult(int fd, wire::Type type, uint64_t step, int status, const std::string& text);

  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Rules rules_;
  std::map<uint64_t, bool> unsealed_;
  std::set<ino_t> granted_;
  std::vector<UniqueFd> clients_;
  UniqueFd listener_;
  UniqueFd wake_read_;
  UniqueFd wake_write_;
  std::thread thread_;
};

}  // namespace muster
