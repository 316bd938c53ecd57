#include "daemon/partner/group_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ceph/catalog/digest.h"
#include "ceph/engine/shard_memory.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/copy_source.h"
#include "daemon/partner/parity_parts.h"

namespace muster {
namespace {

bool SameContent(const Shard& a, const Shard& b) {
  return a.bytes == b.bytes && a.chunk_bytes == b.chunk_bytes && a.chunks == b.chunks;
}

// What a node of the group has for one part: its own shard, whose chunks are to be taken out of the parity again.
struct Survivor {
  CopySource source;
  ParityMember part;
};

// One of the parts, whose parity is at one node.
class PartFetch {
 public:
  PartFetch(const ParityGroup& group, size_t keeper, size_t slot, uint16_t port, CopyName name,
            uint64_t max_shard_bytes, std::shared_ptr<const Cancel> cancel)
      : group_(group),
        keeper_(keeper),
        slot_(slot),
        port_(port),
        name_(std::move(name)),
        max_shard_bytes_(max_shard_bytes),
        cancel_(std::move(cancel)) {}

  // Asks the keeper what it has.
  Status Open() {
    auto parity =
        OpenSource(group_.nodes[keeper_].name, port_, Urgency::kNow, name_, max_shard_bytes_, cancel_);
    if (!parity) return parity.error();
    parity_ = *std::move(parity);
    std::vector<uint32_t> with;
    for (const size_t node : Survivors()) with.push_back(group_.nodes[node].ranks[slot_]);
    if (parity_->with != with) {
      parity_.reset();
      return Error{Errc::kInvalid, "it has made its parity of other shards (partner_group, slurm_topology)"};
    }
    return {};
  }
  // nullptr: it has none, or of something else than the others.
  [[nodiscard]] const Shard* shard() const { return parity_ ? &parity_->shard : nullptr; }

  // On a thread of its own: `memory` is all parts', their bytes are not.
  void Run(const Shard& shard, const UniqueFd& memory) {
    if (!SameContent(shard, parity_->shard)) {
      result = Error{Errc::kInvalid, "the nodes of the group have parity of different shards"};
      return;
    }
    result = Fill(shard, memory);
    if (result) return;
    const Error why = result.error();
    result = Error{why.code, fmt::format("{}'s part: {}", group_.nodes[keeper_].name, why.message)};
  }

  Status result;
  std::vector<uint64_t> made;  // chunks

 private:
  [[nodiscard]] std::vector<size_t> Survivors() const {
    std::vector<size_t> nodes;
    for (size_t node = 0; node < group_.nodes.size(); ++node) {
      if (node != keeper_ && node != group_.self && slot_ < group_.nodes[node].ranks.size())
        nodes.push_back(node);
    }
    return nodes;
  }

  Status Fill(const Shard& shard, const UniqueFd& memory) {
    const auto chunks = ChunksOf(WantedMessage(parity_->present), shard);
    if (!chunks) return chunks.error();
    const ChunkSpan span = PartOf(group_.nodes.size(), group_.self, keeper_, shard.chunks.size());
    for (const uint64_t chunk : *chunks) {
      if (chunk - span.first >= span.count) return Error{Errc::kInvalid, "it has another part than its own"};
    }
    if (span.count == 0) return {};  // a shard of few chunks
    if (chunks->empty()) return Error{Errc::kNotFound, "it has nothing of it yet"};
    std::vector<Survivor> survivors;
    if (Status opened = OpenSurvivors(span, *chunks, &survivors); !opened) return opened;
    if (Status wanted = parity_->Want(parity_->present); !wanted) return wanted;
    const auto begun = FetchClock::now();
    uint64_t bytes = 0;  // the other parts come as fast
    std::vector<std::byte> content;
    Status result;
    for (const uint64_t chunk : *chunks) {
      if (Status wanted = cancel_->Check(); !wanted) return wanted;
      if (FetchTooSlow(begun, bytes * (group_.nodes.size() - 1)))
        return Error{Errc::kUnavailable, "it is slow"};
      content.assign(shard.BytesOf(chunk), std::byte{0});
      if (Status got = ReceiveRow(survivors, chunk - span.first, &content); !got) return got;
      if (DigestOf(content) != shard.chunks[chunk]) {
        result = Error{Errc::kCorrupt, fmt::format("chunk {} is damaged there", chunk)};
        continue;
      }
      const uint64_t at = chunk * shard.chunk_bytes;
      PrepareShardMemory(memory, at, content.size());
      if (Status written = WriteShardMemory(memory, at, content); !written) return written;
      made.push_back(chunk);
      bytes += content.size();
    }
    if (result && chunks->size() < span.count) return Error{Errc::kNotFound, "it has not all of it"};
    return result;
  }

