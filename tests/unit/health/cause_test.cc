#include "daemon/gang/cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace muster::gang {
namespace {

using ::testing::HasSubstr;
using Points = KernelEvidence::Points;

Ending Exited(int code, std::string stderr_tail = "") {
  Ending ending;
  ending.status = code << 8;
  ending.stderr_tail = std::move(stderr_tail);
  return ending;
}
Ending Killed(int signal, std::string stderr_tail = "") {
  Ending ending;
  ending.status = signal;
  ending.stderr_tail = std::move(stderr_tail);
  return ending;
}
CauseClass ClassOf(const Ending& ending, const ExitCodes& codes = {}) {
  return Classify(ending, codes).cause;
}

TEST(Cause, AnExitCodeIsTheProgramsOwn) {
  EXPECT_EQ(ClassOf(Exited(1)), CauseClass::kUser);
  EXPECT_EQ(ClassOf(Exited(0)), CauseClass::kUser);
  EXPECT_EQ(ClassOf(Exited(137)), CauseClass::kUser) << "it said so itself: nobody has killed it";
}

TEST(Cause, AnExitCodeThatTheSiteHasMappedIsWhatTheSiteSays) {
  const auto codes = ParseExitCodes("75=infrastructure, 143=preemption,9=time_limit , 1=user");
  ASSERT_TRUE(codes) << codes.error().message;
  EXPECT_EQ(ClassOf(Exited(75), *codes), CauseClass::kInfrastructure);
  EXPECT_THAT(Classify(Exited(75), *codes).because, HasSubstr("exit code 75"));
  EXPECT_EQ(ClassOf(Exited(143), *codes), CauseClass::kPreemption);
  EXPECT_EQ(ClassOf(Killed(SIGTERM), *codes), CauseClass::kPreemption);
  EXPECT_EQ(ClassOf(Exited(9), *codes), CauseClass::kTimeLimit);
  EXPECT_EQ(ClassOf(Killed(SIGKILL), *codes), CauseClass::kInfrastructure) << "9 is not 128 + 9";
}

TEST(Cause, ASignalOfTheProgramsOwnMakingIsTheUsers) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGXCPU, SIGINT}) {
    EXPECT_EQ(ClassOf(Killed(signal)), CauseClass::kUser) << signal;
  }
}

TEST(Cause, ASignalThatOnlyOthersSendIsNotTheUsers) {
  for (const int signal : {SIGKILL, SIGTERM, SIGPWR}) {
    EXPECT_EQ(ClassOf(Killed(signal)), CauseClass::kInfrastructure) << signal;
  }
  EXPECT_THAT(Classify(Killed(SIGKILL), {}).because, HasSubstr("SIGKILL came from outside"));
}

TEST(Cause, AnOutOfMemoryKillIsTheUsersWhateverTheHardwareSays) {
  Ending ending = Killed(SIGKILL);
  ending.oom_killed = true;
  ending.kernel = {{Points::kHardware, "mlx5_core: Link down"}};
  EXPECT_EQ(ClassOf(ending, *ParseExitCodes("137=infrastructure")), CauseClass::kUser);
}

TEST(Cause, ALostNodeIsTheInfrastructures) {
  Ending ending;
  ending.node_lost = true;
  EXPECT_EQ(ClassOf(ending), CauseClass::kInfrastructure);
}

TEST(Cause, WhatTheKernelSaysDecidesHardwareFirst) {
  Ending ending = Killed(SIGABRT);
  ending.kernel = {{Points::kNowhere, "Link up"}};
  EXPECT_EQ(ClassOf(ending), CauseClass::kUser);
  ending.kernel.push_back({Points::kUser, "NVRM: Xid (PCI:0000:3b:00): 45"});
  EXPECT_THAT(Classify(ending, {}).because, HasSubstr("Xid (PCI:0000:3b:00): 45"));
  ending.kernel.push_back({Points::kHardware, "NVRM: Xid (PCI:0000:3b:00): 79"});
  const Cause cause = Classify(ending, {});
  EXPECT_EQ(cause.cause, CauseClass::kInfrastructure);
  EXPECT_THAT(cause.because, HasSubstr(": 79"));

  Ending killed = Killed(SIGKILL);
  killed.kernel = {{Points::kUser, "NVRM: Xid (PCI:0000:3b:00): 31"}};
  EXPECT_EQ(ClassOf(killed), CauseClass::kUser);
}

