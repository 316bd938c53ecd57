#include "tests/unit/daemon/beat_rig.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/process_tree.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr auto kDeadline = 60s;  // for a hang
constexpr auto kLook = 1ms;
constexpr char kNodeList[] = "127.0.0.[1-3]";
constexpr char kGang[] = "12.0";

// Whether no door below a process has anything to hand on: each waits.
bool DoorsAtRest(pid_t process) {
  for (const pid_t child : ChildrenOf(process)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/stat");
    std::string stat;
    std::getline(file, stat);  // nothing of one that has ended meanwhile
    constexpr std::string_view kName = "(muster-door) ";
    const size_t name = stat.find(kName);
    if (name == std::string::npos) continue;
    const char state = stat[name + kName.size()];
    if (state == 'R' || state == 'D' || !DoorsAtRest(child)) return false;
  }
  return true;
}

}  // namespace

void BeatRig::SetUp() {
  auto port = PortLease::Take(18'000, 18'999, 1);
  ASSERT_TRUE(port) << port.error().message;
  port_ = *std::move(port);
  net_.emplace(port_->port());
  store_->SetFault([gate = record_gate_](const std::string& operation, const std::string& name) -> Status {
    if (operation != "update_head" || !name.starts_with("gang/")) return {};
    std::unique_lock lock(gate->mutex);
    ++gate->waiting;
    gate->changed.wait(lock, [&] { return !gate->shut; });
    --gate->waiting;
    return {};
  });
  for (uint32_t node = 0; node < kNodes; ++node) StartDaemon(node);
}

void BeatRig::TearDown() {
  ReleaseRecord();
  for (uint32_t node = 0; node < kNodes; ++node) ReleaseLoop(node);
  for (auto& daemon : daemons_) daemon.reset();
}

void BeatRig::StartDaemon(uint32_t node, LoopClock& clock) {
  daemons_[node] = std::make_unique<TestDaemon>(
      BeatNet::HostOf(node), BeatNet::HostOf(node), port_->port(), directory_.path(), EngineOptions(), store_,
      TestLinks{net_->DialFrom(node),
                [this, node](AcceptLink accept) { return net_->Listen(node, std::move(accept)); }},
      TestBeat{times_, net_->NewClock(), net_->NewSocket(node)}, clock);
}

void BeatRig::EndDaemon(uint32_t node) {
  daemons_[node].reset();
}

void BeatRig::CutOff(uint32_t node) {
  for (uint32_t other = 0; other < kNodes; ++other) {
    if (other != node) net_->Cut(node, other);
  }
}

void BeatRig::MendAll(uint32_t node) {
  for (uint32_t other = 0; other < kNodes; ++other) {
    if (other != node) net_->Mend(node, other);
  }
}

// ---- the gang

void BeatRig::Join(const char* options) {
  for (uint32_t node = 0; node < kNodes; ++node)
    ASSERT_TRUE(members_[node].Join(daemons_[node]->socket(), kNodeList, options)) << "node " << node;
}

void BeatRig::ExpectStart(uint64_t generation, const std::vector<uint32_t>& nodes) {
  for (const uint32_t node : nodes) {
    ASSERT_TRUE(InTime([&] { return HasStart(node); })) << "node " << node;
    const auto start = members_[node].Next(wire::Type::kStart);
    EXPECT_EQ(start->As<wire::Start>().generation, generation) << "node " << node;
    members_[node].Executed(generation);
  }
}

void BeatRig::ExpectStopAndStop(uint64_t generation, const std::vector<uint32_t>& nodes) {
  for (const uint32_t node : nodes) {
    const auto stop = members_[node].Next(wire::Type::kStop);
    ASSERT_TRUE(stop) << "node " << node;
    EXPECT_EQ(stop->As<wire::Stop>().generation, generation) << "node " << node;
    members_[node].Stopped(generation);
  }
}

void BeatRig::RunFirst() {
  Join();
  ExpectStart(1);
  ASSERT_TRUE(InTime([&] {
    const auto record = RecordIn(kCoordinator);
    return record && record->state == "running" && InStore().fence.generation == 1;
  }));
  Advance(2 * times_.beat);
}

