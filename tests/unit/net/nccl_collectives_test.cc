// The backend on NCCL. NcclStandIn plants faults in stand_in_nccl.cc, which is in NCCL's place; NcclCollectives is true of
// NCCL itself too. On a machine with a GPU: MUSTER_TEST_NCCL=libnccl.so.2 MUSTER_TEST_CUDA=libcuda.so.1
// build/tests/net_nccl_test --gtest_filter='NcclCollectives.*'
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "net/collectives/collectives.h"
#include "net/collectives/cuda_device.h"
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
using test::ShareTheGpu;
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

// The file that a variable names, or the stand-in.
std::string Library(const char* variable) {
  const char* const named = std::getenv(variable);
  return named != nullptr ? named : STAND_IN_NCCL;
}
std::string NcclLibrary() {
  return Library("MUSTER_TEST_NCCL");
}
std::string CudaLibrary() {
  return Library("MUSTER_TEST_CUDA");
}
bool HasStandIn() {
  return NcclLibrary() == STAND_IN_NCCL;
}

GroupOptions Options(int rank, int size, std::uint16_t port) {
  GroupOptions options = LoopbackGroup(rank, size, port);
  options.device = rank;
  options.nccl_library = NcclLibrary();
  options.cuda_library = CudaLibrary();
  if (!HasStandIn()) ShareTheGpu(rank);
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

// Bit for bit; but NCCL itself adds floats in an order of its own.
template <typename T>
bool AreEqual(const T* values, const T* others, std::size_t count) {
  if (HasStandIn() || !std::is_same_v<T, float>) return std::memcmp(values, others, count * sizeof(T)) == 0;
  return std::equal(values, values + count, others, [](T one, T other) {
    return std::abs(static_cast<double>(one - other)) <= 1e-6 * std::abs(static_cast<double>(other));
  });
}

TEST(NcclCollectives, EveryOperationGivesWhatGlooGives) {
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
          return AreEqual(values.data() + begin, others.data() + begin, compared)
                     ? 0
                     : Fail("other values than Gloo's");
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

// Device memory, as a program would have it.
class DeviceFloats {
 public:
  DeviceFloats(int device, std::size_t count) : count_(count) {
    auto opened = CudaDevice::Open(CudaLibrary(), device);
    if (!opened) return;
    device_ = *std::move(opened);
    const Result<std::byte*> memory = device_->Staging(count * sizeof(float));
    if (memory) memory_ = *memory;
  }
  [[nodiscard]] Numbers numbers() const { return {memory_, count_, DataType::kFloat}; }
  [[nodiscard]] Status Write(const std::vector<float>& values) { return Copy(memory_, values.data()); }
  [[nodiscard]] std::vector<float> Read() {
    std::vector<float> values(count_);
    return Copy(values.data(), memory_).ok() ? values : std::vector<float>();
  }

 private:
  Status Copy(void* to, const void* from) {
    if (memory_ == nullptr) return Error{Errc::kInternal, "no device memory"};
    Status done = device_->Copy(to, from, count_ * sizeof(float));
    if (done) done = device_->Mark();
    while (done) {
      const Result<bool> reached = device_->Reached();
      if (!reached) return reached.error();
      if (*reached) break;
    }
    return done;
  }

  const std::size_t count_;
  std::unique_ptr<CudaDevice> device_;
  std::byte* memory_ = nullptr;
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
    DeviceFloats floats(rank, 8);
    if (!floats.Write(std::vector<float>(8, static_cast<float>(rank + 1)))) return Fail("no device memory");
    if (Status summed = (*group)->AllReduce(floats.numbers(), ReduceOp::kSum); !summed)
      return Fail(summed.error().message);
    both.Wait();
    if (floats.Read() != std::vector<float>(8, 3)) return Fail("another sum");
    std::vector<float> host(8);
    return (*group)->AllReduce(Numbers(host), ReduceOp::kSum).ok() ? Fail("host memory was taken") : 0;
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, TwoMembersOnOneDeviceAreRefused) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    GroupOptions options = Options(rank, 2, port);
    options.device = 1;
    ::unsetenv("NCCL_HOSTID");
    const Group group = MakeCollectives("nccl", options);
    if (group) return Fail("it began");
    return Has(group.error().message, {"invalid usage", "Duplicate GPU detected", "both on CUDA device"});
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

// How many ids the stand-in was given in this process.
int IdsOfStandIn() {
  void* const library = ::dlopen(STAND_IN_NCCL, RTLD_NOW);
  return reinterpret_cast<int (*)()>(::dlsym(library, "stand_in_nccl_ids"))();
}

TEST(NcclCollectives, ManyMembersMeetThroughSeveralIds) {
  for (const int size : {2, 3, 4}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(size, [&](int rank) {
      GroupOptions options = Options(rank, size, port);
      options.members_of_an_id = 2;
      Group group = MakeCollectives("nccl", options);
      if (!group) return Fail(group.error().message);
      if (HasStandIn() && IdsOfStandIn() != (size + 1) / 2) return Fail("another number of ids");
      std::vector<float> ones(10, 1);
      if (Status summed = (*group)->AllReduce(Numbers(ones), ReduceOp::kSum); !summed)
        return Fail(summed.error().message);
      return ones[9] == static_cast<float>(size) ? 0 : Fail("another sum");
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << size;
  }
}

TEST(NcclStandIn, AnNcclThatTakesOneIdOnlyIsGivenOne) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(3, [&](int rank) {
    Ask("version=22105");
    GroupOptions options = Options(rank, 3, port);
    options.members_of_an_id = 1;
    const Group group = MakeCollectives("nccl", options);
    if (!group) return Fail(group.error().message);
    return IdsOfStandIn() == 1 ? 0 : Fail("several ids");
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclStandIn, ALibraryThatWillNotDoIsRefusedInASentence) {
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

TEST(NcclStandIn, AnOldLibraryAndAMemberWithoutADeviceAreRefused) {
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
    if (rank == 0) options.connect_timeout = seconds(5);
    options.end_timeout = seconds(4);  // what is said in it does not count here
    const Group group = MakeCollectives("nccl", options);
    if (group) return Fail("it began without a member");
    return Has(group.error().message, {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                                       "rank 2 of 3 did not come within 5000 ms"});
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclStandIn, AConnectingThatNeverEndsIsAnErrorAtTheConnectTimeout) {
  for (const int first : {0, 2}) {  // of which the others hear: their own timeouts are longer
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(3, [&](int rank) {
      if (rank == 1) Ask("init-hangs");
      GroupOptions options = Options(rank, 3, port);
      options.connect_timeout = rank == first ? seconds(5) : seconds(50);
      const Group group = MakeCollectives("nccl", options);
      if (group) return Fail("it began without a member");
      const std::string failed = "rank " + std::to_string(first) + " has failed: ";
      return Has(group.error().message,
                 {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                  rank == first ? "" : failed.c_str(), "NCCL 2.27.3 was not done within 5000 ms"}) +
             HasNot(group.error().message, {"no word", "has ended", "is in"});
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true))) << first;
  }
}

TEST(NcclStandIn, AMemberThatDiesWhileAllConnectIsNamed) {
  for (const int first : {0, 1}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(3, [&](int rank) {
      if (rank == 2) Ask("init-dies");
      GroupOptions options = Options(rank, 3, port);
      options.connect_timeout = rank == first ? seconds(5) : seconds(50);
      const Group group = MakeCollectives("nccl", options);
      if (group) return Fail("it began without a member");
      return Has(group.error().message, {"was not done within 5000 ms", "; rank 2 has ended"}) +
             HasNot(group.error().message, {"no word"});
    });
    EXPECT_TRUE(Succeeded(statuses[0]));
    EXPECT_TRUE(Succeeded(statuses[1]));
    EXPECT_FALSE(Succeeded(statuses[2]));
  }
}

// What member `which` does when all have met and before it has connected: `act` with the values that it has been given. Member
// `first` is the first to give up.
std::vector<int> InGroupWhere(int which, int first, milliseconds end_timeout,
                              const std::function<void(std::vector<std::string>& values)>& act,
                              const std::function<int(int rank, const Group& group)>& body) {
  const ScratchDirectory directory;
  return RunMembers(2, [&](int rank) {
    GroupOptions options = Options(rank, 2, 0);
    // CUDA and NCCL take two seconds to begin.
    options.connect_timeout = rank != first ? seconds(50) : seconds(6);
    options.end_timeout = end_timeout;
    options.exchange = [&, exchange = ExchangeIn(directory.path(), rank, 2)](
                           const std::string& key, const std::string& value, Clock::time_point deadline) {
      Result<std::vector<std::string>> values = exchange(key, value, deadline);
      if (values && rank == which && key == "collectives.nccl") act(*values);
      return values;
    };
    return body(rank, MakeCollectives("nccl", options));
  });
}

TEST(NcclCollectives, AMemberThatDiesOnceAllHaveMetIsNamed) {
  for (const int which : {0, 1}) {
    const std::vector<int> statuses = InGroupWhere(
        which, 1 - which, seconds(20), [](auto&) { ::raise(SIGKILL); },
        [which](int, const Group& group) {
          if (group) return Fail("it began without a member");
          const std::string dead = "rank " + std::to_string(which);
          return Has(group.error().message, {"connecting rank ", dead.c_str(), " has ended"});
        });
    EXPECT_FALSE(Succeeded(statuses[static_cast<std::size_t>(which)]));
    EXPECT_TRUE(Succeeded(statuses[static_cast<std::size_t>(1 - which)]));
  }
}

TEST(NcclCollectives, AMemberThatStandsStillOnceAllHaveMetIsNamed) {
  Meeting both(2);
  const std::vector<int> statuses = InGroupWhere(
      1, 0, seconds(4),
      [&](auto&) {
        both.Wait();
        ::_exit(0);
      },
      [&](int, const Group& group) {
        both.Wait();
        if (group) return Fail("it began without a member");
        return Has(group.error().message,
                   {"connecting rank 0 of 2: ", "was not done within ", "no word from rank 1"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, AnIdThatIsNoneIsAnErrorOfAllMembers) {
  const std::vector<int> statuses = InGroupWhere(
      1, 1, seconds(20),
      [](std::vector<std::string>& values) { std::fill(values[0].begin() + 1, values[0].end(), 'x'); },
      [](int rank, const Group& group) {
        if (group) return Fail("it began");
        return Has(group.error().message,
                   {("connecting rank " + std::to_string(rank) + " of 2: ").c_str(), "rank 1", "NCCL"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
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

TEST(NcclStandIn, AnErrorInTheConnectingIsSaidByAllWithItsReason) {
  const std::vector<int> statuses =
      InGroup({.faulty = 1, .faults = "init-fails"}, [&](int rank, Group& group) {
        if (group) return Fail("it began without a member");
        return Has(group.error().message, {("connecting rank " + std::to_string(rank) + " of 3: ").c_str(),
                                           rank == 1 ? ": NCCL 2.27.3" : "rank 1 has failed: NCCL 2.27.3",
                                           "unhandled system error", "(no route to the others)"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclStandIn, AnErrorInAnOperationIsSaidByAllWithTheOperationAndItsReason) {
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

TEST(NcclStandIn, AnErrorBetweenOperationsIsSeenWithoutACallByAll) {
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
      {.size = 2, .operation_timeout = seconds(1), .end_timeout = seconds(4)}, [&](int rank, Group& group) {
        if (!group) return Fail(group.error().message);
        // Alive and connected, but elsewhere until the other has given up.
        if (rank == 1) return both.Wait(), 0;
        const auto begun = Clock::now();
        const Status done = AllReduceOnes(**group);
        const auto took = Clock::now() - begun;
        both.Wait();
        if (done) return Fail("it succeeded without a member");
        if (took < seconds(1)) return Fail("it gave up too early");
        if (done.error().code != Errc::kExhausted) return Fail("it was not the time that ran out");
        return Has(done.error().message,
                   {"all-reduce 1 (", " was not done within 1000 ms", "; no word from rank 1"});
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclStandIn, WhenAllStandStillInOneOperationNobodyIsAccused) {
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

// Members 0 and 1 are in different operations.
int Differ(int rank, Group& group) {
  if (!group) return Fail(group.error().message);
  std::vector<std::int64_t> numbers(8);
  const Status done = rank == 0 ? (*group)->Barrier() : (*group)->AllGather(Numbers(numbers));
  if (done) return Fail("it succeeded all the same");
  return Has(done.error().message,
             {rank == 0 ? "barrier 1, rank 0 of 2" : "all-gather 1 (",
              "; rank 0 is in barrier 1, but rank 1 in all-gather 1 (8 int64s, 64 bytes)"});
}

// NCCL itself may let them succeed.
TEST(NcclStandIn, MembersThatAreInDifferentOperationsHearOfItAtTheDeadline) {
  const std::vector<int> statuses = InGroup({.size = 2, .operation_timeout = seconds(1)}, Differ);
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclCollectives, MembersThatCompareTheirOperationsHearAtOnceThatTheyDiffer) {
  for (const MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda}) {
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(2, [&](int rank) {
      GroupOptions options = Options(rank, 2, port);
      options.operation_timeout = std::chrono::hours(1);
      options.memory = memory;
      options.compare = true;
      Group group = MakeCollectives("nccl", options);
      if (group && !(*group)->Barrier()) return Fail("the same operation is refused");
      if (!group) return Fail(group.error().message);
      DeviceFloats floats(rank, 8);
      std::vector<float> host(8);
      const std::size_t count = rank == 0 ? 8 : 6;
      const Status done = (*group)->AllReduce(
          Numbers(memory == MemoryKind::kCuda ? floats.numbers().data : host.data(), count, DataType::kFloat),
          ReduceOp::kSum);
      if (done) return Fail("it succeeded all the same");
      return Has(
          done.error().message,
          {"all-reduce 2 (", "the members do not call the same operation",
           "; rank 0 is in all-reduce 2 (sum of 8 floats, 32 bytes), but rank 1 in all-reduce 2 (sum of 6 "
           "floats, 24 bytes)"});
    });
    EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
  }
}

TEST(NcclStandIn, ABufferIsItsOwnersAgainWhenTheOperationHasFailed) {
  const auto body = [&](int rank, Group& group) {
    if (!group) return Fail(group.error().message);
    std::vector<float> values(8, 1);
    if ((*group)->AllReduce(Numbers(values), ReduceOp::kSum)) return Fail("it did not fail");
    std::fill(values.begin(), values.end(), 7.0F);
    // To free device memory is to wait for all copies.
    { const DeviceFloats freed(rank, 8); }
    return values == std::vector<float>(8, 7) ? 0 : Fail("the device wrote into it later");
  };
  const std::vector<int> statuses = InGroup(
      {.size = 1, .faulty = 0, .faults = "copies-to-host-take=500", .operation_timeout = milliseconds(100)},
      body);
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(NcclStandIn, AnAbortThatHangsIsSaidAndHoldsNobody) {
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

TEST(NcclStandIn, AFinalizeThatHangsHoldsNobody) {
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
