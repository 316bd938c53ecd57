// The backend on NCCL, with stand_in_nccl.cc in NCCL's place.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "net/collectives/collectives.h"
#include "processes.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Fail;
using test::FreePort;
using test::LoopbackGroup;
using test::RunMembers;
using test::ScratchDirectory;
using test::SharedFloats;
using test::Succeeded;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::ResultOf;

using Clock = std::chrono::steady_clock;
using Group = Result<std::unique_ptr<Collectives>>;

// Whether a text has all of the words; says so when not.
int Has(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) return Fail(std::string("'") + word + "' is not in: " + text);
  }
  return 0;
}

// Whether it lacks all of them.
int HasNot(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) != std::string::npos) return Fail(std::string("'") + word + "' is in: " + text);
  }
  return 0;
}

GroupOptions Options(int rank, int size, std::uint16_t port) {
  GroupOptions options = LoopbackGroup(rank, size, port);
  options.device = rank;
  options.nccl_library = STAND_IN_NCCL;
  options.cuda_library = STAND_IN_NCCL;
  // Long enough for all to hear of one another on a busy machine; where all are heard of it takes no time.
  options.end_timeout = seconds(20);
  return options;
}

void Ask(const std::string& faults) {
  ::setenv("MUSTER_STAND_IN_NCCL", faults.c_str(), 1);
}