TEST(Cause, WhatSlurmHasAnnouncedExplainsEveryEnd) {
  Ending ending = Exited(1);
  ending.announced = Announced::kPreemption;
  EXPECT_EQ(ClassOf(ending, *ParseExitCodes("1=user")), CauseClass::kPreemption);
  ending.announced = Announced::kTimeLimit;
  EXPECT_EQ(ClassOf(ending), CauseClass::kTimeLimit);
  ending.oom_killed = true;
  EXPECT_EQ(ClassOf(ending), CauseClass::kTimeLimit);
}

TEST(ExitCodes, NothingIsNoMap) {
  EXPECT_TRUE(ParseExitCodes("")->empty());
  EXPECT_TRUE(ParseExitCodes("  ")->empty());
}

TEST(ExitCodes, WhatIsWrongIsNamed) {
  for (const char* text :
       {"75", "75=", "75=hardware", "=user", "0=user", "256=user", "-1=user", "7 5=user", "75=user,",
        ",75=user", "75=user 76=user", "1=user, 1=preemption", "x=user", "1e2=user", "99999999999999=user"}) {
    const auto codes = ParseExitCodes(text);
    EXPECT_FALSE(codes) << text;
  }
  EXPECT_THAT(ParseExitCodes("75=user, 300=user").error().message, HasSubstr("'300=user'"));
  EXPECT_THAT(ParseExitCodes("1=user, 1=preemption").error().message, HasSubstr("given twice"));
}

TEST(FaultSignature, TheSameBugOnAnotherRankAtAnotherTimeIsTheSame) {
  const std::string first = FaultSignature(Exited(1,
                                                  "Traceback:\n[rank3] 2026-01-02 11:12:13,456 RuntimeError: "
                                                  "shape [16, 3] at 0x7ffdeadbeef on n17:29500"));
  const std::string second = FaultSignature(
      Exited(1, "other\n\n[rank12] 2026-02-03 1:2:3 RuntimeError: shape [7, 128] at 0xABC on n2:29501\n \n"));
  EXPECT_EQ(first, second);
  EXPECT_THAT(first, HasSubstr("exit 1: [rank#] "));
  EXPECT_THAT(first, HasSubstr("RuntimeError: shape"));
}

TEST(FaultSignature, AnotherCauseIsAnother) {
  EXPECT_NE(FaultSignature(Exited(1, "KeyError: 'a'")), FaultSignature(Exited(1, "KeyError: 'b'")));
  EXPECT_NE(FaultSignature(Exited(1, "KeyError: 'a'")), FaultSignature(Exited(2, "KeyError: 'a'")));
  EXPECT_NE(FaultSignature(Killed(SIGSEGV)), FaultSignature(Killed(SIGBUS)));
}

// As wandb ends a run.
constexpr char kHook[] =
    "wandb: \nwandb: Find logs at: ./wandb/run-20261128_101112-ab12cd34/logs\nwandb: synced 5 files\n";
constexpr char kHookLine[] = "; wandb: synced # files";

std::string Traceback(const std::string& raised) {
  return "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 12, in <module>\n    "
         "step()\n" +
         raised + "\n";
}

TEST(FaultSignature, OfAPythonProgramHasItsExceptionWhateverAnExitHookPrintsAfterIt) {
  for (const char* raised :
       {"ValueError: bad batch", "KeyError: 'a'", "torch.cuda.OutOfMemoryError", "KeyError: 'b'"}) {
    EXPECT_EQ(FaultSignature(Exited(1, "step\n" + Traceback(raised) + kHook)),
              std::string("exit 1: ") + raised + kHookLine);
    EXPECT_EQ(FaultSignature(Exited(1, "step\n" + Traceback(raised))), std::string("exit 1: ") + raised);
  }
}

