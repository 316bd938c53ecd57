#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "net/collectives/collectives.h"

namespace muster {
namespace {

using testing::HasSubstr;

class GroupEnvironment : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                             "GLOO_SOCKET_IFNAME", "MUSTER_COMPARE_OPERATIONS"}) {
      ::unsetenv(name);
    }
  }
  static void Set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static std::string Refusal() {
    Result<GroupOptions> options = GroupOptionsFromEnvironment();
    return options ? "" : options.error().message;
  }
};

TEST_F(GroupEnvironment, WithNothingSetTheGroupIsOne) {
  Result<GroupOptions> options = GroupOptionsFromEnvironment();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->rank, 0);
  EXPECT_EQ(options->size, 1);
}

TEST_F(GroupEnvironment, AMemberReadsItsPlace) {
  Set("RANK", "2");
  Set("WORLD_SIZE", "4");
  Set("LOCAL_RANK", "1");
  Set("MASTER_ADDR", "n0");
  Set("MASTER_PORT", "29500");
  Set("GLOO_SOCKET_IFNAME", "eth1");
  Set("MUSTER_COMPARE_OPERATIONS", "1");
  Result<GroupOptions> options = GroupOptionsFromEnvironment();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->rank, 2);
  EXPECT_EQ(options->size, 4);
  EXPECT_EQ(options->device, 1);
  EXPECT_EQ(options->master_addr, "n0");
  EXPECT_EQ(options->master_port, 29500);
  EXPECT_EQ(options->interface, "eth1");
  EXPECT_TRUE(options->compare);
}

TEST_F(GroupEnvironment, WhatIsMissingOrMalformedIsNamed) {
  Set("WORLD_SIZE", "4");
  EXPECT_THAT(Refusal(), HasSubstr("RANK is not set"));
  Set("RANK", "4");
  EXPECT_THAT(Refusal(), HasSubstr("RANK='4' is not a number from 0 to 3"));
  Set("RANK", "1");
  EXPECT_THAT(Refusal(), HasSubstr("MASTER_ADDR is not set"));
  Set("MASTER_ADDR", "n0");
  EXPECT_THAT(Refusal(), HasSubstr("MASTER_PORT is not set"));
  Set("MASTER_PORT", "65536");
  EXPECT_THAT(Refusal(), HasSubstr("MASTER_PORT='65536'"));
  Set("MASTER_PORT", "1");
  Set("MUSTER_COMPARE_OPERATIONS", "yes");
  EXPECT_THAT(Refusal(), HasSubstr("MUSTER_COMPARE_OPERATIONS='yes' is not a number from 0 to 1"));
  for (const char* bad : {"0", "-1", "4x", " 4", "99999999999999999999"}) {
    Set("WORLD_SIZE", bad);
    EXPECT_THAT(Refusal(), HasSubstr("WORLD_SIZE")) << bad;
  }
}

}  // namespace
}  // namespace muster