// A group of which one member has a fault. Each calls `body`.
struct Run {
  int size = 3;
  int faulty = -1;
  std::string faults;
  milliseconds connect_timeout{20'000};
  milliseconds operation_timeout{20'000};
  milliseconds end_timeout{20'000};
};

std::vector<int> InGroup(const Run& run, const std::function<int(int rank, Group& group)>& body) {
  const std::uint16_t port = FreePort();
  return RunMembers(run.size, [&](int rank) {
    if (rank == run.faulty) Ask(run.faults);
    GroupOptions options = Options(rank, run.size, port);
    options.connect_timeout = run.connect_timeout;
    options.operation_timeout = run.operation_timeout;
    options.end_timeout = run.end_timeout;
    Group group = MakeCollectives("nccl", options);
    return body(rank, group);
  });
}

// Members that wait for one another without their communicator.
class Meeting {
 public:
  explicit Meeting(std::uint32_t members) : members_(members) {}
  void Wait() {
    auto* count = reinterpret_cast<std::uint32_t*>(shared_.values().data());
    std::atomic_ref<std::uint32_t>(*count).fetch_add(1);
    const auto deadline = Clock::now() + seconds(40);
    while (std::atomic_ref<std::uint32_t>(*count).load() < members_ && Clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  SharedFloats shared_{1};
  std::uint32_t members_;
};

Status AllReduceOnes(Collectives& group) {
  std::vector<float> values(1000, 1);
  return group.AllReduce(Numbers(values), ReduceOp::kSum);
}

// All-reduce 1, of which all have the result before anyone goes on: what fails then is all-reduce 2.
int FirstOperation(Collectives& group, Meeting& meeting) {
  const Status done = AllReduceOnes(group);
  meeting.Wait();
  return done ? 0 : Fail(done.error().message);
}

TEST(NcclCollectives, EveryOperationGivesTheBitsThatGlooGives) {
  constexpr std::size_t kEach = 1001;
  for (const int size : {1, 2, 3, 4}) {
    const std::size_t count = kEach * static_cast<std::size_t>(size);
    const std::uint16_t port = FreePort();
    const std::uint16_t other_port = FreePort();
    const std::vector<int> statuses = RunMembers(size, [&](int rank) {
      Group nccl = MakeCollectives("nccl", Options(rank, size, port));
      if (!nccl) return Fail(nccl.error().message);
      Group gloo = MakeCollectives("gloo", LoopbackGroup(rank, size, other_port));
      if (!gloo) return Fail(gloo.error().message);
      std::vector<float> floats(count);
      for (std::size_t i = 0; i < count; ++i)
        floats[i] = 1.0F / static_cast<float>(i + 3 + 7 * static_cast<std::size_t>(rank));
      std::vector<std::int64_t> numbers(count, 100 * rank);
      const std::size_t part = kEach * static_cast<std::size_t>(rank);
      for (Collectives* group : {nccl->get(), gloo->get()}) {
        if (group->memory() != MemoryKind::kHost) return Fail("not on the host");
      }
      for (int round = 0; round < 3; ++round) {
        const auto differ = [&](auto values, const auto& operation, bool part_only) {
          auto others = values;
          const Status done = operation(**nccl, values);
          if (!done) return Fail(done.error().message);
          if (!operation(**gloo, others)) return Fail("Gloo failed");
          const std::size_t begin = part_only ? part : 0;
          const std::size_t compared = part_only ? kEach : count;
          return std::memcmp(values.data() + begin, others.data() + begin, compared * sizeof(values[0])) == 0
                     ? 0
                     : Fail("other bits than Gloo's");
        };
        int bad = 0;
        const auto sum = [](Collectives& g, auto& v) { return g.AllReduce(Numbers(v), ReduceOp::kSum); };
        const auto max = [](Collectives& g, auto& v) { return g.AllReduce(Numbers(v), ReduceOp::kMax); };
        const auto scatter = [](Collectives& g, auto& v) {
          return g.ReduceScatter(Numbers(v), ReduceOp::kSum);
        };
        const auto gather = [](Collectives& g, auto& v) { return g.AllGather(Numbers(v)); };
        const auto broadcast = [size](Collectives& g, auto& v) {
          return g.Broadcast(std::as_writable_bytes(std::span(v)), size - 1);
        };
        bad += differ(floats, sum, false) + differ(numbers, sum, false) + differ(floats, max, false);
        bad += differ(numbers, max, false) + differ(floats, scatter, true) + differ(numbers, scatter, true);
        bad +=
            differ(floats, gather, false) + differ(numbers, gather, false) + differ(floats, broadcast, false);
        if (bad > 0) return bad;
        if (Status held = (*nccl)->Barrier(); !held) return Fail(held.error().message);
      }
      return (*nccl)->State().ok() ? 0 : Fail("it is not good after all that");
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size;
  }
}

// Device memory of the stand-in's, as a program would have it.
class DeviceFloats {
 public:
  explicit DeviceFloats(std::size_t count) : count_(count) {
    if (Function<int (*)(unsigned long long*, std::size_t)>("cuMemAlloc_v2")(&address_, bytes()) != 0)
      std::abort();
  }
  [[nodiscard]] Numbers numbers() const {
    return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address_)), count_, DataType::kFloat};
  }
  void Write(const std::vector<float>& values) const { Copy(address_, AddressOf(values.data())); }
  [[nodiscard]] std::vector<float> Read() const {
    std::vector<float> values(count_);
    Copy(AddressOf(values.data()), address_);
    return values;
  }

 private:
  template <typename F>
  static F Function(const char* name) {
    return reinterpret_cast<F>(::dlsym(::dlopen(STAND_IN_NCCL, RTLD_NOW), name));
  }
  static unsigned long long AddressOf(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(float); }
  void Copy(unsigned long long to, unsigned long long from) const {
    void* stream = nullptr;
    if (Function<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 1) != 0) std::abort();
    using MemcpyAsync = int (*)(unsigned long long, unsigned long long, std::size_t, void*);
    (void)Function<MemcpyAsync>("cuMemcpyAsync")(to, from, bytes(), stream);
    (void)Function<int (*)(void*)>("cuStreamDestroy_v2")(stream);  // waits for it
  }

  std::size_t count_;
  unsigned long long address_ = 0;
};

TEST(NcclCollectives, DeviceMemoryIsTakenWhereItLies) {
  Meeting both(2);
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    GroupOptions options = Options(rank, 2, port);
    options.memory = MemoryKind::kCuda;
    Group group = MakeCollectives("nccl", options);
    if (!group) return Fail(group.error().message);
    if ((*group)->memory() != MemoryKind::kCuda) return Fail("not on the device");
    const DeviceFloats floats(8);
    floats.Write(std::vector<float>(8, static_cast<float>(rank + 1)));
    if (Status summed = (*group)->AllReduce(floats.numbers(), ReduceOp::kSum); !summed)
      return Fail(summed.error().message);
    both.Wait();
    if (floats.Read() != std::vector<float>(8, 3)) return Fail("another sum");
    std::vector<float> host(8);
    return (*group)->AllReduce(Numbers(host), ReduceOp::kSum).ok() ? Fail("host memory was taken") : 0;
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, ALibraryThatWillNotDoIsRefusedInASentence) {
  GroupOptions options = Options(0, 1, 0);
  options.nccl_library = "libnccl-of-nobody.so.2";
  Group group = MakeCollectives("nccl", options);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, Errc::kNotFound);
  EXPECT_THAT(group.error().message, AllOf(HasSubstr("NCCL cannot be loaded: libnccl-of-nobody.so.2"),
                                           HasSubstr("LD_LIBRARY_PATH")));

  options.nccl_library = STAND_IN_NCCL_BARE;
  group = MakeCollectives("nccl", options);
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.error().message, HasSubstr("has no function ncclGetUniqueId"));

  options = Options(0, 1, 0);
  options.cuda_library = "libcuda-of-nobody.so.1";
  group = MakeCollectives("nccl", options);
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.error().message, HasSubstr("NVIDIA's driver cannot be loaded: libcuda-of-nobody.so.1"));
}

