#include "daemon/partner/parity_builder.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/partner/background.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/copy_source.h"

namespace muster {
namespace {

// A node hears of a commit a little after another.
constexpr auto kAskAgain = std::chrono::milliseconds(50);
constexpr auto kAskSeldom = std::chrono::milliseconds(1'000);
// All members of a slot: those that have answered do not wait for ever (partner_server.cc).
constexpr auto kAskFor = std::chrono::seconds(10);

}  // namespace

struct ParityBuilder::Member {
  std::string node;
  CopySource source;
  ParityMember part;
};

ParityBuilder::ParityBuilder(std::string gang, ParityGroup group, uint16_t port, uint64_t max_shard_bytes,
                             std::shared_ptr<ParityParts> parts, std::shared_ptr<Cancel> cancel)
    : gang_(std::move(gang)),
      group_(std::move(group)),
      port_(port),
      max_shard_bytes_(max_shard_bytes),
      parts_(std::move(parts)),
      cancel_(std::move(cancel)),
      thread_([this] { Run(); }) {}

ParityBuilder::~ParityBuilder() {
  {
    const std::lock_guard lock(mutex_);
    cancel_->Now();
  }
  wake_.notify_one();
  thread_.join();
}

void ParityBuilder::Build(uint64_t generation, uint64_t step) {
  {
    const std::lock_guard lock(mutex_);
    waiting_ = Checkpoint{generation, step};
  }
  wake_.notify_one();
}

void ParityBuilder::Run() {
  BehindTheTrainer();
  const size_t slots = group_.SlotsOfOthers();
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return cancel_->now() || waiting_; });
    if (cancel_->now()) return;
    const Checkpoint of = *std::exchange(waiting_, std::nullopt);
    lock.unlock();
    bool all = true;
    // When a newer checkpoint comes in the middle, it goes on with the slots that had no turn.
    for (size_t n = 0; n < slots; ++n) {
      const Status built = BuildSlot(of, next_slot_++ % slots);
      lock.lock();
      const bool superseded = cancel_->now() || waiting_;
      lock.unlock();
      if (superseded) break;
      all = all && built;
      if (!built) Complain(built.error());
    }
    if (all) complaint_.reset();
  }
}

Status ParityBuilder::BuildSlot(const Checkpoint& of, size_t slot) {
  std::vector<Member> members;
  std::vector<ParityMember> parts;
  const auto until = Clock::now() + kAskFor;
  for (size_t node = 0; node < group_.nodes.size(); ++node) {
    const auto& ranks = group_.nodes[node].ranks;
    if (node == group_.self || slot >= ranks.size()) continue;
    auto member = Ask(of, node, ranks[slot], until);
    if (!member) {
      return Error{member.error().code, fmt::format("rank {}'s shard on {}: {}", ranks[slot],
                                                    group_.nodes[node].name, member.error().message)};
    }
    parts.push_back(member->part);
    members.push_back(*std::move(member));
  }
  std::vector<uint64_t> rows;
  {
    ParityParts::Dropped dropped;  // let go before the new ones come
    const Status taken = parts_->Take(gang_, of.generation, of.step, slot, parts, &rows, &dropped);
    if (!taken) return taken;
  }
  if (Status filled = Fill(of, slot, members, rows); !filled) return filled;
  spdlog::debug("gang {}: parity of slot {}, step {}, is kept on {}: of {} shards, {} rows are new", gang_,
                slot, of.step, group_.nodes[group_.self].name, members.size(), rows.size());
  return {};
}

Result<ParityBuilder::Member> ParityBuilder::Ask(const Checkpoint& of, size_t node, uint32_t rank,
                                                 Clock::time_point until) {
  const std::string& name = group_.nodes[node].name;
  auto stream = PartnerStream::Connect(name, port_, Urgency::kBackground, cancel_);
  if (!stream) return stream.error();
  Clock::duration pause = kAskAgain;
  while (true) {
    auto source = AskForSource(*stream, {gang_, of.generation, of.step, rank}, true, max_shard_bytes_);
    if (source) {
      Member member{name, *std::move(source), {}};
      member.part.shard = std::make_shared<const Shard>(member.source.shard);
      member.part.part = PartOf(group_.nodes.size(), node, group_.self, member.part.shard->chunks.size());
      return member;
    }
    if (source.error().code != Errc::kNotFound || Clock::now() >= until || !Pause(pause))
      return source.error();
    pause = std::min<Clock::duration>(2 * pause, kAskSeldom);
  }
}

bool ParityBuilder::Pause(Clock::duration pause) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, pause, [this] { return cancel_->now() || waiting_; });
}

Status ParityBuilder::Fill(const Checkpoint& of, size_t slot, std::vector<Member>& members,
                           const std::vector<uint64_t>& rows) {
  std::vector<ParityMember> parts;
  for (Member& member : members) {
    std::vector<uint64_t> runs;
    for (const uint64_t row : rows) {
      if (member.part.Has(row)) AddToRuns(member.part.ChunkOf(row), &runs);
    }
    parts.push_back(member.part);
    if (runs.empty()) continue;
    if (Status wanted = member.source.Want(runs); !wanted) return wanted;
  }
  std::vector<std::byte> parity;
  Status result;
  for (const uint64_t row : rows) {
    if (Status wanted = cancel_->Check(); !wanted) return wanted;
    parity.assign(RowBytes(parts, row), std::byte{0});
    bool whole = true;
    for (Member& member : members) {
      if (!member.part.Has(row)) continue;
      const uint64_t chunk = member.part.ChunkOf(row);
      const auto good = ReceiveChunk(*member.source.stream, *member.part.shard, chunk,
                                     [&](uint64_t offset, std::span<const std::byte> piece) -> Status {
                                       XorInto(std::span(parity).subspan(offset), piece);
                                       return {};
                                     });
      if (!good) return Error{good.error().code, fmt::format("{}: {}", member.node, good.error().message)};
      if (*good) continue;
      whole = false;
      result = Error{Errc::kConflict, fmt::format("the program has written over chunk {} of rank {} on {}",
                                                  chunk, member.part.shard->rank, member.node)};
    }
    if (!whole) continue;
    const auto room = parts_->RoomFor(parity.size());
    if (!room) return room.error();
    if (Status written = (*room)->Write(0, parity); !written) return written;
    if (Status put = parts_->Put(gang_, of.generation, of.step, slot, row, *room); !put) return put;
  }
  return result;
}

// Once for one kind of reason: the next checkpoint may meet the same.
void ParityBuilder::Complain(const Error& why) {
  if (cancel_->now() || why.code == complaint_) return;
  complaint_ = why.code;
  spdlog::info("gang {}: no parity of its nodes' shards here: {}", gang_, why.message);
}

}  // namespace muster
