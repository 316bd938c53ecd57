// A gang of two members, each a program with libmuster in this process, on the daemons of two nodes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "client/muster.h"
#include "tests/unit/daemon/daemon_fixture.h"

namespace muster {

class TwoPrograms : public TwoDaemons {
 protected:
  struct CloseHandle {
    void operator()(muster_handle* handle) const { muster_close(handle); }
  };
  using Handle = std::unique_ptr<muster_handle, CloseHandle>;

  void SetUp() override {
    TwoDaemons::SetUp();
    if (IsSkipped()) return;
    for (uint32_t node = 0; node < 2; ++node)
      ASSERT_TRUE(supervisors_[node].Join(daemons_[node]->socket(), "n[1-2]", "name=two"));
    StartAll();
  }
  // A new generation, and a program in each member.
  void StartAll() {
    for (uint32_t node = 0; node < 2; ++node) {
      handles_[node].reset();
      const auto start = supervisors_[node].Next(wire::Type::kStart);
      ASSERT_TRUE(start);
      generation_ = start->As<wire::Start>().generation;
      supervisors_[node].Executed(generation_);
      for (const auto& [name, value] : start->environment) ::setenv(name.c_str(), value.c_str(), 1);
      muster_handle* handle = nullptr;
      ASSERT_EQ(muster_open(&handle), MUSTER_OK) << muster_last_error(nullptr);
      handles_[node].reset(handle);
    }
  }
  // A node's musterd, while its member runs on.
  void Restart(uint32_t node) {
    daemons_[node].reset();
    StartDaemon(node);
    ASSERT_TRUE(
        supervisors_[node].Rejoin(daemons_[node]->socket(), wire::MemberState::kRunning, generation_));
  }

  TestSupervisor supervisors_[2]{TestSupervisor(StepHello(41, 0, 2)), TestSupervisor(StepHello(41, 1, 2))};
  Handle handles_[2];
  uint64_t generation_ = 0;
};

}  // namespace muster
