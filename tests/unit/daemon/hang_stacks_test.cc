#include "daemon/hang/stacks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/unique_fd.h"

extern char** environ;

namespace muster::hang {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kPlenty{60'000};

char StateOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(") ");
  return close == std::string::npos ? '?' : text[close + 2];
}

bool Eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::usleep(2000);
  }
  return true;
}

std::string Tracer(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("TracerPid:")) return line.substr(11);
  }
  return "?";
}

// Whether both threads of `hang_target blocked` are in read().
bool BothRead(pid_t program) {
  int reading = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(program) + "/task")) {
    std::ifstream file(entry.path() / "syscall");
    long call = -1;
    if (file >> call && call == SYS_read) ++reading;
  }
  return reading == 2;
}

// A supervisor (hang_target) with one program below it, which has said "ready".
class Supervised {
 public:
  explicit Supervised(std::vector<std::string> program) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    in_.reset(in[1]);
    const UniqueFd child_in(in[0]);
    out_.reset(out[0]);
    const UniqueFd child_out(out[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), 0);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
    std::vector<std::string> words = {HANG_TARGET, "supervise"};
    words.insert(words.end(), program.begin(), program.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, HANG_TARGET, &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ++alive;
    std::string said;
    while (said.find("ready") == std::string::npos) {
      pollfd ready{out_.get(), POLLIN, 0};
      char part[64];
      const ssize_t n = ::poll(&ready, 1, 60'000) == 1 ? ::read(out_.get(), part, sizeof part) : 0;
      if (n <= 0) {
        ADD_FAILURE() << "the program did not get ready: " << said;
        break;
      }
      said.append(part, static_cast<size_t>(n));
    }
    if (program.back() == "blocked") {
      EXPECT_TRUE(Eventually([this] { return BothRead(this->program()); }));
    }
  }
  ~Supervised() {
    in_.reset();
    EXPECT_EQ(End(), 0);
  }
  // 0: its program was there until it was killed now.
  int End() {
    in_.reset();
    if (pid_ <= 0) return status_;
    ::waitpid(pid_, &status_, 0);
    pid_ = 0;
    --alive;
    return status_;
  }
  static inline int alive = 0;  // how many there are
  void KillProgram() const { EXPECT_EQ(::write(in_.get(), "k", 1), 1); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] pid_t program() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
    pid_t child = 0;
    file >> child;
    return child;
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  UniqueFd in_;
  UniqueFd out_;
};

// Ends the loop as soon as only the supervisors are left of this process's children, or after a minute.
void StopWhenReaped(Loop& loop, int tries = 6000) {
  std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  int children = 0;
  for (pid_t child = 0; file >> child;) ++children;
  if (tries == 0 || children == Supervised::alive) {
    EXPECT_GT(tries, 0) << "of " << children << " children not all were reaped";
    return loop.Stop();
  }
  loop.After(milliseconds(10), [&loop, tries] { StopWhenReaped(loop, tries - 1); });
}

std::vector<MemberStacks> Capture(const std::vector<pid_t>& supervisors, milliseconds deadline = kPlenty,
                                  const std::string& program = STACKS_PROGRAM, bool ask_dump = false) {
  Loop loop;
  std::vector<MemberStacks> result;
  int answers = 0;
  CaptureStacks(loop, program, supervisors, deadline, ask_dump, [&](std::vector<MemberStacks> stacks) {
    ++answers;
    result = std::move(stacks);
    StopWhenReaped(loop);
  });
  loop.Run();
  EXPECT_EQ(answers, 1);
  return result;
}

json Line(const std::string& lines, const std::string& kind) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    json object = json::parse(line);
    if (object["kind"] == kind) return object;
  }
  return nullptr;
}

