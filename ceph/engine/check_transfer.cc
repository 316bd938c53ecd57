#include "ceph/engine/check_transfer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ceph/catalog/digest.h"

namespace muster {
namespace {

// Compares what is in memory with a shard; the store has no part in it.
class CheckTransfer final : public Transfer {
 public:
  CheckTransfer(TransferContext& context, Shard shard, std::shared_ptr<const StagedView> memory,
                std::function<void(Status)> done)
      : Transfer(context, OwnerOf("", shard), shard.bytes, shard.chunk_bytes, 0),
        shard_(std::move(shard)),
        memory_(std::move(memory)),
        done_(std::move(done)) {}

 private:
  Result<Next> Prepare(Chunk& chunk) override {
    const uint64_t begin = chunk.index * chunk_bytes();
    Digester digester;
    if (!memory_->mapped().empty()) {
      digester.Add(memory_->mapped().subspan(begin, chunk.bytes));
    } else {
      std::vector<std::byte> piece(std::min(kStagedPiece, chunk.bytes));
      for (size_t at = 0; at < chunk.bytes; at += kStagedPiece) {
        const std::span<std::byte> data(piece.data(), std::min(kStagedPiece, chunk.bytes - at));
        if (Status status = memory_->Read(begin + at, data); !status) return status.error();
        digester.Add(data);
      }
    }
    if (digester.Get() == shard_.chunks[chunk.index]) return Next::kNothing;
    return Error{Errc::kCorrupt,
                 "the memory of rank " + std::to_string(shard_.rank) + " holds another shard"};
  }

  void Attempt(Chunk& /*chunk*/, std::function<void(Status)> done) override { done({}); }
  Status Complete(Chunk& /*chunk*/) override { return {}; }
  void Finish(Status status) override { std::exchange(done_, nullptr)(status); }

  const Shard shard_;
  const std::shared_ptr<const StagedView> memory_;
  std::function<void(Status)> done_;
};

}  // namespace

std::shared_ptr<Transfer> MakeCheckTransfer(TransferContext& context, const Shard& shard,
                                            std::shared_ptr<const StagedView> memory,
                                            std::function<void(Status)> done) {
  return std::make_shared<CheckTransfer>(context, shard, std::move(memory), std::move(done));
}

}  // namespace muster
