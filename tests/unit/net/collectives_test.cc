#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "net/collectives/collectives.h"
#include "net/rendezvous/socket.h"
#include "processes.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::ExchangeIn;
using test::Fail;
using test::FreePort;
using test::LoopbackGroup;
using test::RunMembers;
using test::ScratchDirectory;
using test::SharedFloats;
using test::Succeeded;
using testing::Each;
using testing::HasSubstr;
using testing::ResultOf;

// Runs `body` in `size` members of one group; all must succeed.
void InGroup(int size, const std::function<int(Collectives&)>& body) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(size, [&](int rank) {
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", LoopbackGroup(rank, size, port));
    return group ? body(**group) : Fail(group.error().message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size << " members";
}

// Values whose sum depends on the order of the additions.
float Value(int rank, std::size_t i) {
  const std::uint32_t bits =
      (static_cast<std::uint32_t>(i) * 2654435761U) ^ (static_cast<std::uint32_t>(rank) * 40503U);
  return std::bit_cast<float>((bits & 0x807fffffU) | ((100U + bits % 40U) << 23U));
}

std::vector<float> Values(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

TEST(Collectives, AnAllReduceAddsUpTheValuesOfAllMembers) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    InGroup(size, [size](Collectives& group) {
      for (const std::size_t count : {0U, 1U, 7U, 1000U, 100'000U}) {
        std::vector<float> values(count, static_cast<float>(group.rank() + 1));
        if (Status summed = group.AllReduce(Numbers(values), ReduceOp::kSum); !summed)
          return Fail(summed.error().message);
        const float expected = static_cast<float>(size * (size + 1)) / 2;
        for (const float value : values) {
          if (value != expected) return Fail("a sum is " + std::to_string(value));
        }
      }
      return 0;
    });
  }
}

TEST(Collectives, ASumHasTheSameBitsOnEveryMemberAndInEveryRun) {
  constexpr std::size_t kCount = 10'007;
  for (const int size : {3, 4, 6}) {
    constexpr int kGroups = 3;
    constexpr int kRuns = 5;
    SharedFloats shared(kCount * kGroups * kRuns * static_cast<std::size_t>(size));
    std::size_t slot = 0;
    for (int group_index = 0; group_index < kGroups;
         ++group_index, slot += kRuns * static_cast<std::size_t>(size)) {
      InGroup(size, [&](Collectives& group) {
        for (std::size_t run = 0; run < kRuns; ++run) {
          std::vector<float> values = Values(group.rank(), kCount);
          if (Status summed = group.AllReduce(Numbers(values), ReduceOp::kSum); !summed)
            return Fail(summed.error().message);
          const std::size_t place =
              slot + run * static_cast<std::size_t>(size) + static_cast<std::size_t>(group.rank());
          std::memcpy(shared.values().data() + place * kCount, values.data(), kCount * sizeof(float));
        }
        return 0;
      });
    }
    for (std::size_t i = 1; i < slot; ++i) {
      EXPECT_EQ(
          std::memcmp(shared.values().data(), shared.values().data() + i * kCount, kCount * sizeof(float)), 0)
          << size << " members, result " << i;
    }
  }
}

TEST(Collectives, AMaximumIsTakenOfEveryType) {
  for (const int size : {1, 3, 4}) {
    InGroup(size, [size](Collectives& group) {
      std::vector<float> floats = {static_cast<float>(-group.rank()), static_cast<float>(group.rank())};
      if (Status done = group.AllReduce(Numbers(floats), ReduceOp::kMax); !done)
        return Fail(done.error().message);
      if (floats != std::vector<float>{0, static_cast<float>(size - 1)})
        return Fail("another maximum of floats");
      const std::int64_t large = std::int64_t{1} << 60;
      std::vector<std::int64_t> numbers = {large + group.rank(), -group.rank()};
      if (Status done = group.AllReduce(Numbers(numbers), ReduceOp::kMax); !done)
        return Fail(done.error().message);
      if (numbers != std::vector<std::int64_t>{large + size - 1, 0})
        return Fail("another maximum of integers");
      numbers = {large / 8, group.rank()};
      if (Status done = group.AllReduce(Numbers(numbers), ReduceOp::kSum); !done)
        return Fail(done.error().message);
      return numbers == std::vector<std::int64_t>{large / 8 * size, size * (size - 1) / 2}
                 ? 0
                 : Fail("another sum");
    });
  }
}

TEST(Collectives, AnAllGatherBringsEveryPartToEveryMember) {
  for (const int size : {1, 2, 3, 5, 8}) {
    InGroup(size, [size](Collectives& group) {
      for (const std::size_t each : {1U, 7U, 30'000U}) {
        std::vector<std::int64_t> values(each * static_cast<std::size_t>(size), -1);
        const auto mine = values.begin() + static_cast<std::ptrdiff_t>(each) * group.rank();
        std::fill_n(mine, each, 10 + group.rank());
        if (Status gathered = group.AllGather(Numbers(values)); !gathered)
          return Fail(gathered.error().message);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (values[i] != 10 + static_cast<std::int64_t>(i / each))
            return Fail("a part is another member's");
        }
      }
      std::vector<float> uneven(static_cast<std::size_t>(size) + 1);
      if (size > 1 && group.AllGather(Numbers(uneven)).ok())
        return Fail("parts of different lengths were taken");
      return group.Barrier().ok() ? 0 : Fail("a refused call has ended the group");
    });
  }
}

TEST(Collectives, AReduceScatterLeavesEachMemberItsPartOfTheSum) {
  for (const int size : {1, 2, 3, 5, 8}) {
    InGroup(size, [size](Collectives& group) {
      for (const std::size_t each : {1U, 7U, 30'000U}) {
        std::vector<float> values(each * static_cast<std::size_t>(size));
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(i / each * 100) + static_cast<float>(group.rank());
        if (Status done = group.ReduceScatter(Numbers(values), ReduceOp::kSum); !done)
          return Fail(done.error().message);
        const float expected = static_cast<float>(group.rank() * 100 * size + size * (size - 1) / 2);
        for (std::size_t i = 0; i < each; ++i) {
          if (values[each * static_cast<std::size_t>(group.rank()) + i] != expected)
            return Fail("another sum");
        }
      }
      return 0;
    });
  }
}

TEST(Collectives, ABroadcastComesFromItsRoot) {
  for (const int size : {1, 2, 5, 8}) {
    InGroup(size, [size](Collectives& group) {
      for (int root = 0; root < size; ++root) {
        std::vector<std::byte> bytes(4097, static_cast<std::byte>(group.rank() + 1));
        if (Status sent = group.Broadcast(bytes, root); !sent) return Fail(sent.error().message);
        for (const std::byte byte : bytes) {
          if (byte != static_cast<std::byte>(root + 1)) return Fail("a byte of another member");
        }
      }
      return group.Broadcast({}, size).ok() ? Fail("a root outside of the group was taken") : 0;
    });
  }
}

TEST(Collectives, ABarrierHoldsUntilAllHaveComeToIt) {
  constexpr int kSize = 5;
  SharedFloats shared(1);
  auto* counter = reinterpret_cast<std::uint32_t*>(shared.values().data());
  InGroup(kSize, [&](Collectives& group) {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      std::atomic_ref<std::uint32_t>(*counter).fetch_add(1);
      if (Status held = group.Barrier(); !held) return Fail(held.error().message);
      if (std::atomic_ref<std::uint32_t>(*counter).load() < round * kSize)
        return Fail("a barrier let one through");
    }
    return 0;
  });
}

TEST(Collectives, ALostMemberIsAnErrorOnAllOthersWithinABoundedTime) {
  for (const int size : {2, 5, 8}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(size, [&](int rank) {
      GroupOptions options = LoopbackGroup(rank, size, port);
      options.operation_timeout = std::chrono::hours(1);  // it is told long before
      Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
      if (!group) return Fail(group.error().message);
      std::vector<float> values(100'000, 1);
      for (int round = 0; round < 3; ++round) {
        if (Status summed = (*group)->AllReduce(Numbers(values), ReduceOp::kSum); !summed)
          return Fail(summed.error().message);
      }
      if (rank == 1) ::raise(SIGKILL);
      const Status lost = (*group)->AllReduce(Numbers(values), ReduceOp::kSum);
      if (lost) return Fail("the all-reduce succeeded without a member");
      if (lost.error().code != Errc::kUnavailable) return Fail("code: " + lost.error().message);
      if (lost.error().message.find("a member is lost") == std::string::npos)
        return Fail(lost.error().message);
      const Status after = (*group)->Barrier();
      return !after && after.error().message == lost.error().message
                 ? 0
                 : Fail("the group was used after its end");
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(Succeeded(statuses[static_cast<std::size_t>(rank)]), rank != 1) << rank << " of " << size;
    }
  }
}

TEST(Collectives, AMemberThatDoesNotAnswerIsAnErrorAtTheOperationTimeout) {
  const std::uint16_t port = FreePort();
  SharedFloats shared(1);
  auto* given_up = reinterpret_cast<std::uint32_t*>(shared.values().data());
  const std::vector<int> statuses = RunMembers(3, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, 3, port);
    options.operation_timeout = milliseconds(300);
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    if (!group) return Fail(group.error().message);
    if (rank == 2) {  // alive and connected, but elsewhere until the others have given up
      while (std::atomic_ref<std::uint32_t>(*given_up).load() < 2)
        std::this_thread::sleep_for(milliseconds(1));
      return 0;
    }
    std::vector<float> values(1000, 1);
    const Status summed = (*group)->AllReduce(Numbers(values), ReduceOp::kSum);
    std::atomic_ref<std::uint32_t>(*given_up).fetch_add(1);
    if (summed) return Fail("nobody answered, and yet it succeeded");
    // What is left of the 300 ms when it begins to wait.
    constexpr std::string_view kSays = "Timed out waiting ";
    const std::string& message = summed.error().message;
    const std::size_t at = message.find(kSays);
    if (at == std::string::npos) return Fail(message);
    return std::stoi(message.substr(at + kSays.size())) <= 300 ? 0 : Fail(message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(Collectives, AnErrorNamesTheOperationAndThoseBeforeIt) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, 2, port);
    options.end_timeout = seconds(20);
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    if (!group) return Fail(group.error().message);
    std::vector<float> values(1000, 1);
    std::vector<std::byte> bytes(8);
    if (!(*group)->Broadcast(bytes, 0).ok() || !(*group)->Barrier().ok()) return Fail("the first two failed");
    if (rank == 1) ::raise(SIGKILL);
    const Status lost = (*group)->AllReduce(Numbers(values), ReduceOp::kSum);
    if (lost) return Fail("the all-reduce succeeded without a member");
    const std::string& why = lost.error().message;
    return why.starts_with("all-reduce 3 (sum of 1000 floats, 4000 bytes), rank 0 of 2: a member is lost") &&
                   why.ends_with(
                       "; rank 1 has ended; before it: barrier 2, broadcast 1 (8 bytes from rank 0)")
               ? 0
               : Fail(why);
  });
  EXPECT_TRUE(Succeeded(statuses[0]));
}

// Each member of a group calls what differs from the others' call: it fails everywhere, and says on all what rank 0 and the
// first other one have called.
void ExpectDifference(int size, const std::function<Status(Collectives&)>& call, const std::string& of_rank_0,
                      const std::string& of_another) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(size, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, size, port);
    options.operation_timeout = milliseconds(500);
    options.end_timeout = seconds(20);
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    if (!group) return Fail(group.error().message);
    const Status done = call(**group);
    if (done) return Fail("it succeeded all the same");
    const std::string said = "; rank 0 is in " + of_rank_0 + ", but rank 1 in " + of_another;
    return done.error().message.ends_with(said) ? 0 : Fail(done.error().message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size << " members, " << of_rank_0;
}

// With an hour for each operation: nobody waits for that.
TEST(Collectives, MembersThatCompareTheirOperationsHearAtOnceThatTheyDiffer) {
  for (const int size : {2, 3}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(size, [&](int rank) {
      GroupOptions options = LoopbackGroup(rank, size, port);
      options.operation_timeout = std::chrono::hours(1);
      options.end_timeout = seconds(20);
      options.compare = true;
      Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
      if (!group) return Fail(group.error().message);
      std::vector<float> values(8, 1);
      if (Status same = (*group)->AllReduce(Numbers(values), ReduceOp::kSum); !same)
        return Fail(same.error().message);
      if (values[7] != static_cast<float>(size)) return Fail("another sum");
      std::vector<std::byte> bytes(8);
      const Status done = (*group)->Broadcast(bytes, rank == 0 ? 0 : 1);
      if (done) return Fail("it succeeded all the same");
      const std::string said =
          "; rank 0 is in broadcast 2 (8 bytes from rank 0), but rank 1 in broadcast 2 (8 bytes from rank 1)";
      return done.error().message.find(said) == std::string::npos ? Fail(done.error().message) : 0;
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size;
  }
}

TEST(Collectives, MembersThatCallDifferentOperationsHearOfIt) {
  for (const int size : {2, 3, 4}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const std::string what = op == ReduceOp::kSum ? "sum" : "maximum";
      ExpectDifference(
          size,
          [op](Collectives& group) {
            std::vector<float> values(group.rank() == 0 ? 1000 : 10, 1);
            return group.AllReduce(Numbers(values), op);
          },
          "all-reduce 1 (" + what + " of 1000 floats, 4000 bytes)",
          "all-reduce 1 (" + what + " of 10 floats, 40 bytes)");
    }
    ExpectDifference(
        size,
        [](Collectives& group) {
          std::vector<float> values(group.rank() == 0 ? 12 : 1'200'000, 1);
          return group.AllGather(Numbers(values));
        },
        "all-gather 1 (12 floats, 48 bytes)", "all-gather 1 (1200000 floats, 4800000 bytes)");
    ExpectDifference(
        size,
        [](Collectives& group) {
          std::vector<float> floats(24);
          std::vector<std::int64_t> numbers(12);
          return group.ReduceScatter(group.rank() == 0 ? Numbers(floats) : Numbers(numbers), ReduceOp::kMax);
        },
        "reduce-scatter 1 (maximum of 24 floats, 96 bytes)",
        "reduce-scatter 1 (maximum of 12 int64s, 96 bytes)");
    ExpectDifference(
        size,
        [](Collectives& group) {
          std::vector<std::byte> bytes(8);
          return group.rank() == 0 ? group.Barrier() : group.Broadcast(bytes, 0);
        },
        "barrier 1", "broadcast 1 (8 bytes from rank 0)");
  }
  // Of more than two, those that get what they expect go on.
  ExpectDifference(
      2,
      [](Collectives& group) {
        std::vector<std::byte> bytes(8);
        return group.Broadcast(bytes, group.rank() == 0 ? 0 : 1);
      },
      "broadcast 1 (8 bytes from rank 0)", "broadcast 1 (8 bytes from rank 1)");
}

TEST(Collectives, AnotherThreadCanEndAnOperation) {
  const std::uint16_t port = FreePort();
  SharedFloats shared(1);
  auto* ended = reinterpret_cast<std::uint32_t*>(shared.values().data());
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", LoopbackGroup(rank, 2, port));
    if (!group) return Fail(group.error().message);
    if (!(*group)->State()) return Fail("it is not good from the start");
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(50));
        (*group)->Abort("a test wants it");
      });
    } else {  // comes when the other has ended it
      while (std::atomic_ref<std::uint32_t>(*ended).load() == 0) std::this_thread::sleep_for(milliseconds(1));
    }
    std::vector<float> values(1000, 1);
    const auto start = std::chrono::steady_clock::now();
    const Status summed = (*group)->AllReduce(Numbers(values), ReduceOp::kSum);
    const bool late = std::chrono::steady_clock::now() - start > seconds(10);
    if (other.joinable()) other.join();
    std::atomic_ref<std::uint32_t>(*ended).store(1);
    if (summed) return Fail("nobody answered, and yet it succeeded");
    if (late) return Fail("the error came late");
    const Status state = (*group)->State();
    const std::string& why = summed.error().message;
    if (state || state.error().message != why) return Fail("the state is another one");
    if (rank == 1) return 0;
    return why.starts_with("rank 0 of 2 was told to stop") && why.ends_with(": a test wants it") ? 0
                                                                                                 : Fail(why);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(Collectives, AMemberThatNeverComesIsAnErrorAtTheConnectTimeout) {
  GroupOptions options = LoopbackGroup(0, 2, FreePort());
  options.connect_timeout = seconds(5);
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().message, "connecting rank 0 of 2: rank 1 of 2 did not come within 5000 ms");
}