TEST(HangStacks, BothThreadsOfAProgramAreWhereTheyWait) {
  const Supervised one({HANG_TARGET, "blocked"});
  const pid_t program = one.program();
  const auto stacks = Capture({one.pid()});
  ASSERT_EQ(stacks.size(), 1u);
  EXPECT_TRUE(stacks[0].complete) << stacks[0].error << stacks[0].lines;
  EXPECT_EQ(stacks[0].supervisor, one.pid());
  const json process = Line(stacks[0].lines, "process");
  EXPECT_EQ(process["pid"], program);
  EXPECT_EQ(process["threads"], 2);
  EXPECT_THAT(process["command"].get<std::string>(), HasSubstr("blocked"));
  const json native = Line(stacks[0].lines, "native");
  ASSERT_EQ(native["groups"].size(), 2u) << native;
  EXPECT_EQ(native["groups"][0]["threads"][0], program);
  EXPECT_THAT(native["groups"][0].dump(), HasSubstr("hang_target_waits_in_main"));
  EXPECT_THAT(native["groups"][0].dump(), HasSubstr("main+"));
  EXPECT_THAT(native["groups"][1].dump(), HasSubstr("hang_target_waits_in_thread"));
  const json kernel = Line(stacks[0].lines, "kernel");
  EXPECT_EQ(kernel["groups"][0]["call"], "read");
  EXPECT_EQ(kernel["groups"][0]["state"], "S");

  const std::string text = StacksText(stacks[0].lines);
  EXPECT_THAT(text, HasSubstr("hang_target_waits_in_thread"));
  EXPECT_THAT(text, HasSubstr("in read"));
  EXPECT_THAT(StacksSummary(stacks[0].lines), HasSubstr("hang_target_waits_in_main"));
  // Unharmed: it goes on waiting, nobody traces it, and it answers a second question.
  EXPECT_EQ(Tracer(program), "0");
  EXPECT_TRUE(Eventually([&] { return StateOf(program) == 'S'; }));
  EXPECT_TRUE(Capture({one.pid()})[0].complete);
}

TEST(HangStacks, ManyMembersAreAskedAtOnce) {
  const Supervised one({HANG_TARGET, "blocked"});
  const Supervised two({HANG_TARGET, "blocked"});
  const Supervised three({HANG_TARGET, "blocked"});
  const auto stacks = Capture({one.pid(), two.pid(), three.pid()});
  ASSERT_EQ(stacks.size(), 3u);
  for (const MemberStacks& member : stacks) EXPECT_THAT(member.lines, HasSubstr("hang_target_waits_in_main"));
}

TEST(HangStacks, AStoppedProgramIsShownAndStaysStopped) {
  const Supervised one({HANG_TARGET, "blocked"});
  const pid_t program = one.program();
  ASSERT_EQ(::kill(program, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(program) == 'T'; }));
  const auto stacks = Capture({one.pid()});
  EXPECT_EQ(Line(stacks[0].lines, "process")["state"], "T");
  EXPECT_THAT(Line(stacks[0].lines, "native").dump(), HasSubstr("hang_target_waits_in_main"));
  EXPECT_TRUE(Eventually([&] { return StateOf(program) == 'T'; }));
  ASSERT_EQ(::kill(program, SIGCONT), 0);
  EXPECT_TRUE(Eventually([&] { return StateOf(program) == 'S'; }));
}

TEST(HangStacks, AProgramThatEndsMeanwhileIsNoTrouble) {
  for (int i = 0; i < 10; ++i) {
    const Supervised one({HANG_TARGET, "blocked"});
    Loop loop;
    CaptureStacks(loop, STACKS_PROGRAM, {one.pid()}, kPlenty, false, [&](std::vector<MemberStacks> stacks) {
      EXPECT_TRUE(stacks[0].complete) << stacks[0].error;
      StopWhenReaped(loop);
    });
    loop.After(milliseconds(i), [&] { one.KillProgram(); });
    loop.Run();
  }
}

TEST(HangStacks, ASupervisorWithoutAProgramAndOneThatDoesNotExistGiveNothing) {
  const auto stacks = Capture({1 << 29});
  EXPECT_TRUE(stacks[0].complete);
  EXPECT_EQ(Line(stacks[0].lines, "process"), nullptr);
  EXPECT_EQ(StacksSummary(stacks[0].lines), "");
}

