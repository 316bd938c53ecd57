// Daemons' beat threads on one machine, each with its own loopback address, over real sockets.
#include "daemon/beat/beat.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "daemon/beat/key.h"
#include "wire/wire.h"

namespace muster {
namespace {

using namespace std::chrono_literals;

// What the daemons were told, in words.
class Told {
 public:
  void Add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    all_.push_back(what);
    changed_.notify_all();
  }
  bool Within(const std::string& what, std::chrono::seconds limit = 60s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit,
                             [&] { return std::find(all_.begin(), all_.end(), what) != all_.end(); });
  }
  size_t Count(const std::string& who) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(all_.begin(), all_.end(), [&](const auto& what) { return what.starts_with(who); }));
  }
  bool Ever(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return std::find(all_.begin(), all_.end(), what) != all_.end();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> all_;
};

struct Daemon {
  std::unique_ptr<Beat> beat;
  std::unique_ptr<Attendance> attendance;
  std::unique_ptr<Leadership> leadership;
  void Die() {
    leadership.reset();
    attendance.reset();
    beat.reset();
  }
};

class BeatTest : public ::testing::Test {
 protected:
  void Start(size_t count, const lease::Times& times, int64_t loop_stall_ms = 600'000) {
    looping_ = std::thread([this] { loop_.Run(); });
    daemons_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      BeatOptions options;
      options.times = times;
      options.listen_address = fmt::format("127.0.0.{}", i + 1);
      options.port = 0;
      options.loop_stall_ms = loop_stall_ms;
      options.mailbox = loop_.mailbox();
      auto beat = Beat::Start(std::move(options));
      ASSERT_TRUE(beat) << beat.error().message;
      daemons_[i].beat = *std::move(beat);
      addresses_.push_back(*ResolveBeatAddress(fmt::format("127.0.0.{}", i + 1), daemons_[i].beat->port()));
    }
  }
  void TearDown() override {
    daemons_.clear();
    loop_.Stop();
    if (looping_.joinable()) looping_.join();
  }

  LeadOptions LeadOf(uint32_t self, uint64_t term) const {
    LeadOptions options;
    options.gang = "7.0";
    options.key = key_;
    options.lease.term = term;
    options.lease.self = static_cast<lease::NodeIndex>(self);
    options.addresses = addresses_;
    options.lease.witnesses = lease::WitnessSet::FirstOf(addresses_.size());
    return options;
  }
  void Lead(uint32_t self, const LeadOptions& options) {
    LeadEvents events;
    const auto say = [this, self](const std::string& what) {
      told_.Add(fmt::format("lead {}: {}", self, what));
    };
    events.heard = [say](uint32_t node) { say(fmt::format("heard {}", node)); };
    events.silent = [say](uint32_t node) { say(fmt::format("silent {}", node)); };
    events.stopped = [say](uint32_t node, uint64_t g) { say(fmt::format("stopped {} {}", node, g)); };
    events.quorum = [say] { say("quorum"); };
    events.lost_quorum = [say] { say("lost quorum"); };
    events.deposed = [say](uint64_t term) { say(fmt::format("deposed {}", term)); };
    daemons_[self].leadership = daemons_[self].beat->Lead(options, std::move(events));
  }
  void Attend(uint32_t self, uint64_t term, uint32_t coordinator) {
    AttendOptions options;
    options.gang = "7.0";
    options.key = key_;
    options.term = term;
    options.self = self;
    options.coordinator = coordinator;
    options.addresses = addresses_;
    options.witnesses = lease::WitnessSet::FirstOf(addresses_.size());
    for (size_t i = 0; i < addresses_.size(); ++i)
      options.candidates.push_back(static_cast<lease::NodeIndex>(i));
    AgentEvents events;
    const auto say = [this, self](const std::string& what) {
      told_.Add(fmt::format("agent {}: {}", self, what));
    };
    events.attended = [say](uint64_t t) { say(fmt::format("attended {}", t)); };
    events.fence = [say] { say("fence"); };
    events.abandoned = [say](uint64_t t) { say(fmt::format("abandoned {}", t)); };
    events.take_over = [say](uint64_t t, const lease::WitnessSet&) { say(fmt::format("take over {}", t)); };
    events.successor = [say](uint64_t t, uint32_t node) { say(fmt::format("successor {} {}", t, node)); };
    events.stop_ordered = [say](uint64_t t, uint64_t g) { say(fmt::format("stop {} {}", t, g)); };
    daemons_[self].attendance = daemons_[self].beat->Attend(options, std::move(events));
  }
  void StartGang(uint32_t coordinator) {
    Lead(coordinator, LeadOf(coordinator, 1));
    for (uint32_t i = 0; i < daemons_.size(); ++i) {
      daemons_[coordinator].leadership->NodeAttached(i);
      Attend(i, 1, coordinator);
    }
    for (uint32_t i = 0; i < daemons_.size(); ++i) {
      ASSERT_TRUE(told_.Within(fmt::format("agent {}: attended 1", i))) << i;
    }
  }

  // So long that a busy machine does not miss one; the short ones are for what must run out.
  static lease::Times Patient() {
    lease::Times times;
    times.beat = 300 * lease::kMillisecond;
    times.lease = 4'000 * lease::kMillisecond;
    times.silence = 5'000 * lease::kMillisecond;
    return times;
  }

  Loop loop_;
  std::thread looping_;
  Told told_;
  std::string key_ = MakeBeatKey();
  std::vector<BeatAddress> addresses_;
  std::vector<Daemon> daemons_;
};