TEST(FaultSignature, OfAnEndAfterAnExceptionThatWasLoggedHasTheEndsOwnWordsToo) {
  const std::string logged =
      "ERROR:root:optional kernels are off\n" + Traceback("ModuleNotFoundError: No module named 'x'");
  EXPECT_NE(FaultSignature(Exited(1, logged + "the loss is NaN\n")),
            FaultSignature(Exited(1, logged + "no data\n")));
  EXPECT_NE(FaultSignature(Exited(1, logged)), FaultSignature(Killed(SIGSEGV, logged)));
}

TEST(FaultSignature, OfAChainOfExceptionsHasTheLast) {
  const std::string chain = Traceback("KeyError: 'a'") +
                            "\nDuring handling of the above exception, another exception occurred:\n\n" +
                            Traceback("RuntimeError: no shard 7\n  tried twice");
  EXPECT_EQ(FaultSignature(Exited(1, chain + kHook)),
            std::string("exit 1: RuntimeError: no shard #") + kHookLine);
}

TEST(FaultSignature, OfATracebackWithItsRankHasTheException) {
  EXPECT_EQ(
      FaultSignature(Exited(1,
                            "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 3\n"
                            "[rank3]:     f()\n[rank3]: ValueError: x\nbye\n")),
      "exit 1: ValueError: x; bye");
}

TEST(FaultSignature, OfAGroupOfExceptionsHasTheGroup) {
  const std::string group =
      "  + Exception Group Traceback (most recent call last):\n  |   File \"t.py\", line 3, in main\n"
      "  |     async with TaskGroup() as tg:\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 "
      "sub-exception)\n"
      "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File "
      "\"t.py\", line 9\n"
      "    | ValueError: x\n    +------------------------------------\n";
  EXPECT_EQ(
      FaultSignature(Exited(1, group + kHook)),
      std::string("exit 1: ExceptionGroup: unhandled errors in a TaskGroup (# sub-exception)") + kHookLine);
}

TEST(FaultSignature, AThreadOrAChildProcessThatDiesAfterTheProgramIsNotTheProgramsFault) {
  const std::string thread =
      "Exception in thread Thread-1 (_pin_memory_loop):\n" + Traceback("ConnectionResetError: [Errno 104]");
  const std::string child = "Process SpawnProcess-1:\n" + Traceback("BrokenPipeError: [Errno 32]");
  EXPECT_EQ(FaultSignature(Exited(1, Traceback("ValueError: x") + thread + child + "bye\n")),
            "exit 1: ValueError: x; bye");
  EXPECT_EQ(FaultSignature(Exited(1, thread + "bye\n")), "exit 1: ConnectionResetError: [Errno #]; bye");
}

TEST(FaultSignature, WhatPythonIgnoresAtTheEndIsNoCause) {
  const std::string ignored =
      "Exception ignored in: <function A.__del__ at 0x7f>\n" + Traceback("OSError: closed");
  const std::string hook = "Error in atexit._run_exitfuncs:\n" + Traceback("OSError: pipe");
  EXPECT_EQ(FaultSignature(Exited(1, Traceback("ValueError: x") + ignored + hook + "bye\n")),
            "exit 1: ValueError: x; bye");
  EXPECT_EQ(FaultSignature(Exited(1, ignored + "the loss is NaN\n")), "exit 1: the loss is NaN");
}

TEST(FaultSignature, ALineOfALibraryBetweenThoseOfATracebackIsNoException) {
  EXPECT_EQ(FaultSignature(Exited(
                1,
                "Traceback (most recent call last):\n  File \"t.py\", line 3\nn1:77:78 [0] NCCL INFO abort\n"
                "wandb: WARNING\nNCCL version 2.27\nValueError: x\nbye\n")),
            "exit 1: ValueError: x; bye");
}

TEST(FaultSignature, OfATracebackThatIsCutIsTheLastLine) {
  EXPECT_EQ(FaultSignature(Exited(1, "  File \"t.py\", line 3\nValueError: x\nbye\n")), "exit 1: bye");
  EXPECT_EQ(FaultSignature(Exited(1, "Traceback (most recent call last):\n  File \"t.py\", line 3\n")),
            "exit 1: File \"t.py\", line #");
}