TEST(NcclCollectives, AnOldLibraryAndAMemberWithoutADeviceAreRefused) {
  const auto refusal = [](const std::string& faults, int device) {
    Ask(faults);
    GroupOptions options = Options(0, 1, 0);
    options.device = device;
    const Group group = MakeCollectives("nccl", options);
    return group ? std::string() : group.error().message;
  };
  EXPECT_THAT(refusal("version=21003", 0),
              HasSubstr("is NCCL 2.10.3, and the oldest that will do is 2.21.5"));
  EXPECT_THAT(refusal("version=2708", 0), HasSubstr("is NCCL 2.8 or older"));
  EXPECT_EQ(refusal("devices=0", 0), "this process sees no CUDA device");
  EXPECT_EQ(refusal("devices=4", 4), "LOCAL_RANK is 4, but this process sees 4 CUDA devices");
  EXPECT_EQ(refusal("devices=1", 4), "") << "Slurm gave each process its own";
  ::unsetenv("MUSTER_STAND_IN_NCCL");
}

TEST(NcclCollectives, AMemberThatNeverComesIsNamedByAllOthers) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(3, [&](int rank) {
    if (rank == 2) return 0;
    GroupOptions options = Options(rank, 3, port);
    if (rank == 0) options.connect_timeout = seconds(1);
    options.end_timeout = milliseconds(400);  // what is said in it does not count here
    const Group group = MakeCollectives("nccl", options);
    if (group) return Fail("it began without a member");
    return Has(group.error().message, {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                                       "rank 2 of 3 did not come within 1000 ms"});
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AConnectingThatNeverEndsIsAnErrorAtTheConnectTimeout) {
  for (const int first : {0, 2}) {  // of which the others hear: their own timeouts are longer
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(3, [&](int rank) {
      if (rank == 1) Ask("init-hangs");
      GroupOptions options = Options(rank, 3, port);
      options.connect_timeout = rank == first ? seconds(2) : seconds(50);
      const Group group = MakeCollectives("nccl", options);
      if (group) return Fail("it began without a member");
      const std::string failed = "rank " + std::to_string(first) + " has failed: ";
      return Has(group.error().message,
                 {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                  rank == first ? "" : failed.c_str(), "NCCL 2.27.3 was not done within 2000 ms"}) +
             HasNot(group.error().message, {"no word", "has ended", "is in"});
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << first;
  }
}

TEST(NcclCollectives, AMemberThatDiesWhileAllConnectIsNamed) {
  for (const int first : {0, 1}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(3, [&](int rank) {
      if (rank == 2) Ask("init-dies");
      GroupOptions options = Options(rank, 3, port);
      options.connect_timeout = rank == first ? seconds(2) : seconds(50);
      const Group group = MakeCollectives("nccl", options);
      if (group) return Fail("it began without a member");
      return Has(group.error().message, {"was not done within 2000 ms", "; rank 2 has ended"}) +
             HasNot(group.error().message, {"no word"});
    });
    EXPECT_TRUE(Succeeded(statuses[0]));
    EXPECT_TRUE(Succeeded(statuses[1]));
    EXPECT_FALSE(Succeeded(statuses[2]));
  }
}

TEST(NcclCollectives, WhenRankZeroDiesTheOthersSayThatTheyCannotSpeak) {
  Meeting all(3);
  const std::vector<int> statuses = InGroup({}, [&](int rank, Group& group) {
    if (!group) return Fail(group.error().message);
    if (FirstOperation(**group, all) != 0) return 1;
    if (rank == 0) ::raise(SIGKILL);
    const Status second = AllReduceOnes(**group);
    if (second) return Fail("it succeeded without a member");
    return Has(second.error().message, {"all-reduce 2 (", "remote process exited",
                                        "; rank 0, through which the members speak, has ended"});
  });
  EXPECT_TRUE(Succeeded(statuses[1]));
  EXPECT_TRUE(Succeeded(statuses[2]));
}

TEST(NcclCollectives, AnErrorInTheConnectingIsSaidByAllWithItsReason) {
  const std::vector<int> statuses =
      InGroup({.faulty = 1, .faults = "init-fails"}, [&](int rank, Group& group) {
        if (group) return Fail("it began without a member");
        return Has(group.error().message, {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                                           rank == 1 ? ": NCCL 2.27.3" : "rank 1 has failed: NCCL 2.27.3",
                                           "unhandled system error", "(no route to the others)"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AnErrorInAnOperationIsSaidByAllWithTheOperationAndItsReason) {
  Meeting all(3);
  const std::vector<int> statuses =
      InGroup({.faulty = 1, .faults = "operation-fails=2"}, [&](int rank, Group& group) {
        if (!group) return Fail(group.error().message);
        if (FirstOperation(**group, all) != 0) return 1;
        const Status second = AllReduceOnes(**group);
        if (second) return Fail("it succeeded all the same");
        if ((*group)->Barrier().ok()) return Fail("it was used after its end");
        const std::string who =
            "all-reduce 2 (sum of 1000 floats, 4000 bytes), rank " + std::to_string(rank) + " of 3: ";
        return Has(second.error().message,
                   {who.c_str(), rank == 1 ? ": NCCL 2.27.3" : "rank 1 has failed: NCCL 2.27.3",
                    "unhandled system error (a cable was pulled)", "; before it: all-reduce 1"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AnErrorBetweenOperationsIsSeenWithoutACallByAll) {
  const ScratchDirectory directory;
  const std::string file = directory.path() + "/down";
  Meeting both(2);
  const std::vector<int> statuses =
      InGroup({.size = 2, .faulty = 1, .faults = "idle-fails=" + file}, [&](int rank, Group& group) {
        if (!group) return Fail(group.error().message);
        if (FirstOperation(**group, both) != 0) return 1;
        Status state = (*group)->State();
        if (rank == 1) {
          if (!state) return Fail(state.error().message);
          std::ofstream(file).flush();
          state = (*group)->State();
        }
        const auto deadline = Clock::now() + seconds(40);
        while (state && Clock::now() < deadline) state = (*group)->State();
        if (state) return Fail("it is good all the same");
        const Status next = AllReduceOnes(**group);
        if (next || next.error().message != state.error().message)
          return Fail("the next operation is not refused");
        return Has(state.error().message,
                   {("rank " + std::to_string(rank) + " of 2, between operations: ").c_str(),
                    rank == 1 ? ": NCCL 2.27.3" : "rank 1 has failed: NCCL 2.27.3", "a link went down",
                    "before it: all-reduce 1"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AMemberThatDiesInAnOperationIsNamed) {
  Meeting all(3);
  const std::vector<int> statuses = InGroup({}, [&](int rank, Group& group) {
    if (!group) return Fail(group.error().message);
    if (FirstOperation(**group, all) != 0) return 1;
    if (rank == 1) ::raise(SIGKILL);
    const Status second = AllReduceOnes(**group);
    if (second) return Fail("it succeeded without a member");
    return Has(second.error().message, {"all-reduce 2 (", "remote process exited", "; rank 1 has ended"}) +
           HasNot(second.error().message, {"no word"});
  });
  EXPECT_TRUE(Succeeded(statuses[0]));
  EXPECT_TRUE(Succeeded(statuses[2]));
}

TEST(NcclCollectives, AMemberThatStandsStillIsNamedAtTheOperationTimeout) {
  Meeting both(2);
  const std::vector<int> statuses = InGroup(
      {.size = 2, .operation_timeout = seconds(1), .end_timeout = milliseconds(400)},
      [&](int rank, Group& group) {
        if (!group) return Fail(group.error().message);
        // Alive and connected, but elsewhere until the other has given up.
        if (rank == 1) return both.Wait(), 0;
        const auto begun = Clock::now();
        const Status done = AllReduceOnes(**group);
        const auto took = Clock::now() - begun;
        both.Wait();
        if (done) return Fail("it succeeded without a member");
        if (took < seconds(1)) return Fail("it gave up too early");
        return Has(done.error().message,
                   {"all-reduce 1 (", "NCCL 2.27.3 was not done within 1000 ms", "; no word from rank 1"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, WhenAllStandStillInOneOperationNobodyIsAccused) {
  const std::vector<int> statuses =
      InGroup({.size = 2, .faulty = 1, .faults = "operation-hangs=1", .operation_timeout = seconds(1)},
              [&](int, Group& group) {
                if (!group) return Fail(group.error().message);
                const Status done = AllReduceOnes(**group);
                if (done) return Fail("it succeeded all the same");
                return Has(done.error().message, {"all-reduce 1 (", "was not done within 1000 ms"}) +
                       HasNot(done.error().message, {"no word", "has ended", "is in"});
              });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, MembersThatAreInDifferentOperationsHearOfIt) {
  const std::vector<int> statuses =
      InGroup({.size = 2, .operation_timeout = seconds(1)}, [&](int rank, Group& group) {
        if (!group) return Fail(group.error().message);
        std::vector<std::int64_t> numbers(8);
        const Status done = rank == 0 ? (*group)->Barrier() : (*group)->AllGather(Numbers(numbers));
        if (done) return Fail("it succeeded all the same");
        return Has(done.error().message,
                   {rank == 0 ? "barrier 1, rank 0 of 2" : "all-gather 1 (",
                    "; rank 0 is in barrier 1, but rank 1 in all-gather 1 (8 int64s, 64 bytes)"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AnAbortThatHangsIsSaidAndHoldsNobody) {
  const std::vector<int> statuses =
      InGroup({.size = 2,
               .faulty = 0,
               .faults = "operation-hangs=1,abort-hangs",
               .operation_timeout = seconds(1),
               .end_timeout = seconds(4)},
              [&](int rank, Group& group) {
                if (!group) return Fail(group.error().message);
                const Status done = AllReduceOnes(**group);
                group->reset();  // returns
                if (done) return Fail("it succeeded all the same");
                const std::string& why = done.error().message;
                return Has(why, {"was not done within 1000 ms"}) +
                       (rank == 0 ? Has(why, {"; ncclCommAbort has not come back after 4000 ms"})
                                  : HasNot(why, {"ncclCommAbort"}));
              });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AFinalizeThatHangsHoldsNobody) {
  const std::vector<int> statuses =
      InGroup({.size = 2, .faulty = 0, .faults = "finalize-hangs"}, [](int, Group& group) {
        if (!group) return Fail(group.error().message);
        if (Status first = AllReduceOnes(**group); !first) return Fail(first.error().message);
        group->reset();
        return 0;
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AnotherThreadCanEndAnOperationAndTwice) {
  Meeting both(2);
  Meeting ended(2);
  const std::vector<int> statuses = InGroup({.size = 2}, [&](int rank, Group& group) {
    if (!group) return Fail(group.error().message);
    if (FirstOperation(**group, both) != 0) return 1;
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(50));
        (*group)->Abort("a test wants it");
        (*group)->Abort("and again");
        ended.Wait();
      });
    } else {  // comes when the other has ended it
      ended.Wait();
    }
    Status second = AllReduceOnes(**group);
    // This one may have had what it needed of the other before the end came here.
    if (rank == 1 && second) second = AllReduceOnes(**group);
    if (other.joinable()) other.join();
    if (second) return Fail("it succeeded without a member");
    if (rank == 0) return Has(second.error().message, {"rank 0 of 2 was told to stop", ": a test wants it"});
    return Has(second.error().message, {"rank 0 has failed: it was told to stop: a test wants it"});
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

}  // namespace
}  // namespace muster
