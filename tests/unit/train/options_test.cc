#include "train/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train {
namespace {

using testing::HasSubstr;

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "muster-train");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Options, TheCollectivesAreGlooUnlessOthersAreAskedFor) {
  EXPECT_EQ(Parse({"--text", "t"}).command->collectives, "gloo");
  EXPECT_EQ(Parse({"--text", "t", "--collectives", "nccl"}).command->collectives, "nccl");
}

TEST(Options, TheCpuComputesUnlessADeviceIsAskedFor) {
  EXPECT_EQ(Parse({"--text", "t"}).command->device, "cpu");
  EXPECT_EQ(Parse({"--text", "t", "--device", "cuda"}).command->device, "cuda");
}

TEST(Options, ReachTheirPlaces) {
  const Parsed parsed = Parse({"--text",
                               "t",
                               "--width",
                               "64",
                               "--depth",
                               "3",
                               "--heads",
                               "2",
                               "--context",
                               "16",
                               "--batch",
                               "5",
                               "--steps",
                               "7",
                               "--lr",
                               "0.5",
                               "--seed",
                               "9",
                               "--checkpoint-every",
                               "0",
                               "--log-every",
                               "2",
                               "--step-seconds",
                               "0.25",
                               "--params-out",
                               "p",
                               "--operation-timeout",
                               "3"});
  ASSERT_TRUE(parsed.command.has_value());
  EXPECT_EQ(parsed.command->operation_timeout_s, 3);
  const TrainOptions& train = parsed.command->train;
  EXPECT_EQ(parsed.command->text, "t");
  EXPECT_EQ(parsed.command->parameters_out, "p");
  EXPECT_EQ(train.model.width, 64);
  EXPECT_EQ(train.model.depth, 3);
  EXPECT_EQ(train.model.heads, 2);
  EXPECT_EQ(train.model.context, 16);
  EXPECT_EQ(train.batch, 5);
  EXPECT_EQ(train.steps, 7U);
  EXPECT_EQ(train.learning_rate, 0.5F);
  EXPECT_EQ(train.seed, 9U);
  EXPECT_EQ(train.checkpoint_every, 0U);
  EXPECT_EQ(train.log_every, 2U);
  EXPECT_EQ(train.step_seconds, 0.25);
}

TEST(Options, WrongOnesAreAUsageErrorThatNamesThem) {
  struct Case {
    std::vector<const char*> arguments;
    const char* named;
  };
  for (const Case& c :
       {Case{{}, "--text"}, Case{{"--text", "t", "--depht", "2"}, "--depht"},
        Case{{"--text", "t", "--steps", "0"}, "--steps"}, Case{{"--text", "t", "--steps", "-1"}, "--steps"},
        Case{{"--text", "t", "--width", "1e9"}, "--width"},
        Case{{"--text", "t", "--operation-timeout", "0"}, "--operation-timeout"},
        Case{{"--text", "t", "--step-seconds", "-1"}, "--step-seconds"},
        Case{{"--text", "t", "--device", "gpu"}, "--device"},
        Case{{"--text", "t", "--width", "128", "--heads", "3"}, "--heads"}}) {
    testing::internal::CaptureStderr();
    const Parsed parsed = Parse(c.arguments);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(c.named));
    EXPECT_FALSE(parsed.command.has_value());
    EXPECT_EQ(parsed.status, 2);
  }
}

TEST(Options, HelpIsNotAnError) {
  testing::internal::CaptureStdout();
  const Parsed parsed = Parse({"--help"});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("--checkpoint-every"));
  EXPECT_FALSE(parsed.command.has_value());
  EXPECT_EQ(parsed.status, 0);
}

}  // namespace
}  // namespace muster::train