  Status OpenSurvivors(const ChunkSpan& span, const std::vector<uint64_t>& chunks,
                       std::vector<Survivor>* survivors) {
    for (const size_t node : Survivors()) {
      const auto& [name, ranks] = group_.nodes[node];
      auto source =
          OpenSource(name, port_, Urgency::kNow, {name_.gang, name_.generation, name_.step, ranks[slot_]},
                     max_shard_bytes_, cancel_);
      if (!source) return Error{source.error().code, fmt::format("{}: {}", name, source.error().message)};
      Survivor survivor{*std::move(source), {}};
      const uint64_t count = survivor.source.shard.chunks.size();
      survivor.part = {std::make_shared<const Shard>(survivor.source.shard),
                       PartOf(group_.nodes.size(), node, keeper_, count)};
      std::vector<uint64_t> runs;
      for (const uint64_t chunk : chunks) {
        const uint64_t row = chunk - span.first;
        if (survivor.part.Has(row)) AddToRuns(survivor.part.ChunkOf(row), &runs);
      }
      if (!runs.empty()) {
        if (Status wanted = survivor.source.Want(runs); !wanted) return wanted;
      }
      survivors->push_back(std::move(survivor));
    }
    return {};
  }

  // A survivor's chunk that proves to be wrong shows in the digest of what is made of it.
  Status ReceiveRow(const std::vector<Survivor>& survivors, uint64_t row,
                    std::vector<std::byte>* content) const {
    const auto add = [content](uint64_t offset, std::span<const std::byte> piece) -> Status {
      if (offset < content->size()) XorInto(std::span(*content).subspan(offset), piece);
      return {};
    };
    if (Status got = ReceivePieces(*parity_->stream, content->size(), add); !got) return got;
    for (const Survivor& survivor : survivors) {
      if (!survivor.part.Has(row)) continue;
      const uint64_t bytes = survivor.part.shard->BytesOf(survivor.part.ChunkOf(row));
      if (Status got = ReceivePieces(*survivor.source.stream, bytes, add); !got) return got;
    }
    return {};
  }

  const ParityGroup& group_;
  const size_t keeper_;
  const size_t slot_;
  const uint16_t port_;
  const CopyName name_;
  const uint64_t max_shard_bytes_;
  const std::shared_ptr<const Cancel> cancel_;
  std::optional<CopySource> parity_;
};

}  // namespace

Result<FetchedCopy> FetchFromGroup(const ParityGroup& group, uint16_t port, const CopyName& name,
                                   uint64_t max_shard_bytes, const std::shared_ptr<const Cancel>& cancel) {
  const auto& ranks = group.nodes[group.self].ranks;
  const auto slot = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), name.rank) - ranks.begin());
  std::vector<std::unique_ptr<PartFetch>> parts;
  Status filled;
  for (size_t keeper = 0; keeper < group.nodes.size(); ++keeper) {
    if (keeper == group.self) continue;
    auto part = std::make_unique<PartFetch>(group, keeper, slot, port, name, max_shard_bytes, cancel);
    if (Status opened = part->Open(); opened) {
      parts.push_back(std::move(part));
    } else {
      const auto& [node, theirs] = group.nodes[keeper];
      filled = Error{opened.error().code, fmt::format("{}'s part: {}", node, opened.error().message)};
      // All other parts would need what it has.
      if (opened.error().code == Errc::kUnavailable && slot < theirs.size()) return filled.error();
    }
  }
  if (parts.empty()) return filled.error();
  FetchedCopy copy;
  copy.shard = *parts.front()->shard();
  auto memory = MakeShardMemory(copy.shard.bytes);
  if (!memory) return memory.error();
  copy.memory = *std::move(memory);
  copy.have.resize(copy.shard.chunks.size());
  std::vector<std::thread> threads;
  threads.reserve(parts.size());
  for (const auto& part : parts) {
    const auto run = [&copy, &part = *part] { part.Run(copy.shard, copy.memory); };
    try {
      threads.emplace_back(run);
    } catch (const std::system_error&) {
      run();  // no further threads
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& part : parts) {
    if (!part->result) filled = part->result;
    for (const uint64_t chunk : part->made) {
      copy.have[chunk] = true;
      copy.bytes += copy.shard.BytesOf(chunk);
    }
  }
  return Finished(std::move(copy), std::move(filled));
}

}  // namespace muster
