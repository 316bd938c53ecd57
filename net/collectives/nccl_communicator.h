// One of NCCL's communicators: no call here waits for other members, or for longer than it says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/collectives/nccl_library.h"
#include "net/collectives/operation.h"

namespace muster {

// A call on a thread of its own, which nobody waits for longer than they want: what hangs in a library cannot be
// stopped.
class DetachedCall {
 public:
  DetachedCall() = default;
  explicit DetachedCall(std::function<void()> call);
  // Whether it has returned by then. One that was never made has.
  [[nodiscard]] bool ReturnedBy(std::chrono::steady_clock::time_point deadline) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class NcclCommunicator {
 public:
  explicit NcclCommunicator(nccl::Library library) : library_(std::move(library)) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  // Aborts it, when it was not closed, and waits a moment for that.
  ~NcclCommunicator();

  [[nodiscard]] Result<nccl::UniqueId> NewId() const;

  // Whether members may meet through several ids.
  [[nodiscard]] bool TakesSeveralIds() const { return library_.functions.CommInitRankScalable != nullptr; }
  // Begins to connect `size` members; Ready says when that is done. `ids`: the same on all, at least one.
  [[nodiscard]] Status Begin(int size, std::vector<nccl::UniqueId> ids, int rank);
  // Gives an operation to the stream, with `data` in device memory; Ready says when the stream has it.
  [[nodiscard]] Status Enqueue(const Operation& operation, std::byte* data, nccl::Stream stream);
  // Whether the last call is done. An error is NCCL's, at whatever time it came. Any thread may ask.
  [[nodiscard]] Result<bool> Ready();

  // Makes operations under way end, here and, as their NCCL finds out, on other members. Returns at once; any thread
  // may call it, again and again.
  void StartAbort();
  // Whether the abort has come back by then.
  [[nodiscard]] bool AbortedBy(std::chrono::steady_clock::time_point deadline);

  // Ends a communicator that is good and has nothing under way. False: it was not ended by then.
  [[nodiscard]] bool Close(std::chrono::steady_clock::time_point deadline);

  [[nodiscard]] const std::string& library_name() const { return library_.name; }

 private:
  [[nodiscard]] Error Failed(const char* call, nccl::Code code) const;

  const nccl::Library library_;
  int size_ = 0;
  int rank_ = 0;
  // Held for a call that uses the communicator. None of them waits, but should one hang all the same, an abort goes
  // ahead.
  std::timed_mutex calls_;
  std::atomic<nccl::Communicator> communicator_ = nullptr;
  std::mutex abort_mutex_;  // guards what follows
  std::chrono::steady_clock::time_point abort_begun_;
  DetachedCall abort_;
};

}  // namespace muster
