// What the tests of nodes that keep copies and parity for each other share, where these talk: real sockets, a real munged.
#pragma once

#include <csignal>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tests/unit/daemon/partner_rig.h"
#include "tests/unit/daemon/private_munge.h"

namespace muster {

class PartnerPeers : public testing::Test {
 protected:
  void SetUp() override {
    if (!munge_.problem().empty()) GTEST_SKIP() << munge_.problem();
    ::signal(SIGPIPE, SIG_IGN);
  }
  static bool Eventually(const std::function<bool()>& what) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!what()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  PrivateMunge& munge_ = PrivateMunge::Get();
};

}  // namespace muster
