// Steps that all members agree on, in random schedules: coordinators die in any moment or go on beside the next one, musterds
// restart, links break, members open late. No two members are ever answered differently of a step, and nobody waits when all are
// well again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/test_seed.h"
#include "tests/unit/daemon/steps_net.h"

namespace muster::steps {
namespace {

constexpr uint64_t kSchedules = 3'000;
// From when all are well again: a link, a question, a proposal, and a tick of each.
constexpr int64_t kHealedMs = 3'000;

struct Reached {
  uint64_t wished = 0;
  uint64_t takeovers = 0;
  uint64_t waited = 0;
  uint64_t restarts = 0;
  uint64_t passed = 0;
};

std::vector<uint64_t> RandomSteps(StepsNet& net) {
  std::vector<uint64_t> steps;
  const int64_t kind = net.Random(0, 3);
  uint64_t step = static_cast<uint64_t>(net.Random(0, 50));
  const auto stride = static_cast<uint64_t>(net.Random(2, 20));
  for (int i = 0; i < 300; ++i) {
    steps.push_back(step);
    step += kind == 0 ? stride : kind == 1 ? static_cast<uint64_t>(net.Random(1, 4)) : 1;
  }
  return steps;
}

void RunOne(uint64_t seed, Reached* reached) {
  StepsNet::Settings settings;
  settings.seed = seed;
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  settings.nodes = static_cast<uint32_t>(draw(1, 4));
  settings.each = static_cast<uint32_t>(draw(1, 3));
  settings.longest_delay_ms = draw(0, 3) == 0 ? 200 : draw(1, 10);
  settings.step_ms = draw(1, 40);
  settings.together = draw(0, 2) != 0;
  settings.astray = draw(0, 1) * 20;
  StepsNet net(settings);
  const auto node = [&] { return static_cast<uint32_t>(draw(0, settings.nodes - 1)); };
  const bool alike = draw(0, 4) != 0;
  bool restarted = false;
  const std::vector<uint64_t> steps = RandomSteps(net);
  for (uint32_t rank = 0; rank < net.ranks(); ++rank) {
    net.SetSteps(rank, alike ? steps : RandomSteps(net));
    if (draw(0, 3) != 0) net.Open(rank);
  }
  for (int64_t faults = draw(3, 25); faults > 0; --faults) {
    net.Run(draw(0, 250));
    switch (draw(0, 9)) {
      case 0:
      case 1:
      case 2:
        net.Want(true, draw(0, 2) == 0, "wanted");
        break;
      case 3:
        net.TakeOver(draw(0, 1) == 0);
        ++reached->takeovers;
        break;
      case 4:
        net.KillCoordinator();
        net.Run(draw(0, 1'500));
        net.TakeOver(false);
        ++reached->takeovers;
        break;
      case 5:
        net.RestartMusterd(node(), draw(0, 800));
        restarted = true;
        ++reached->restarts;
        break;
      case 6:
        net.BreakLink(node());
        break;
      case 7:
        net.OpenAll();
        break;
      case 8:
        net.Reopen(static_cast<uint32_t>(draw(0, net.ranks() - 1)));
        break;
      default:
        net.RefuseToKeep(node(), draw(0, 1) == 0);
        break;
    }
    reached->waited += net.Waiting().empty() ? 0 : 1;
    ASSERT_EQ(net.Differs(), "") << "seed " << seed;
  }
  for (uint32_t i = 0; i < settings.nodes; ++i) net.RefuseToKeep(i, false);
  net.OpenAll();
  net.Want(true, false, "peace");
  net.Run(kHealedMs);
  const int64_t longest = net.LongestWait();
  EXPECT_TRUE(net.RunUntil([&] { return net.AllDone(); }, 600'000))
      << "seed " << seed << ": ranks wait: " << net.Waiting().size();
  ASSERT_EQ(net.Differs(), "") << "seed " << seed;
  // Who waited since then waited for answers only.
  if (net.LongestWait() > longest) {
    ASSERT_LE(net.LongestWait(), kPatienceMs + 1'000) << "seed " << seed;
  }
  // Of those who were heard all the time a step is agreed on.
  const auto is_agreed = [](const std::string& note) { return note.starts_with("all ranks "); };
  if (!restarted) {
    ASSERT_TRUE(std::any_of(net.notes().begin(), net.notes().end(), is_agreed)) << "seed " << seed;
  }
  reached->wished += net.Wished().size();
  for (const std::string& note : net.notes())
    reached->passed += note.find(" and not step ") != std::string::npos;
}

TEST(StepsRandom, NoTwoMembersAreAnsweredDifferently) {
  Reached reached;
  for (uint64_t i = 0; i < kSchedules && !::testing::Test::HasFailure(); ++i)
    RunOne(FirstSchedule() + i, &reached);
  // The schedules are not empty.
  EXPECT_GT(reached.wished, kSchedules);
  EXPECT_GT(reached.takeovers, kSchedules);
  EXPECT_GT(reached.restarts, kSchedules / 2);
  EXPECT_GT(reached.waited, kSchedules / 20);
  EXPECT_GT(reached.passed, kSchedules / 100);
  fmt::print(
      "{} schedules: {} wishes, {} takeovers, {} restarts of musterd, {} times somebody waited, {} steps "
      "passed\n",
      kSchedules, reached.wished, reached.takeovers, reached.restarts, reached.waited, reached.passed);
}

}  // namespace
}  // namespace muster::steps