TEST(Collectives, MembersOfAGangMeetByItsExchangeAndLeaveTheMastersPortAlone) {
  const ScratchDirectory directory;
  Result<UniqueFd> taken = rendezvous::Listen(0);
  ASSERT_TRUE(taken.ok());
  const Result<std::uint16_t> port = rendezvous::LocalPort(taken->get());
  ASSERT_TRUE(port.ok());
  const std::vector<int> statuses = RunMembers(3, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, 3, *port);
    options.exchange = ExchangeIn(directory.path(), rank, 3);
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    if (!group) return Fail(group.error().message);
    std::vector<float> values = {1, static_cast<float>(rank)};
    if (Status summed = (*group)->AllReduce(Numbers(values), ReduceOp::kSum); !summed)
      return Fail(summed.error().message);
    return values == std::vector<float>{3, 3} ? 0 : Fail("another sum");
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
  EXPECT_LT(::accept4(taken->get(), nullptr, nullptr, SOCK_NONBLOCK), 0) << "somebody came to the port";
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Collectives, WhatAGangsExchangeDoesNotBringIsTheReason) {
  const ScratchDirectory directory;
  const auto refusal = [](int rank, const Exchange& exchange, milliseconds patience = seconds(20)) {
    GroupOptions options = LoopbackGroup(rank, 2, FreePort());
    options.connect_timeout = patience;
    options.exchange = exchange;
    const Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
    return group ? std::string() : group.error().message;
  };
  EXPECT_EQ(refusal(0, ExchangeIn(directory.path(), 0, 2), milliseconds(200)),
            "rank 1 gave nothing under collectives.place");
  const auto brings = [](std::vector<std::string> values) -> Exchange {
    return [values](const std::string& key, const std::string& own, std::chrono::steady_clock::time_point) {
      return key == "collectives.place" && !own.empty() ? std::vector<std::string>{own, ""} : values;
    };
  };
  EXPECT_EQ(
      refusal(0, brings({"", ""})),
      "connecting rank 0 of 2: rank 1 gave 0 bytes, not addresses for 1 peers; is its WORLD_SIZE 2 too?");
  EXPECT_EQ(refusal(1, brings({"1 round"})),
            "the exchange under the key collectives.place brought 1 values, and the group has 2 members");
  for (const char* place : {"", "1", "0 round", "70000 round", "-1 round", "port round"})
    EXPECT_EQ(refusal(1, brings({place, ""})), "rank 0 has not said where the members are to meet") << place;
}

