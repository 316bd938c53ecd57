// What a test of the links between the nodes, before the first generation, makes of the gang. Its words come from a process of
// the job's user: they say where this gang starts, and nothing of what is true for others.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/gang/gang.h"

namespace muster::gang {

// While nothing runs yet.
void Gang::TestOrStart(const Placement& placement, Actions& out) {
  const bool wanted = settings_.preflight && !links_done_ && placement.active.size() > 1;
  if (!wanted) return StartNext(placement, out);
  const std::string& known = nodes_[placement.active.front()].links_test;
  const bool fresh = !known.empty() && std::all_of(placement.active.begin(), placement.active.end(),
                                                   [&](uint32_t i) { return nodes_[i].links_test == known; });
  if (fresh) {
    out.emplace_back(
        Note{"links", fmt::format("the links between {} nodes were found good a short time ago, in test {}",
                                  placement.active.size(), known)});
    return StartNext(placement, out);
  }
  if (tests_ == kMaxTests) {
    out.emplace_back(
        Note{"links", fmt::format("{} tests of the links have led to other nodes or were spoiled; "
                                  "the gang starts without another one",
                                  kMaxTests)});
    return StartNext(placement, out);
  }
  state_ = State::kTesting;
  test_runs_ = true;
  tested_ = placement.active;
  for (const uint32_t node : tested_) nodes_[node].links_test.clear();  // what this one says is newer
  ++tests_;
  out.emplace_back(Note{"links", fmt::format("the links between {} nodes are tested", tested_.size())});
  out.emplace_back(SetTimer{Timer::kTest, settings_.test_timeout_ms});
  out.emplace_back(Persist{});  // who takes over knows that a node that is missing was here
  out.emplace_back(TestLinks{tests_, tested_});
}

void Gang::On(const LinksTested& event, Actions& out) {
  if (state_ != State::kTesting || event.test != tests_ || event.node >= nodes_.size()) return;
  if (event.lease_port != 0) nodes_[event.node].lease_port = event.lease_port;
  if (!test_runs_ || event.node != tested_.front()) return;
  test_runs_ = false;
  links_done_ = true;
  std::vector<std::string> texts;
  if (!event.verdict) {
    texts.push_back("the links are not tested: " + event.error);
  } else {
    for (const LinkVerdict::Bad& bad : event.verdict->bad) {
      if (std::find(tested_.begin(), tested_.end(), bad.node) == tested_.end()) continue;
      Node& node = nodes_[bad.node];
      const bool leave = node.excluded.empty() && MayLeaveOut(bad.node);
      if (leave) {
        node.excluded = bad.why;
        links_done_ = false;  // a node that takes its place is to be tested too
      }
      const char* what = !node.excluded.empty() ? "is left out" : "stays, for no spare can take its place";
      texts.push_back(fmt::format("node {} {}: {}", node.name, what, bad.why));
    }
    texts.insert(texts.end(), event.verdict->warnings.begin(), event.verdict->warnings.end());
  }
  std::string report;
  for (const std::string& text : texts) {
    report += fmt::format("muster: gang {}: {}\n", settings_.id, text);
    out.emplace_back(Note{"links", text});
  }
  if (event.verdict) out.emplace_back(Note{"links", event.verdict->summary});
  if (!report.empty()) out.emplace_back(ReportToJob{Speaker({}), report});
  AfterTest(out);
}

// Whether as many nodes are left without it.
bool Gang::MayLeaveOut(uint32_t node) const {
  const Placement without = Place(Free::kWhenStopped, node);
  return without.why_not.empty() && without.active.size() == tested_.size();
}

// The node is back, or of no use any more: what runs is no test of the nodes that the gang will have.
void Gang::TestSpoiled(uint32_t node, Actions& out) {
  // What was found before of the same node may have ended the test, and begun the generation.
  if (state_ != State::kTesting || std::find(tested_.begin(), tested_.end(), node) == tested_.end()) return;
  test_runs_ = false;
  AfterTest(out);
}

void Gang::TestTimedOut(Actions& out) {
  if (state_ != State::kTesting || !test_runs_) return;
  On(LinksTested{.node = tested_.front(),
                 .test = tests_,
                 .error = fmt::format("there is no verdict after {} s", settings_.test_timeout_ms / 1000)},
     out);
}

void Gang::AfterTest(Actions& out) {
  out.emplace_back(SetTimer{Timer::kTest, -1});
  if (AnyAway(tested_)) return;
  const Placement placement = Place(Free::kNow);
  if (placement.why_not.empty() && !BatchHostLost()) return TestOrStart(placement, out);
  // As after a generation.
  state_ = State::kStopping;
  next_ = Next::kRestart;
  fault_ = Fault{.what = BatchHostLost() ? WhyUnusable(*batch_node_) : placement.why_not,
                 .cause = CauseClass::kInfrastructure};
  WhenStopped(out);
}

}  // namespace muster::gang
