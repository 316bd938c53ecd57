// libmuster against a musterd of the test's own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "client/muster.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/client/fake_musterd.h"

namespace muster {

inline constexpr char kToken[] = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf";

class Libmuster : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("MUSTER_GANG", "7.0", 1);
    ::setenv("MUSTER_GENERATION", "3", 1);
    ::setenv("RANK", "2", 1);
    ::setenv("MUSTER_TOKEN", kToken, 1);
    ::setenv("MUSTER_SOCKET", path_.c_str(), 1);
  }
  void TearDown() override {
    muster_close(m_);
    for (const char* name : {"MUSTER_GANG", "MUSTER_GENERATION", "RANK", "MUSTER_TOKEN", "MUSTER_SOCKET"}) {
      ::unsetenv(name);
    }
  }

  void Open() { ASSERT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr); }
  std::string Said() const { return muster_last_error(m_); }
  int Save(uint64_t step, const std::string& data = "data") {
    if (const int status = muster_save_begin(m_, step, data.size()); status != MUSTER_OK) return status;
    if (const int status = muster_save_add(m_, "x", nullptr, data.data(), data.size()); status != MUSTER_OK) {
      return status;
    }
    return muster_save_commit(m_);
  }
  // Calls into the library until the condition holds, as a training loop does.
  bool Eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      (void)muster_committed(m_);
      if (condition()) return true;
      ::usleep(1000);
    }
    return false;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/musterd.sock";
  FakeMusterd musterd_{path_};
  muster_handle* m_ = nullptr;
};

}  // namespace muster
