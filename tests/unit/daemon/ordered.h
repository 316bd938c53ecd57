// In the place of the shell that carries the core's orders out.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/coordinator/core.h"

namespace muster {

// Writes down what is ordered, in the order in which it is.
class Ordered : public CoordinatorCore::Shell,
                public CoordinatorCore::RecordShell,
                public CoordinatorCore::SlurmShell,
                public CoordinatorCore::SaveShell,
                public CoordinatorCore::LeaseShell {
 public:
  std::vector<std::string> Take() { return std::exchange(said, {}); }

  [[nodiscard]] int64_t Now() const override { return now; }
  void Do(const gang::TestLinks& /*action*/) override {}
  void Do(const gang::ReportToJob& /*action*/) override {}
  void Do(const gang::Note& action) override {
    if (action.kind == "restore" || action.kind == "requeue_failed") said.push_back(action.text);
  }
  void Do(const gang::TellMembers& /*action*/) override {}
  void Do(const gang::SetTimer& /*action*/) override {}
  void Do(const gang::LoseNode& /*action*/) override {}
  void Do(const gang::DrainInSlurm& /*action*/) override {}
  void Fed(gang::State /*before*/, uint64_t /*generation*/) override {}
  void WriteRecord(const RecordFence::Advance& advance) override {
    said.push_back(fmt::format("write {}.{}", advance.to.term, advance.to.generation));
  }
  void WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& /*sets*/) override {
    said.push_back(fmt::format("raise {}", advance.to.term));
  }
  void FindSuccessor(const std::string& /*why*/) override { said.emplace_back("find successor"); }
  void AskTerm() override { said.emplace_back("ask term"); }
  void MarkBad(const gang::RejectCheckpoint& bad, bool later) override {
    said.push_back(fmt::format("mark {}{}", bad.step, later ? " later" : ""));
  }
  void BuildStart(const Starts::Prepared& /*prepared*/) override { said.emplace_back("build start"); }
  void SendStart(const std::set<uint32_t>& nodes) override {
    said.push_back(fmt::format("start {}", fmt::join(nodes, ",")));
  }
  void SendStop(const gang::StopGeneration& stop) override {
    said.push_back(fmt::format("stop {}", stop.generation));
  }
  void BuildFinish(const gang::FinishGang& /*finish*/) override {}
  void SendFinish(const std::set<uint32_t>& nodes) override {
    said.push_back(fmt::format("finish {}", fmt::join(nodes, ",")));
  }
  void Attend(uint32_t node) override { said.push_back(fmt::format("attend {}", node)); }
  void CloseLink(uint32_t node) override { said.push_back(fmt::format("close {}", node)); }
  void AwaitEndRecord() override { said.emplace_back("await record of end"); }
  Status OrderRequeue(const gang::RequeueJob& /*action*/) override { return may_requeue; }
  void Requeue() override { said.emplace_back("requeue"); }
  void MaybeOver() override {}
  void Commit(const PendingSaves::Commit& commit, const Fence& fence,
              const std::set<uint64_t>& kept) override {
    said.push_back(fmt::format("commit {} under {}.{} keeping {}", commit.manifest->step, fence.term,
                               fence.generation, fmt::join(kept, ",")));
    manifest = *commit.manifest;
    manifest.fence = fence;
  }
  void Do(const PendingSaves::Tell& action) override {
    said.push_back(fmt::format("tell {}{}", action.step, action.error.empty() ? "" : " failed"));
  }
  void Do(const PendingSaves::Wait& /*action*/) override { said.emplace_back("commit again later"); }
  void Do(const PendingSaves::Note& /*action*/) override {}
  void Do(const PendingSaves::StoreRefuses& /*action*/) override {}
  void Committed(const Manifest& committed, const PendingSaves::Over& /*over*/) override {
    said.push_back(fmt::format("committed {}", committed.step));
  }
  void Collect() override { ++collected; }
  [[nodiscard]] bool HasLease() const override { return lease; }
  void Lead(const lease::LeadSettings& /*settings*/) override { lease = true; }
  void NodeAttached(uint32_t /*node*/) override {}
  void NodeClosed(uint32_t node) override { said.push_back(fmt::format("closed {}", node)); }
  void NodeRemoved(uint32_t node) override { said.push_back(fmt::format("removed {}", node)); }
  void SetStop(uint64_t /*generation*/) override {}
  void StoreConfirmed(int64_t /*asked_at*/) override {}
  void Depose(uint64_t /*term*/) override { said.emplace_back("depose"); }
  void RaiseAt(std::optional<int64_t> /*at*/) override {}
  void Probe() override {}
  void ProbeAbsent() override {}

  std::vector<std::string> said;
  Manifest manifest;  // of the newest commit
  int collected = 0;
  int64_t now = 0;
  bool lease = false;
  Status may_requeue;
};

}  // namespace muster
