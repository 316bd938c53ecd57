#include "train/checkpoint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "train/group_values.h"
#include "wire/status_codes.h"

namespace muster::train {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are written as they lie in memory");

constexpr const char* kState = "state";
constexpr const char* kLoss = "loss";

std::string Name(std::uint64_t step) {
  return step == MUSTER_LATEST ? "no checkpoint" : "step " + std::to_string(step);
}

// All members must start from the same step; one that does not would never be noticed again.
Status Agree(Ops& ops, Collectives& group, std::uint64_t mine) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(group.size()));
  steps[static_cast<std::size_t>(group.rank())] = std::bit_cast<std::int64_t>(mine);
  if (Status gathered = AllGather(ops, group, steps); !gathered) return gathered;
  for (std::size_t rank = 1; rank < steps.size(); ++rank) {
    if (steps[rank] == steps[0]) continue;
    return Error{Errc::kConflict, "restore: the members would start from different steps: rank 0 from " +
                                      Name(std::bit_cast<std::uint64_t>(steps[0])) + ", rank " +
                                      std::to_string(rank) + " from " +
                                      Name(std::bit_cast<std::uint64_t>(steps[rank]))};
  }
  return {};
}

}  // namespace

Checkpoints::Checkpoints(muster_handle* handle, const ModelConfig& model, int rank, int size)
    : handle_(handle),
      shape_("width=" + std::to_string(model.width) + " depth=" + std::to_string(model.depth) +
             " heads=" + std::to_string(model.heads) + " context=" + std::to_string(model.context)),
      rank_(rank),
      size_(size) {}

Error Checkpoints::Failed(const std::string& what, int code) const {
  return Error{wire::ErrcOf(code), what + ": " + muster_last_error(handle_)};
}

// What both entries need, with room to spare for alignment and the index.
std::size_t Checkpoints::ShardBytes(std::size_t values) const {
  return SliceOf(values, rank_, size_).size() * sizeof(float) + 4096;
}

std::string Checkpoints::Metadata(std::size_t count, int rank, int size) const {
  const Slice slice = SliceOf(count, rank, size);
  return "muster-train/1 f32 " + shape_ + " values=" + std::to_string(slice.begin) + ".." +
         std::to_string(slice.end) + " of=" + std::to_string(count);
}

// Reads a slice to where it belongs; to a device by way of the host.
int Checkpoints::GetState(muster_restore* shard, std::span<float> part, Ops& ops) {
  if (ops.memory() == MemoryKind::kHost)
    return muster_restore_get(shard, kState, part.data(), part.size_bytes());
  std::vector<float> staging(part.size());
  const int code = muster_restore_get(shard, kState, staging.data(), part.size_bytes());
  ops.Copy(part.data(), staging.data(), part.size_bytes());
  (void)ops.Wait();  // an error stays, and is said when all have been read
  return code;
}

// Reads what member `rank` of `size` saved to where it belongs.
Status Checkpoints::ReadShard(int rank, int size, TrainingState& state) const {
  const std::string what =
      "restore: the shard of rank " + std::to_string(rank) + " of step " + std::to_string(state.step);
  muster_restore* opened = nullptr;
  if (const int code =
          muster_restore_open_shard(handle_, state.step, static_cast<std::uint32_t>(rank), &opened);
      code != MUSTER_OK) {
    return Failed(what, code);
  }
  const train::Restore shard(opened);
  const std::string wanted = Metadata(state.all().size(), rank, size);
  std::string found;
  for (std::size_t i = 0; i < muster_restore_count(shard.get()); ++i) {
    const char* name = nullptr;
    const char* meta = nullptr;
    const void* data = nullptr;
    std::size_t bytes = 0;
    if (const int code = muster_restore_entry(shard.get(), i, &name, &meta, &data, &bytes);
        code != MUSTER_OK) {
      return Failed(what + ", entry " + std::to_string(i), code);
    }
    if (std::string_view(name) == kState) found = meta == nullptr ? "" : meta;
  }
  if (found != wanted) {
    return Error{Errc::kInvalid,
                 what + " is of another model: it has '" + found + "', this run needs '" + wanted + "'"};
  }
  const Slice slice = SliceOf(state.all().size(), rank, size);
  const std::span<float> part = state.all().subspan(slice.begin, slice.size());
  int code = GetState(shard.get(), part, state.ops());
  if (code == MUSTER_OK) code = muster_restore_get(shard.get(), kLoss, &state.loss, sizeof(state.loss));
  if (code != MUSTER_OK) return Failed(what, code);
  return {};
}