TEST_F(BeatTest, OrdersToStopAndTheAnswerTravelWithBeats) {
  Start(3, Patient());
  StartGang(1);
  daemons_[1].leadership->SetStop(4);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(told_.Within(fmt::format("agent {}: stop 1 4", i)));
  daemons_[2].attendance->SetStopped(4);
  EXPECT_TRUE(told_.Within("lead 1: stopped 2 4"));
}

TEST_F(BeatTest, SupervisorsAreBeatenAndMayStartMembersWhileTheNodeIsAcknowledged) {
  Start(1, Patient());
  StartGang(0);
  EXPECT_TRUE(daemons_[0].attendance->MayStart());
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd mine(pair[0]);
  UniqueFd theirs(pair[1]);
  const timeval limit{60, 0};
  ::setsockopt(mine.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const uint64_t number = daemons_[0].attendance->AddSupervisor(theirs.get());
  for (int i = 0; i < 3; ++i) {
    char packet[64];
    const ssize_t size = ::recv(mine.get(), packet, sizeof packet, 0);
    wire::Header header{};
    ASSERT_EQ(wire::CheckHeader(packet, static_cast<size_t>(size), &header), wire::Check::kOk);
    EXPECT_EQ(header.type, static_cast<uint16_t>(wire::Type::kBeat));
  }
  theirs.reset();
  daemons_[0].attendance->RemoveSupervisor(number);
  ssize_t size = 1;
  while (size > 0) {
    char packet[64];
    size = ::recv(mine.get(), packet, sizeof packet, 0);
  }
  EXPECT_EQ(size, 0) << "the supervisor must see the end of the connection";
}

TEST_F(BeatTest, ASupervisorThatReadsThePageIsSentNoBeats) {
  Start(1, Patient());
  StartGang(0);
  Attendance& attendance = *daemons_[0].attendance;
  ASSERT_GE(attendance.page(), 0);
  EXPECT_EQ(::ftruncate(attendance.page(), 0), -1);
  EXPECT_EQ(::mmap(nullptr, wire::kBeatPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, attendance.page(), 0),
            MAP_FAILED);
  const auto read = [&] {
    wire::BeatPage page{};
    EXPECT_EQ(::pread(attendance.page(), &page, sizeof page, 0), static_cast<ssize_t>(sizeof page));
    EXPECT_EQ(page.magic, wire::kBeatPageMagic);
    return page.monotonic_ns;
  };
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd mine(pair[0]);
  const UniqueFd theirs(pair[1]);
  const timeval limit{60, 0};
  ::setsockopt(mine.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const uint64_t number = attendance.AddSupervisor(theirs.get());
  char packet[64];
  ASSERT_GT(::recv(mine.get(), packet, sizeof packet, 0), 0);
  attendance.SupervisorReadsPage(number);
  // Once the page has moved on twice after that, all beats that were sent before have come.
  for (int i = 0; i < 2; ++i) {
    const int64_t before = read();
    while (read() == before) std::this_thread::sleep_for(1ms);
  }
  while (::recv(mine.get(), packet, sizeof packet, MSG_DONTWAIT) > 0) {
  }
  for (int i = 0; i < 3; ++i) {
    const int64_t before = read();
    while (read() == before) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(::recv(mine.get(), packet, sizeof packet, MSG_DONTWAIT), -1);
}

TEST_F(BeatTest, SupervisorsAreBeatenBeforeTheNodeAttendsAndItAttendsByFollowing) {
  Start(1, Patient());
  Lead(0, LeadOf(0, 3));
  daemons_[0].leadership->NodeAttached(0);
  AttendOptions options;
  options.gang = "7.0";
  AgentEvents events;
  events.attended = [this](uint64_t term) { told_.Add(fmt::format("attended {}", term)); };
  daemons_[0].attendance = daemons_[0].beat->Attend(options, std::move(events));
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd mine(pair[0]);
  const UniqueFd theirs(pair[1]);
  const timeval limit{60, 0};
  ::setsockopt(mine.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  daemons_[0].attendance->AddSupervisor(theirs.get());
  for (int i = 0; i < 3; ++i) {
    char packet[64];
    EXPECT_EQ(::recv(mine.get(), packet, sizeof packet, 0), static_cast<ssize_t>(sizeof(wire::Beat)));
  }
  EXPECT_FALSE(daemons_[0].attendance->MayStart());
  daemons_[0].attendance->SetAddresses(addresses_);
  daemons_[0].attendance->Follow(3, 0, key_, lease::WitnessSet::FirstOf(1), lease::Source::kLink);
  EXPECT_TRUE(told_.Within("attended 3"));
}

TEST_F(BeatTest, ANodeThatDiesIsCalledSilent) {
  lease::Times times;
  times.beat = 100 * lease::kMillisecond;
  Start(3, times);
  StartGang(0);
  daemons_[2].Die();
  EXPECT_TRUE(told_.Within("lead 0: silent 2"));
}

TEST_F(BeatTest, WhenTheCoordinatorDiesASuccessorIsFoundAndNobodyFences) {
  Start(4, Patient());
  StartGang(0);
  daemons_[0].Die();
  for (uint32_t i = 1; i < 4; ++i) EXPECT_TRUE(told_.Within(fmt::format("agent {}: abandoned 1", i)));
  ASSERT_TRUE(told_.Within("agent 1: take over 1"));
  LeadOptions options = LeadOf(1, 2);
  options.lease.inherited = true;
  options.lease.promised = true;
  options.lease.asked_at = daemons_[1].beat->Now();
  options.lease.taken_at = daemons_[1].beat->Now();
  options.lease.watched = {0, 1, 2, 3};
  Lead(1, options);
  for (uint32_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(told_.Within(fmt::format("agent {}: successor 2 1", i)));
    EXPECT_TRUE(told_.Within(fmt::format("agent {}: attended 2", i)));
  }
  EXPECT_TRUE(told_.Within("lead 1: silent 0"));
  for (uint32_t i = 1; i < 4; ++i) EXPECT_FALSE(told_.Ever(fmt::format("agent {}: fence", i)));
}

TEST_F(BeatTest, ADaemonWhoseLoopStandsStillFallsSilent) {
  lease::Times times;
  times.beat = 100 * lease::kMillisecond;
  Start(3, times);
  StartGang(0);
  // The others' loops turn; that of node 2 is said to have stopped by not saying anything.
  BeatOptions options;
  options.times = times;
  options.listen_address = "127.0.0.3";
  options.port = 0;
  options.loop_stall_ms = 300;
  options.mailbox = loop_.mailbox();
  daemons_[2].Die();
  daemons_[2].beat = *Beat::Start(std::move(options));
  addresses_[2] = *ResolveBeatAddress("127.0.0.3", daemons_[2].beat->port());
  daemons_[0].leadership->SetAddress(2, addresses_[2]);
  const size_t attended = told_.Count("agent 2: attended");
  Attend(2, 1, 0);
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (told_.Count("agent 2: attended") == attended && std::chrono::steady_clock::now() < end) {
    daemons_[2].beat->LoopAlive();
    std::this_thread::sleep_for(1ms);
  }
  ASSERT_GT(told_.Count("agent 2: attended"), attended);
  EXPECT_TRUE(told_.Within("lead 0: silent 2"));
  daemons_[2].beat->LoopAlive();
  EXPECT_TRUE(told_.Within("agent 2: fence", 60s));
}

// Time that passes only in waits: so much in each.
class LeapingClock final : public BeatClock {
 public:
  explicit LeapingClock(lease::Nanos leap) : leap_(leap) {}
  [[nodiscard]] lease::Nanos Now() const override { return now_; }
  void Wait(std::span<pollfd> polled, lease::Nanos) override {
    now_ += leap_;
    ++waits_;
    ::poll(polled.data(), polled.size(), 0);
  }
  [[nodiscard]] int waits() const { return waits_; }

 private:
  const lease::Nanos leap_;
  std::atomic<lease::Nanos> now_{1000 * lease::kMillisecond};
  std::atomic<int> waits_{0};
};

// How many waits of this length a main loop that shows no life is granted, at most `most`, before it is said to stand still.
int WaitsUntilStalled(lease::Nanos leap, int most, const std::shared_ptr<Mailbox>& mailbox) {
  const auto clock = std::make_shared<LeapingClock>(leap);
  std::promise<int> stalled;
  BeatOptions options;
  options.listen_address = "127.0.0.1";
  options.port = 0;
  options.loop_stall_ms = 10'000;
  options.mailbox = mailbox;
  options.clock = clock;
  options.stalled = [&] { stalled.set_value(clock->waits()); };
  const auto beat = Beat::Start(std::move(options));
  EXPECT_TRUE(beat);
  auto future = stalled.get_future();
  while (clock->waits() < most && future.wait_for(1ms) != std::future_status::ready) {
  }
  return future.wait_for(0s) == std::future_status::ready ? future.get() : most;
}

TEST_F(BeatTest, AProcessThatWasStoppedDoesNotBlameItsLoop) {
  Start(0, Patient());
  EXPECT_LE(WaitsUntilStalled(200 * lease::kMillisecond, 1'000'000, loop_.mailbox()), 60);
  EXPECT_GE(WaitsUntilStalled(3600 * 1000 * lease::kMillisecond, 1'000'000, loop_.mailbox()), 20);
}

// The main loop lets a gang go while what it was to be told waits in the mailbox: its owner is no more.
TEST_F(BeatTest, NothingIsToldToWhoIsGoneThoughItWasPostedBefore) {
  lease::Times times;
  times.beat = 100 * lease::kMillisecond;
  Start(4, times);
  StartGang(0);
  std::promise<std::pair<size_t, size_t>> told;
  loop_.Post([&] {
    daemons_[0].attendance.reset();
    daemons_[2].Die();  // with them goes the quorum
    daemons_[3].Die();
    std::this_thread::sleep_for(std::chrono::nanoseconds(times.lease + times.silence));
    told.set_value({told_.Count("agent 1:"), told_.Count("lead 0:")});
    daemons_[1].attendance.reset();
    daemons_[0].leadership.reset();
  });
  const auto [agent, lead] = told.get_future().get();
  std::promise<void> emptied;  // the mailbox, of what was in it then
  loop_.Post([&] { loop_.Post([&] { emptied.set_value(); }); });
  emptied.get_future().get();
  EXPECT_EQ(told_.Count("agent 1:"), agent);
  EXPECT_EQ(told_.Count("lead 0:"), lead);
}

TEST_F(BeatTest, WhatWasNotSealedWithTheGangsKeyIsIgnored) {
  Start(2, Patient());
  StartGang(0);
  const lease::Authenticator other(MakeBeatKey());
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::mt19937_64 random(1);
  for (int i = 0; i < 2'000; ++i) {
    lease::Datagram forged;
    forged.type = lease::Type::kLead;
    forged.gang = lease::GangTag("7.0");
    forged.term = 9;
    forged.from = forged.coordinator = 1;
    forged.witnesses = {0, 1};
    lease::Packet packet;
    other.Seal(forged, &packet);
    const size_t size = i % 3 == 0 ? random() % 300 : packet.size();
    std::vector<uint8_t> bytes(packet.begin(), packet.end());
    bytes.resize(size);
    if (i % 2 == 0 && size > 8) bytes[random() % size] ^= 1;
    ::sendto(socket.get(), bytes.data(), bytes.size(), 0, addresses_[i % 2].get(), addresses_[i % 2].size);
  }
  daemons_[0].leadership->SetStop(2);
  EXPECT_TRUE(told_.Within("agent 1: stop 1 2"));
  EXPECT_FALSE(told_.Ever("agent 1: successor 9 1"));
  EXPECT_FALSE(told_.Ever("lead 0: deposed 9"));
}

TEST_F(BeatTest, APortThatIsTakenIsAnErrorThatNamesIt) {
  Start(1, Patient());
  BeatOptions options;
  options.listen_address = "127.0.0.1";
  options.port = daemons_[0].beat->port();
  options.mailbox = loop_.mailbox();
  const auto second = Beat::Start(options);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, ::testing::HasSubstr(fmt::format("UDP port {}", options.port)));
}

}  // namespace
}  // namespace muster