// ---- time

void BeatRig::Settle() {
  const auto deadline = steady_clock::now() + kDeadline;
  uint64_t before = 0;
  do {
    before = net_->activity();
    for (int round = 0; round < 2; ++round) {
      for (uint32_t node = 0; node < kNodes; ++node) {
        if (daemons_[node] && !loop_gates_[node])
          daemons_[node]->On([&] { daemons_[node]->beat()->LoopAlive(); });
      }
      while (!net_->Idle() || !DoorsAtRest(::getpid())) {
        ASSERT_LT(steady_clock::now(), deadline) << "the beats' threads do not come to rest";
        std::this_thread::yield();
      }
    }
    ASSERT_LT(steady_clock::now(), deadline) << "the daemons do not come to rest";
  } while (net_->activity() != before);
}

void BeatRig::Advance(lease::Nanos time) {
  Settle();
  for (lease::Nanos gone = 0; gone < time && !HasFatalFailure(); gone += kStep) {
    net_->Move(std::min(kStep, time - gone));
    Settle();
  }
}

lease::Nanos BeatRig::AdvanceUntil(const char* what, lease::Nanos limit, const std::function<bool()>& so) {
  Settle();
  lease::Nanos gone = 0;
  while (!so() && !HasFatalFailure()) {
    if (gone >= limit) {
      ADD_FAILURE() << "not within " << limit / lease::kMillisecond << " ms: " << what;
      return gone;
    }
    net_->Move(kStep);
    gone += kStep;
    Settle();
  }
  return gone;
}

bool BeatRig::Eventually(const std::function<bool()>& so) {
  const auto deadline = steady_clock::now() + kDeadline;
  while (!so()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kLook);
  }
  Settle();
  return true;
}

bool BeatRig::InTime(const std::function<bool()>& so) {
  return Eventually([&] {
    if (so()) return true;
    Advance(kStep);
    return false;
  });
}

// ---- what there is to see

std::optional<GangRecord> BeatRig::RecordIn(uint32_t node) {
  return daemons_[node]->On([&]() -> std::optional<GangRecord> {
    const auto coordinator = daemons_[node]->coordinators().Find(kGang);
    if (!coordinator) return std::nullopt;
    return coordinator->Record();
  });
}

KnownCoordinator BeatRig::KnownIn(uint32_t node) {
  return daemons_[node]->On([&] {
    const LocalGang* gang = daemons_[node]->agent().Find(kGang);
    return gang == nullptr ? KnownCoordinator() : gang->Coordinator();
  });
}

GangHead BeatRig::InStore() {
  const auto head = Catalog(store_, SpaceOf(1000), "job-12.0").Load();
  EXPECT_TRUE(head) << head.error().message;
  return head ? *head : GangHead();
}

bool BeatRig::Lost(uint32_t node, uint32_t coordinator) {
  const auto record = RecordIn(coordinator);
  return record && std::find(record->lost.begin(), record->lost.end(), node) != record->lost.end();
}

bool BeatRig::Noted(uint32_t coordinator, const std::string& kind) {
  const auto record = RecordIn(coordinator);
  return record && std::any_of(record->events.begin(), record->events.end(),
                               [&](const HistoryEvent& event) { return event.kind == kind; });
}

// ---- what is held up

void BeatRig::HoldRecord() {
  const std::lock_guard lock(record_gate_->mutex);
  record_gate_->shut = true;
}

void BeatRig::ReleaseRecord() {
  const std::lock_guard lock(record_gate_->mutex);
  record_gate_->shut = false;
  record_gate_->changed.notify_all();
}

bool BeatRig::RecordWaits() {
  const std::lock_guard lock(record_gate_->mutex);
  return record_gate_->waiting > 0;
}

void BeatRig::HoldLoop(uint32_t node) {
  loop_gates_[node].emplace(daemons_[node]->loop()).Wait();
}

void BeatRig::ReleaseLoop(uint32_t node) {
  if (loop_gates_[node]) loop_gates_[node]->Open();
  loop_gates_[node].reset();
}

}  // namespace muster
