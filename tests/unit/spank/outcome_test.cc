// What srun reads in `muster --json status`.
#include "spank-plugin/outcome.h"

#include <gtest/gtest.h>

#include <string>

// Of Slurm's and glibc's, what the source calls and these tests do not.
extern "C" void slurm_info(const char* /*format*/, ...) {}

namespace muster::plugin {
namespace {

std::string Gang(int64_t launched_ns, const std::string& state, bool succeeded) {
  return "{ \"gang\": \"13.0\",\n \"launched_ns\": " + std::to_string(launched_ns) +
         ",\n \"nodes\": [\"n1\"],\n \"state\": \"" + state +
         "\",\n \"succeeded\": " + (succeeded ? "true" : "false") + ",\n \"tasks\": 2 }";
}

TEST(Outcome, IsThatOfTheGangOfThisLaunch) {
  const std::string older = Gang(17, "finished", true);
  EXPECT_EQ(OutcomeIn(Gang(170, "finished", true).c_str(), 170), Outcome::kSucceeded);
  EXPECT_EQ(OutcomeIn(Gang(170, "finished", false).c_str(), 170), Outcome::kFailed);
  EXPECT_EQ(OutcomeIn(Gang(170, "stopping", true).c_str(), 170), Outcome::kRuns);
  EXPECT_EQ(OutcomeIn((older + "," + Gang(170, "finished", false)).c_str(), 170), Outcome::kFailed);
  EXPECT_EQ(OutcomeIn((older + "," + Gang(170, "running", false)).c_str(), 170), Outcome::kRuns);
  EXPECT_EQ(OutcomeIn(older.c_str(), 170), Outcome::kUnknown);
  EXPECT_EQ(OutcomeIn(older.c_str(), 1), Outcome::kUnknown);
}

TEST(Outcome, IsUnknownWhereTheTextEnds) {
  const std::string whole = Gang(170, "finished", true);
  const size_t last = whole.find("true") + 4;
  for (size_t size = 0; size < last; ++size)
    EXPECT_NE(OutcomeIn(whole.substr(0, size).c_str(), 170), Outcome::kSucceeded);
  EXPECT_EQ(OutcomeIn("", 0), Outcome::kUnknown);
}

}  // namespace
}  // namespace muster::plugin