TEST(FaultSignature, WordsAreNotTakenForAddressesAndAddressesAre) {
  EXPECT_EQ(FaultSignature(Exited(1, "bad face deadbeef accede")), "exit 1: bad face deadbeef accede");
  EXPECT_EQ(FaultSignature(Exited(1, "key 3f2a90bc1d missing")), "exit 1: key # missing");
  EXPECT_EQ(FaultSignature(Exited(1, "no 123e4567-e89b-12d3-a456-426614174000.pt")), "exit 1: no #.pt");
  EXPECT_EQ(FaultSignature(Exited(1, "at 10.1.2.3:80 0X1f, 99.5%")), "exit 1: at # #, #%");
}

TEST(FaultSignature, OfAProgressBarIsItsLastStateWithoutColours) {
  EXPECT_EQ(FaultSignature(Exited(1, "\x1b[31mloss 1\r\x1b[31mloss bad\x1b[0m\n")), "exit 1: loss bad");
}

TEST(FaultSignature, IsEmptyWhenItCannotBeSaid) {
  EXPECT_EQ(FaultSignature(Killed(SIGKILL, "Epoch 1")), "");
  EXPECT_EQ(FaultSignature(Killed(SIGTERM, "Epoch 1")), "");
  EXPECT_EQ(FaultSignature(Exited(1)), "");
  EXPECT_EQ(FaultSignature(Exited(1, "\n \n\r\n\x1b[0m\n")), "");
  Ending lost;
  lost.node_lost = true;
  EXPECT_EQ(FaultSignature(lost), "");
  Ending announced = Exited(1, "x");
  announced.announced = Announced::kPreemption;
  EXPECT_EQ(FaultSignature(announced), "");
}

TEST(FaultSignature, OfACrashNeedsNoWordAndOfAnOomKillIsOne) {
  EXPECT_EQ(FaultSignature(Killed(SIGSEGV)), "SIGSEGV");
  Ending oom = Killed(SIGKILL, "anything 17");
  oom.oom_killed = true;
  EXPECT_EQ(FaultSignature(oom), "out of memory");
}

TEST(FaultSignature, IsBoundedAndPrintable) {
  const std::string signature =
      FaultSignature(Exited(1, std::string(100'000, 'x') + std::string("\x01\x02y", 3)));
  EXPECT_EQ(signature.size(), 256U);
  EXPECT_EQ(FaultSignature(Exited(1, std::string("a\0b\x01"
                                                 "c",
                                                 5))),
            "exit 1: abc");
}

TEST(Classify, WhoWaitedInVainForARankThatStandsOutIsNotToBlame) {
  Ending ending = Exited(1, "x");
  ending.waited_for = "rank 3 on n2 did not enter step 80, as 3 others did";
  EXPECT_EQ(Classify(ending, {}).cause, CauseClass::kInfrastructure);
  EXPECT_EQ(Classify(ending, {{1, CauseClass::kUser}}).cause, CauseClass::kUser)
      << "the site knows its programs";
  ending.oom_killed = true;
  EXPECT_EQ(Classify(ending, {}).cause, CauseClass::kUser);
}

// Each as PyTorch 2.13, or JAX, has printed it.
TEST(WaitedInVain, IsSaidByTheTimeOutsOfCollectives) {
  for (const char* said :
       {"[rank0]: RuntimeError: "
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] "
        "Timed out waiting 4000ms for send operation to complete\n",
        "[rank1]:[E1218 20:27:21.433063423 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective "
        "operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, NumelOut=131072000, "
        "Timeout(ms)=600000) "
        "ran for 600081 milliseconds before timing out.\nframe #9: clone + 0x43\n",
        "F0926 17:26:32.075587  157988 client.h:77] Terminating process because the JAX distributed service "
        "detected fatal errors. This most likely indicates that another task died\n"}) {
    EXPECT_TRUE(WaitedInVain(said)) << said;
  }
  for (const char* said : {"", "ValueError: bad batch 17\n",
                           "Process group watchdog thread terminated with exception: CUDA error: an illegal "
                           "memory access was encountered\n",
                           "requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out.\n"}) {
    EXPECT_FALSE(WaitedInVain(said)) << said;
  }
}

}  // namespace
}  // namespace muster::gang