TEST(HangStacks, AForeignProcessIsRefused) {
  const Supervised one({HANG_TARGET, "blocked"});
  const Supervised other({HANG_TARGET, "blocked"});
  const std::string command = std::string(STACKS_PROGRAM) + " " + std::to_string(one.pid()) + " " +
                              std::to_string(other.program()) + " " + std::to_string(one.pid());
  FILE* out = ::popen(command.c_str(), "r");
  ASSERT_NE(out, nullptr);
  std::string lines;
  char part[4096];
  while (const size_t n = ::fread(part, 1, sizeof part, out)) lines.append(part, n);
  ::pclose(out);
  for (const pid_t pid : {other.program(), one.pid()}) {
    EXPECT_THAT(lines,
                HasSubstr("process " + std::to_string(pid) + " is not below " + std::to_string(one.pid())));
  }
  EXPECT_THAT(lines, Not(HasSubstr("native")));
  EXPECT_THAT(lines, Not(HasSubstr("kernel")));
}

TEST(HangStacks, AtTheDeadlineWhatIsThereIsGiven) {
  const Supervised one({HANG_TARGET, "blocked"});
  std::string folder = testing::TempDir() + "hang-stacks-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string slow = folder + "/slow";
  std::ofstream(slow) << "#!/bin/sh\necho '{\"kind\":\"process\",\"pid\":7}'\nprintf half\nexec sleep 600\n";
  ASSERT_EQ(::chmod(slow.c_str(), 0755), 0);
  const auto began = std::chrono::steady_clock::now();
  const auto stacks = Capture({one.pid(), one.pid()}, milliseconds(300), slow);
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(300));
  ::unlink(slow.c_str());
  ::rmdir(folder.c_str());
  ASSERT_EQ(stacks.size(), 2u);
  EXPECT_FALSE(stacks[0].complete);
  EXPECT_EQ(stacks[0].error, "not all of it was ready in time");
}

TEST(HangStacks, AMissingProgramIsAnError) {
  const Supervised one({HANG_TARGET, "blocked"});
  const auto stacks = Capture({one.pid()}, kPlenty, "/nonexistent/muster-stacks");
  EXPECT_FALSE(stacks[0].complete);
  EXPECT_THAT(stacks[0].error, HasSubstr("No such file"));
}

// A program whose flight recorder is said to have its FIFO in `folder`, as PyTorch names it.
std::vector<std::string> Recorded(const std::string& folder) {
  return {"/usr/bin/env", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" + folder + "/trace_", "RANK=7", HANG_TARGET,
          "blocked"};
}

class FlightRecorder : public testing::Test {
 protected:
  FlightRecorder() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~FlightRecorder() override { std::filesystem::remove_all(folder_); }
  static MemberStacks Ask(const Supervised& one, bool ask = true) {
    return Capture({one.pid()}, kPlenty, STACKS_PROGRAM, ask).front();
  }
  std::string folder_ = testing::TempDir() + "flight-recorder-XXXXXX";
  std::string pipe() const { return folder_ + "/trace_7.pipe"; }
};