TEST(Collectives, MembersOfAnotherGenerationAreNotMet) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    GroupOptions options = LoopbackGroup(rank, 2, port);
    options.connect_timeout = milliseconds(500);
    if (rank == 1) options.round = "test.0";
    return MakeCollectives("gloo", options).ok() ? Fail("met a member of another round") : 0;
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(Collectives, TwoProcessesCannotHaveOneRank) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(3, [&](int index) {
    const int rank = index == 0 ? 0 : 1;
    Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", LoopbackGroup(rank, 2, port));
    return group ? 0 : 1;
  });
  EXPECT_TRUE(Succeeded(statuses[0]));
  EXPECT_NE(Succeeded(statuses[1]), Succeeded(statuses[2]));
}

TEST(Collectives, ABackendThatIsNotThereIsRefusedWithThoseThatAre) {
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("carrier-pigeon", {});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.error().message, HasSubstr("this build has: gloo"));
  EXPECT_FALSE(MakeCollectives("gloo", {.rank = 2, .size = 2}).ok());
  EXPECT_FALSE(MakeCollectives("gloo", {.memory = MemoryKind::kCuda}).ok());
}

TEST(Collectives, AGroupOfOneNeedsNoNetwork) {
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", {});
  ASSERT_TRUE(group.ok());
  std::vector<float> values = {1, 2};
  EXPECT_TRUE((*group)->AllReduce(Numbers(values), ReduceOp::kSum).ok());
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  EXPECT_TRUE((*group)->Barrier().ok());
  EXPECT_EQ((*group)->memory(), MemoryKind::kHost);
}

TEST(LocalAddress, LoopbackIsKnownInAllItsForms) {
  for (const char* here : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(rendezvous::IsLoopback(here)) << here;
  for (const char* away : {"10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "1.127.0.0"})
    EXPECT_FALSE(rendezvous::IsLoopback(away)) << away;
}

}  // namespace
}  // namespace muster
