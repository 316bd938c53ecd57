#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "net/collectives/collectives.h"
#include "net/rendezvous/socket.h"
#include "processes.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FreePort;
using test::LoopbackGroup;
using test::RunMembers;
using test::SharedFloats;
using test::Succeeded;
using testing::Each;
using testing::HasSubstr;
using testing::ResultOf;

// A member's exit status: what went wrong is printed, because its assertions do not reach the test.
int Fail(const std::string& why) {
  std::fprintf(stderr, "member: %s\n", why.c_str());
  return 1;
}

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
        if (Status summed = group.AllReduceSum(values); !summed) return Fail(summed.error().message);
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
          if (Status summed = group.AllReduceSum(values); !summed) return Fail(summed.error().message);
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
      Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", LoopbackGroup(rank, size, port));
      if (!group) return Fail(group.error().message);
      std::vector<float> values(100'000, 1);
      for (int round = 0; round < 3; ++round) {
        if (Status summed = (*group)->AllReduceSum(values); !summed) return Fail(summed.error().message);
      }
      if (rank == 1) ::raise(SIGKILL);
      const auto start = std::chrono::steady_clock::now();
      const Status lost = (*group)->AllReduceSum(values);
      if (lost) return Fail("the all-reduce succeeded without a member");
      if (std::chrono::steady_clock::now() - start > seconds(5)) return Fail("the error came late");
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
    const auto start = std::chrono::steady_clock::now();
    const Status summed = (*group)->AllReduceSum(values);
    std::atomic_ref<std::uint32_t>(*given_up).fetch_add(1);
    if (summed) return Fail("nobody answered, and yet it succeeded");
    return std::chrono::steady_clock::now() - start < seconds(5) ? 0 : Fail("the error came late");
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(Collectives, AMemberThatNeverComesIsAnErrorAtTheConnectTimeout) {
  GroupOptions options = LoopbackGroup(0, 2, FreePort());
  options.connect_timeout = milliseconds(200);
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", options);
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.error().message, HasSubstr("nobody wrote key 'test.1/addresses/1' in time"));
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
}

TEST(Collectives, AGroupOfOneNeedsNoNetwork) {
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("gloo", {});
  ASSERT_TRUE(group.ok());
  std::vector<float> values = {1, 2};
  EXPECT_TRUE((*group)->AllReduceSum(values).ok());
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
