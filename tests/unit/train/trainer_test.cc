#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/unit/net/processes.h"
#include "train/host_ops.h"

namespace muster::train {
namespace {

using test::Fail;
using test::FreePort;
using test::RunMembers;
using test::ScratchDirectory;
using test::SharedFloats;
using test::Succeeded;
using testing::Each;
using testing::ResultOf;

constexpr int kMembers = 3;

TrainOptions Small() {
  return {.model = {.width = 16, .depth = 1, .heads = 2, .context = 8},
          .batch = 2,
          .steps = 12,
          .learning_rate = 1e-2F,
          .seed = 5,
          .checkpoint_every = 4,
          .log_every = 0};
}

Corpus Text() {
  std::vector<std::uint8_t> text(999);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>('a' + i * i % 23);
  return Corpus(std::move(text));
}

// One generation: members with their checkpoints in `directory(rank)`, all doing `check` on their result.
using Check = std::function<int(int rank, const Result<Outcome>&, const std::vector<std::string>& said)>;
struct Generation {
  TrainOptions options = Small();
  std::function<std::string(int rank)> directory;           // empty: not started by Muster
  std::function<bool(int rank, int asked)> stop_requested;  // asked once a step
  int members = kMembers;
  std::string collectives = "gloo";
};

std::vector<int> RunGeneration(const Generation& generation, const Check& check) {
  const int members = generation.members;
  const std::uint16_t port = FreePort();
  const ScratchDirectory exchange;
  return RunMembers(members, [&](int rank) {
    if (generation.directory) {
      ::setenv("MUSTER_TEST_EXCHANGE", exchange.path().c_str(), 1);
      ::setenv("MUSTER_TEST_DIRECTORY", generation.directory(rank).c_str(), 1);
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(members).c_str(), 1);
    }
    const Result<Handle> muster = OpenMuster();
    if (!muster) return Fail(muster.error().message);
    if ((*muster == nullptr) == static_cast<bool>(generation.directory)) return Fail("in a gang or not?");
    GroupOptions group_options = test::LoopbackGroup(rank, members, port);
    std::optional<Checkpoints> checkpoints;
    if (*muster != nullptr) {
      checkpoints.emplace(muster->get(), generation.options.model, rank, members);
      group_options.exchange = ExchangeOver(muster->get());
    }
    group_options.device = rank;
    group_options.nccl_library = STAND_IN_NCCL;
    group_options.cuda_library = STAND_IN_NCCL;
    Result<std::unique_ptr<Collectives>> group = MakeCollectives(generation.collectives, group_options);
    if (!group) return Fail(group.error().message);
    std::vector<std::string> said;
    int asked = 0;
    HostOps ops;
    const TrainContext context{
        ops, **group, checkpoints ? &*checkpoints : nullptr,
        [&](const std::string& line) { said.push_back(line); },
        [&] { return generation.stop_requested && generation.stop_requested(rank, ++asked); }};
    return check(rank, Train(generation.options, Text(), context), said);
  });
}

// A generation that must train to the end; rank 0's weights.
std::vector<float> TrainToTheEnd(const Generation& generation, const std::string& expected_line = "") {
  SharedFloats shared(Layout(generation.options.model).size);
  const std::vector<int> statuses = RunGeneration(
      generation, [&](int rank, const Result<Outcome>& outcome, const std::vector<std::string>& said) {
        if (!outcome) return Fail(outcome.error().message);
        if (!outcome->finished || outcome->step != generation.options.steps) return Fail("not finished");
        if (rank != 0) return said.empty() ? 0 : Fail("a member other than rank 0 spoke");
        if (!expected_line.empty() && std::find(said.begin(), said.end(), expected_line) == said.end()) {
          return Fail("did not say '" + expected_line + "' but '" + (said.empty() ? "" : said.front()) + "'");
        }
        std::copy(outcome->parameters.begin(), outcome->parameters.end(), shared.values().begin());
        return 0;
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
  return {shared.values().begin(), shared.values().end()};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::function<std::string(int)> In(const ScratchDirectory& directory) {
  return [&directory](int) { return directory.path(); };
}

TEST(Trainer, ARunThatLostAMemberEndsWithTheBitsOfOneThatDidNot) {
  const std::vector<float> clean = TrainToTheEnd({});
  const ScratchDirectory directory;
  Generation faulty{.directory = In(directory), .stop_requested = [](int rank, int asked) {
                      if (rank == 1 && asked == 7) ::raise(SIGKILL);
                      return false;
                    }};
  const std::vector<int> statuses =
      RunGeneration(faulty, [](int, const Result<Outcome>& outcome, const std::vector<std::string>&) {
        if (outcome) return Fail("no error without a member");
        return outcome.error().code == Errc::kUnavailable ? 0 : Fail(outcome.error().message);
      });
  EXPECT_TRUE(Succeeded(statuses[0]));
  EXPECT_FALSE(Succeeded(statuses[1]));
  EXPECT_TRUE(Succeeded(statuses[2]));
  const std::vector<float> healed = TrainToTheEnd({.directory = In(directory)}, "resumed from step 4");
  EXPECT_TRUE(SameBits(clean, healed));
  EXPECT_FALSE(clean.empty());
}

TEST(Trainer, AStepThatTakesLongerOnPurposeChangesNothingElse) {
  TrainOptions slow = Small();
  slow.step_seconds = 0.02;
  const auto began = std::chrono::steady_clock::now();
  const std::vector<float> weights = TrainToTheEnd({.options = slow});
  EXPECT_GE(std::chrono::steady_clock::now() - began,
            static_cast<int>(slow.steps) * std::chrono::milliseconds(20));
  EXPECT_TRUE(SameBits(weights, TrainToTheEnd({})));
}

TEST(Trainer, TheWeightsOverNcclAreThoseOverGlooAlsoAfterALoss) {
  // The stand-in for NCCL adds in Gloo's order.
  const std::vector<float> gloo = TrainToTheEnd({});
  EXPECT_TRUE(SameBits(gloo, TrainToTheEnd({.collectives = "nccl"})));
  const ScratchDirectory directory;
  Generation faulty{.directory = In(directory),
                    .stop_requested =
                        [](int rank, int asked) {
                          if (rank == 1 && asked == 7) ::raise(SIGKILL);
                          return false;
                        },
                    .collectives = "nccl"};
  const std::vector<int> statuses =
      RunGeneration(faulty, [](int, const Result<Outcome>& outcome, const std::vector<std::string>&) {
        if (outcome || outcome.error().code != Errc::kUnavailable) return Fail("no error without a member");
        return outcome.error().message.find("NCCL 2.27.3") != std::string::npos
                   ? 0
                   : Fail(outcome.error().message);
      });
  EXPECT_TRUE(Succeeded(statuses[0]));
  EXPECT_FALSE(Succeeded(statuses[1]));
  EXPECT_TRUE(Succeeded(statuses[2]));
  EXPECT_TRUE(SameBits(
      gloo, TrainToTheEnd({.directory = In(directory), .collectives = "nccl"}, "resumed from step 4")));
}

TEST(Trainer, AnExchangeBesideTheBackwardPassGivesTheSameBits) {
  Generation generation;
  generation.options.model.depth = 3;
  for (const int members : {2, 3, 4}) {
    generation.members = members;
    generation.options.exchange = {.bucket_bytes = 1024, .overlap = true};
    const std::vector<float> beside = TrainToTheEnd(generation);
    generation.options.exchange.overlap = false;
    EXPECT_TRUE(SameBits(beside, TrainToTheEnd(generation))) << members << " members";
    if (members == 3) continue;  // a ring's order of additions depends on the parts
    generation.options.exchange.bucket_bytes = 1U << 30U;
    EXPECT_TRUE(SameBits(beside, TrainToTheEnd(generation))) << members << " members, in one part";
  }
}

TEST(Trainer, ProgressIsSaidBeforeTheOthersAreWaitedFor) {
  const ScratchDirectory directory;
  (void)RunGeneration({.directory = In(directory),
                       .stop_requested =
                           [](int rank, int asked) {
                             if (rank == 1 && asked == 7) ::raise(SIGKILL);
                             return false;
                           }},
                      [](int, const Result<Outcome>&, const std::vector<std::string>&) { return 0; });
  int step = 0;
  std::ifstream(directory.path() + "/progress.1") >> step;
  EXPECT_EQ(step, 7);
}

TEST(Trainer, AGangThatShrinksAndGrowsGoesOnWithTheSameWeights) {
  const ScratchDirectory directory;
  Generation generation{.directory = In(directory), .members = 4};
  const auto train = [&](int members, std::uint64_t steps, const std::string& expected) {
    generation.members = members;
    generation.options.steps = steps;
    return TrainToTheEnd(generation, expected);
  };
  const std::vector<float> four = train(4, 4, "");
  EXPECT_TRUE(SameBits(four, train(3, 4, "resumed from step 4"))) << "nothing is left to do but to restore";
  const std::vector<float> three = train(3, 8, "resumed from step 4");
  EXPECT_FALSE(SameBits(four, three)) << "it has learned";
  EXPECT_TRUE(SameBits(three, train(4, 8, "resumed from step 8")));
  EXPECT_TRUE(SameBits(three, train(1, 8, "resumed from step 8")));
  const std::vector<float> again = train(4, 12, "resumed from step 8");
  EXPECT_TRUE(SameBits(again, train(3, 12, "resumed from step 12")));
}

TEST(Trainer, ARunThatIsAlreadyAtItsEndGivesTheSameWeightsAgain) {
  const ScratchDirectory directory;
  const std::vector<float> first = TrainToTheEnd({.directory = In(directory)});
  const std::vector<float> again = TrainToTheEnd({.directory = In(directory)}, "resumed from step 12");
  EXPECT_TRUE(SameBits(first, again));
}

TEST(Trainer, OneMembersRequestToStopStopsAllAtTheSameStepWithACheckpoint) {
  const ScratchDirectory directory;
  const std::vector<int> statuses =
      RunGeneration({.directory = In(directory),
                     .stop_requested = [](int rank, int asked) { return rank == 2 && asked == 6; }},
                    [](int rank, const Result<Outcome>& outcome, const std::vector<std::string>& said) {
                      if (!outcome) return Fail(outcome.error().message);
                      if (outcome->finished || outcome->step != 6)
                        return Fail("step " + std::to_string(outcome->step));
                      if (rank == 0 && said.back() != "stopped after step 6, checkpoint committed")
                        return Fail(said.back());
                      return 0;
                    });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
  EXPECT_TRUE(
      SameBits(TrainToTheEnd({}), TrainToTheEnd({.directory = In(directory)}, "resumed from step 6")));
}

TEST(Trainer, ACheckpointThatOneMemberCannotTakeIsLeftOutByAll) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() + "/busy-8.1").flush();
  (void)TrainToTheEnd({.directory = In(directory)},
                      "checkpoint of step 8 left out: 1 of 3 members still have older ones under way");
  for (int rank = 0; rank < kMembers; ++rank) {
    const std::string suffix = "." + std::to_string(rank);
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/4" + suffix));
    EXPECT_FALSE(std::filesystem::exists(directory.path() + "/8" + suffix));
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/12" + suffix));
  }
}

TEST(Trainer, ACheckpointThatIsAskedForAtAStepIsTakenThereAndLeftOutIsTakenAtTheNext) {
  const ScratchDirectory directory;
  for (const char* name : {"/save-at.3", "/save-at.6", "/busy-6.1"})
    std::ofstream(directory.path() + name).flush();
  Generation generation{.directory = In(directory)};
  generation.options.checkpoint_every = 0;
  (void)TrainToTheEnd(generation);
  for (int step = 1; step <= 12; ++step) {
    const bool exists = std::filesystem::exists(directory.path() + "/" + std::to_string(step) + ".0");
    EXPECT_EQ(exists, step == 3 || step == 7) << step;
  }
}

TEST(Trainer, ACheckpointHoldsOneCopyOfTheState) {
  const ScratchDirectory directory;
  (void)TrainToTheEnd({.directory = In(directory)});
  std::uintmax_t bytes = 0;
  for (int rank = 0; rank < kMembers; ++rank) {
    bytes += std::filesystem::file_size(directory.path() + "/12." + std::to_string(rank));
  }
  const std::uintmax_t state = 3 * sizeof(float) * Layout(Small().model).size;
  EXPECT_GE(bytes, state);
  EXPECT_LT(bytes, state + kMembers * 512);
}

TEST(Trainer, ACheckpointOfAnotherModelIsRefused) {
  const ScratchDirectory directory;
  (void)TrainToTheEnd({.directory = In(directory)});
  Generation other{.directory = In(directory)};
  other.options.model.depth = 2;
  const std::vector<int> statuses =
      RunGeneration(other, [](int, const Result<Outcome>& outcome, const std::vector<std::string>&) {
        if (outcome) return Fail("took it");
        const std::string& why = outcome.error().message;
        const bool lost = outcome.error().code == Errc::kUnavailable;  // another member was quicker to refuse
        return lost || (why.find("depth=1") != std::string::npos && why.find("depth=2") != std::string::npos)
                   ? 0
                   : Fail(why);
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(Trainer, MembersThatWouldStartFromDifferentStepsDoNotStart) {
  const ScratchDirectory directory;
  const ScratchDirectory empty;
  (void)TrainToTheEnd({.directory = In(directory)});
  const std::vector<int> statuses = RunGeneration(
      {.directory = [&](int rank) { return rank == 1 ? empty.path() : directory.path(); }},
      [](int, const Result<Outcome>& outcome, const std::vector<std::string>&) {
        return !outcome && outcome.error().message.find("rank 0 from step 12") != std::string::npos
                   ? 0
                   : Fail("started");
      });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

}  // namespace
}  // namespace muster::train