TEST_F(FlightRecorder, IsAskedForItsDumpOnlyWhenThatIsWanted) {
  ASSERT_EQ(::mkfifo(pipe().c_str(), 0600), 0);
  const UniqueFd reader(::open(pipe().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const Supervised one(Recorded(folder_));
  char bytes[8];
  EXPECT_FALSE(Ask(one, false).dump_asked);
  EXPECT_EQ(::read(reader.get(), bytes, sizeof bytes), 0);
  const MemberStacks asked = Ask(one);
  EXPECT_TRUE(asked.dump_asked);
  EXPECT_TRUE(asked.complete);
  EXPECT_EQ(::read(reader.get(), bytes, sizeof bytes), 1);
  EXPECT_THAT(StacksText(asked.lines), HasSubstr("dump of the flight recorder asked for: " + pipe()));
}

TEST_F(FlightRecorder, ThatDoesNotReadIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(pipe().c_str(), 0600), 0);
  const Supervised one(Recorded(folder_));
  const MemberStacks stacks = Ask(one);
  EXPECT_FALSE(stacks.dump_asked);
  EXPECT_TRUE(stacks.complete);
  EXPECT_THAT(stacks.lines, HasSubstr("No such device or address"));
}

TEST_F(FlightRecorder, IsNotWhatALinkOrAFileIs) {
  const Supervised one(Recorded(folder_));
  EXPECT_THAT(Ask(one).lines, HasSubstr("No such file"));
  std::ofstream(pipe()).close();
  EXPECT_FALSE(Ask(one).dump_asked);
  EXPECT_TRUE(std::filesystem::is_empty(pipe()));
  std::filesystem::remove(pipe());
  const std::string other = folder_ + "/other";
  ASSERT_EQ(::mkfifo(other.c_str(), 0600), 0);
  const UniqueFd reader(::open(other.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::filesystem::create_symlink(other, pipe());
  EXPECT_FALSE(Ask(one).dump_asked);
}

#ifdef PYTHON_PACKAGE
constexpr char kPython[] = R"(
import threading
import time

import muster


def waits_in_thread():
    time.sleep(1000)


def waits_in_main():
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()


threading.Thread(target=waits_in_thread, daemon=True).start()
waits_in_main()
)";

std::vector<std::string> Python(const std::string& variables) {
  return {"/usr/bin/env", "PYTHONPATH=" PYTHON_PACKAGE, variables, "/usr/bin/python3", "-c", kPython};
}

TEST(HangStacks, APythonProgramThatHasImportedMusterTellsItsOwnView) {
  const Supervised one(Python("MUSTER_GANG=1.0"));
  for (int i = 0; i < 3; ++i) {  // its memory is emptied each time
    const auto stacks = Capture({one.pid()});
    const json python = Line(stacks[0].lines, "python");
    ASSERT_FALSE(python.is_null()) << stacks[0].lines;
    EXPECT_THAT(python["text"].dump(), HasSubstr("in waits_in_main"));
    EXPECT_THAT(python["text"].dump(), HasSubstr("in waits_in_thread"));
    EXPECT_LT(python["text"].size(), 20u);
    EXPECT_THAT(StacksSummary(stacks[0].lines), HasSubstr("in waits_in_main"));
    EXPECT_THAT(StacksText(stacks[0].lines), HasSubstr("in waits_in_thread"));
    EXPECT_THAT(Line(stacks[0].lines, "native").dump(), HasSubstr("PyEval"));
  }
}

TEST(HangStacks, APythonProgramThatWantsNoHandlerIsSentNoSignal) {
  const Supervised one(Python("MUSTER_PYTHON_STACKS=0"));
  const auto stacks = Capture({one.pid()});
  const json python = Line(stacks[0].lines, "python");
  EXPECT_EQ(python["text"].size(), 0u);
  EXPECT_THAT(python["error"].get<std::string>(), HasSubstr("has not imported muster"));
  EXPECT_THAT(Line(stacks[0].lines, "native").dump(), HasSubstr("PyEval"));
}

TEST(HangStacks, AStoppedPythonProgramIsSentNoSignal) {
  const Supervised one(Python("MUSTER_GANG=1.0"));
  ASSERT_EQ(::kill(one.program(), SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(one.program()) == 'T'; }));
  const auto stacks = Capture({one.pid()});
  EXPECT_EQ(Line(stacks[0].lines, "python")["error"], "it is stopped by a signal");
}
#endif

TEST(HangStacks, WhateverTheLinesSayThereIsAText) {
  for (const char* lines :
       {"", "\n\n", "{", "[]\n1\n", R"({"kind":"native","groups":7})", R"({"kind":"process","pid":{}})",
        R"({"kind":"kernel","groups":[3,{"threads":"x","frames":[1,null,"a"]}]})",
        R"({"kind":"python","text":{"a":1}})"}) {
    EXPECT_LT(StacksText(lines).size(), 1000u);
    EXPECT_LE(StacksSummary(lines).size(), 200u);
  }
}

}  // namespace
}  // namespace muster::hang
