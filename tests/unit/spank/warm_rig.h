// A supervisor with warm starts, and an environment of Python's that has muster-warm.pth.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {

using wire::Type;
using wire::WarmState;

// A virtual environment; its directory goes with it.
class Environment {
 public:
  // `interpreter`: Python's own, no environment's.
  explicit Environment(const std::filesystem::path& interpreter = "/usr/bin/python3") {
    std::string name = std::filesystem::temp_directory_path() / "muster-warm-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) directory_ = name;
    const std::string version = std::filesystem::canonical(interpreter).filename();  // as in "python3.11"
    const std::filesystem::path packages = directory_ / "lib" / version / "site-packages";
    std::filesystem::create_directories(packages);
    std::filesystem::create_directories(directory_ / "bin");
    std::filesystem::create_symlink(interpreter, directory_ / "bin/python3");
    std::ofstream(directory_ / "pyvenv.cfg")
        << "home = " << interpreter.parent_path().string() << "\ninclude-system-site-packages = false\n";
    for (const char* file : {"muster-warm.pth", "muster_warm.py"})
      std::filesystem::copy(std::filesystem::path(MUSTER_PYTHON_SOURCES) / file, packages / file);
    packages_ = packages;
  }
  ~Environment() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  // What lies there is a package of this environment too.
  void Has(const std::string& directory) { std::ofstream(packages_ / "more.pth") << directory << "\n"; }
  void Package(const std::string& name, const std::string& text) {
    std::ofstream(packages_ / (name + ".py")) << text;
  }
  void Append(const std::string& file, const std::string& text) {
    std::ofstream(packages_ / file, std::ios::app) << text;
  }
  // Python with this program.
  std::string Program(const std::string& text) {
    std::ofstream(directory_ / "program.py") << text;
    return Python() + " " + (directory_ / "program.py").string() + " argument";
  }
  [[nodiscard]] std::string Python() const { return (directory_ / "bin/python3").string(); }
  [[nodiscard]] std::filesystem::path directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  std::filesystem::path packages_;
};

class Warm : public ::testing::Test {
 protected:
  void Launch() {
    rig.Launch();
    rig.Welcome();
  }
  pid_t StartCold(uint64_t generation, const std::string& program,
                  const std::vector<std::string>& more = {}) {
    program_ = "PROGRAM=" + environment.Program(program);
    Start(generation, more);
    if (generation > 1) Expect(WarmState::kCold, generation);
    return rig.ExpectExecuted(generation);
  }
  void Start(uint64_t generation, std::vector<std::string> more = {}) {
    more.push_back(program_);
    rig.Start(generation, "", more);
  }
  void GetsOn(uint64_t generation) {
    wire::GetsOn body{};
    wire::SetHeader(&body, Type::kGetsOn);
    body.generation = generation;
    rig.Send(&body, sizeof(body));
  }
  std::string Expect(WarmState state, uint64_t generation) {
    const Packet packet = rig.ExpectPacket(Type::kWarm);
    const auto body = packet.As<wire::Warm>();
    EXPECT_EQ(body.state, static_cast<uint32_t>(state)) << packet.Tail<wire::Warm>();
    EXPECT_EQ(body.generation, generation);
    return packet.Tail<wire::Warm>();
  }
  void Stop(uint64_t generation) {
    rig.Stop(generation);
    EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).generation, generation);
  }

  // The supervisor's other child.
  pid_t Standby(pid_t program) const {
    const std::string task = std::to_string(rig.supervisor());
    std::ifstream children("/proc/" + task + "/task/" + task + "/children");
    pid_t pid = 0;
    while (children >> pid && pid == program) pid = 0;
    return pid;
  }

  explicit Warm(const std::filesystem::path& interpreter = "/usr/bin/python3") : environment(interpreter) {
    rig.settings.identity.options = "warm=yes";
    // A busy machine leaves nothing for what is idle, and a starved standby is given up.
    rig.settings.warm.at_idle = false;
    rig.settings.warm.answer_ms = 60'000;
    environment.Package("slow", "print('slow is imported', flush=True)\nvalue = 7\n");
  }

  Environment environment;
  Rig rig;
  std::string program_;
};

}  // namespace muster::supervisor
