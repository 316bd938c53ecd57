#include "net/collectives/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "processes.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::Fail;
using test::FreePort;
using test::LoopbackGroup;
using test::RunMembers;
using test::Succeeded;
using testing::Each;
using testing::ResultOf;

// Rank 0 waits for so long for an operation, the others for longer: it is the first to give up.
void InGroupOf(int size, milliseconds operation_timeout, const std::function<int(Collectives&)>& body) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(size, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, size, port);
    options.operation_timeout = rank == 0 ? operation_timeout : std::chrono::seconds(20);
    options.end_timeout = std::chrono::seconds(20);
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    return group ? body(**group) : Fail(group.error().message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size << " members";
}

TEST(WorkQueue, WhatIsBegunTogetherIsDoneInOrder) {
  for (const int size : {1, 2, 3}) {
    InGroupOf(size, std::chrono::seconds(20), [size](Collectives& group) {
      constexpr std::size_t kWorks = 8;
      WorkQueue queue(group);
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> values;
        for (std::size_t i = 0; i < kWorks; ++i)
          values.emplace_back(1 + i * i * 1000,
                              static_cast<float>(static_cast<std::size_t>(group.rank()) + i));
        std::vector<std::future<Status>> works;
        for (std::vector<float>& one : values) works.push_back(queue.AllReduce(Numbers(one), ReduceOp::kSum));
        for (std::size_t i = kWorks; i-- > 0;) {
          if (Status done = works[i].get(); !done) return Fail(done.error().message);
        }
        for (std::size_t i = 0; i < kWorks; ++i) {
          const auto sum = static_cast<float>(size * (size - 1) / 2 + size * static_cast<int>(i));
          if (values[i] != std::vector<float>(values[i].size(), sum)) return Fail("another sum");
        }
      }
      return 0;
    });
  }
}

TEST(WorkQueue, WhatIsBegunTogetherHasOneDeadline) {
  constexpr milliseconds kTimeout(1000);
  test::SharedFloats begun(1);
  const auto start = steady_clock::now();
  const auto now = [start] { return std::chrono::duration<float>(steady_clock::now() - start).count(); };
  InGroupOf(2, kTimeout, [&](Collectives& group) {
    std::vector<float> values(1000);
    const std::atomic_ref<float> begun_at(begun.values()[0]);
    if (group.rank() == 0) {
      WorkQueue queue(group);
      std::future<Status> first = queue.AllReduce(Numbers(values), ReduceOp::kSum);
      std::vector<float> others(1000);
      std::future<Status> second = queue.AllReduce(Numbers(others), ReduceOp::kSum);
      begun_at = now();
      (void)first.get();
      // The other member comes before a timeout of the second's own would be over.
      return second.get() ? Fail("it was done after its deadline") : 0;
    }
    while (begun_at == 0) std::this_thread::sleep_for(milliseconds(1));
    while (now() < begun_at + 0.6F) std::this_thread::sleep_for(milliseconds(1));
    (void)group.AllReduce(Numbers(values), ReduceOp::kSum);
    while (now() < begun_at + 1.2F) std::this_thread::sleep_for(milliseconds(1));
    return group.AllReduce(Numbers(values), ReduceOp::kSum) ? Fail("the other member had given up") : 0;
  });
}

TEST(WorkQueue, AQueueThatEndsWithWorkAbortsTheCommunicator) {
  InGroupOf(2, std::chrono::seconds(20), [](Collectives& group) {
    if (group.rank() == 0) {
      std::vector<float> values(1000);
      const auto begun = steady_clock::now();
      std::future<Status> undone;
      {
        WorkQueue queue(group);
        undone = queue.AllReduce(Numbers(values), ReduceOp::kSum);
      }
      if (steady_clock::now() - begun > std::chrono::seconds(10)) return Fail("it was waited for");
      const Status said = undone.get();
      if (said) return Fail("done by nobody");
      return said.error().message.find("nobody waits") != std::string::npos ? 0 : Fail(said.error().message);
    }
    while (group.State()) std::this_thread::sleep_for(milliseconds(1));
    return 0;
  });
}

TEST(WorkQueue, WhatADeviceStillWritesIsWaitedFor) {
  InGroupOf(2, std::chrono::seconds(20), [](Collectives& group) {
    WorkQueue queue(group);
    std::vector<float> values(1000, 1);
    std::atomic<bool> written = false;
    std::atomic<int> asked = 0;
    std::future<Status> done = queue.AllReduce(Numbers(values), ReduceOp::kSum, [&] {
      ++asked;
      return Result<bool>(written.load());
    });
    while (asked < 5) std::this_thread::sleep_for(milliseconds(1));
    if (done.wait_for(milliseconds(0)) == std::future_status::ready) return Fail("it did not wait");
    std::fill(values.begin(), values.end(), 2.0F);
    written = true;
    if (Status reduced = done.get(); !reduced) return Fail(reduced.error().message);
    return values == std::vector<float>(1000, 4) ? 0 : Fail("another sum");
  });
}

TEST(WorkQueue, ADeviceThatFailsOrStandsStillEndsTheOperationOnAllMembers) {
  for (const bool stands_still : {false, true}) {
    InGroupOf(2, milliseconds(stands_still ? 3'000 : 20'000), [stands_still](Collectives& group) {
      WorkQueue queue(group);
      std::vector<float> values(1000);
      WorkQueue::Written written;
      if (group.rank() == 0) {
        written = [stands_still]() -> Result<bool> {
          if (stands_still) return false;
          return Error{Errc::kInternal, "the device is on fire"};
        };
      }
      const Status done = queue.AllReduce(Numbers(values), ReduceOp::kSum, std::move(written)).get();
      if (done) return Fail("it was done");
      const std::string& why = done.error().message;
      const char* cause = stands_still ? "within 3000 ms" : "on fire";
      return why.find(cause) != std::string::npos ? 0 : Fail(why);
    });
  }
}

TEST(WorkQueue, AQueueThatEndsDoesNotWaitForADevice) {
  InGroupOf(1, std::chrono::seconds(300), [](Collectives& group) {
    std::vector<float> values(1000);
    WorkQueue queue(group);
    (void)queue.AllReduce(Numbers(values), ReduceOp::kSum, [] { return Result<bool>(false); });
    return 0;
  });
}

}  // namespace
}  // namespace muster