Result<bool> Checkpoints::Restore(Collectives& group, TrainingState& state) {
  std::uint64_t step = MUSTER_LATEST;
  std::uint32_t world = 0;
  const int code = muster_restore_info(handle_, MUSTER_LATEST, &step, &world);
  if (code != MUSTER_OK && code != MUSTER_E_NOT_FOUND) return Failed("restore", code);
  if (Status agreed = Agree(state.ops(), group, step); !agreed) return agreed.error();
  if (step == MUSTER_LATEST) return false;
  state.step = step;
  // Each shard is read by one member, in turn, and given to all: when their number is what it was, each reads its own.
  const int shards = static_cast<int>(world);
  for (int shard = rank_; shard < shards; shard += size_) {
    if (Status read = ReadShard(shard, shards, state); !read) return read.error();
  }
  if (Status there = state.ops().Wait(); !there) return there.error();
  // A group of one may be of another memory, and has nobody to give it to.
  for (int shard = 0; shard < shards && size_ > 1; ++shard) {
    const Slice slice = SliceOf(state.all().size(), shard, shards);
    const std::span<float> part = state.all().subspan(slice.begin, slice.size());
    if (Status sent = group.Broadcast(std::as_writable_bytes(part), shard % size_); !sent)
      return sent.error();
  }
  // A member that was none of the old ones has read no shard, and so no loss.
  std::array<std::byte, sizeof(state.loss)> loss{};
  std::memcpy(loss.data(), &state.loss, sizeof(state.loss));
  if (Status sent = Broadcast(state.ops(), group, loss, 0); !sent) return sent.error();
  std::memcpy(&state.loss, loss.data(), sizeof(state.loss));
  return true;
}

bool Checkpoints::TryBegin(std::uint64_t step, std::size_t values) {
  const int code = muster_save_begin_nowait(handle_, step, ShardBytes(values));
  if (code != MUSTER_OK && code != MUSTER_E_BUSY) {
    std::fprintf(stderr, "muster-train: rank %d: no checkpoint of step %llu: %s\n", rank_,
                 static_cast<unsigned long long>(step), muster_last_error(handle_));
  }
  return code == MUSTER_OK;
}

Status Checkpoints::Commit(TrainingState& state) {
  const std::string meta = Metadata(state.all().size(), rank_, size_);
  const Slice slice = SliceOf(state.all().size(), rank_, size_);
  const std::span<const float> mine = state.all().subspan(slice.begin, slice.size());
  Ops& ops = state.ops();
  int code = ops.memory() == MemoryKind::kCuda
                 ? muster_save_add_device(handle_, kState, meta.c_str(), mine.data(), mine.size_bytes(),
                                          ops.stream())
                 : muster_save_add(handle_, kState, meta.c_str(), mine.data(), mine.size_bytes());
  if (code == MUSTER_OK) code = muster_save_add(handle_, kLoss, nullptr, &state.loss, sizeof(state.loss));
  if (code == MUSTER_OK) code = muster_save_commit(handle_);
  if (code == MUSTER_OK) return {};
  Error error = Failed("checkpoint of step " + std::to_string(state.step), code);
  Abort();
  return error;
}

void Checkpoints::Abort() {
  muster_save_abort(handle_);
}

Status Checkpoints::Save(TrainingState& state) {
  if (const int code = muster_save_begin(handle_, state.step, ShardBytes(state.all().size()));
      code != MUSTER_OK) {
    return Failed("checkpoint of step " + std::to_string(state.step), code);
  }
  return Commit(state);
}

Status Checkpoints::Wait(std::uint64_t step, std::chrono::milliseconds patience) {
  const int code = muster_wait(handle_, step, static_cast<int>(patience.count()));
  if (code == MUSTER_OK) return {};
  return Failed("waiting for the checkpoint of step " + std::to_string(step), code);
}

// Muster's watching is not worth stopping for: what goes wrong here shows at the next save.
Checkpoints::Wish Checkpoints::Enter(std::uint64_t step) {
  muster_wish wish{};
  (void)muster_step(handle_, step, &wish);
  return {wish.save != 0, wish.exit != 0};
}

}  // namespace muster::train
