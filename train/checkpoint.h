// Checkpoints of the training state through libmuster.
//
// Every member has the same state, so each saves its own slice of it only: the checkpoint holds one copy, and
// members write side by side. A shard has two entries: "state", this member's slice of weights and moments
// (float32, little endian), and "loss", the last step's loss (float64). The metadata of "state" names format,
// shape and slice; a checkpoint of another shape is refused with both in the message. One that another number of
// members saved is read whole all the same: the old slices are dealt out among the members. A state on a device is saved
// from there, behind what the Ops were given, and restored by way of the host.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "train/muster_api.h"
#include "train/state.h"
#include "train/weight_layout.h"

namespace muster::train {

// One member's checkpoints. Not thread-safe.
class Checkpoints {
 public:
  // Through `handle`, which outlives it.
  Checkpoints(muster_handle* handle, const ModelConfig& model, int rank, int size);

  // Reads the checkpoint that this generation starts from; every member calls it. False: there is none,
  // `state` is as it was. Members that would start from different steps are an error on all of them.
  [[nodiscard]] Result<bool> Restore(Collectives& group, TrainingState& state);

  // A save in two halves, so that members can agree in between. TryBegin: whether this member can take one
  // for `step`, of a state of `values` floats, without waiting for an older save; a reason other than that
  // goes to stderr. Then, on all members alike, Commit (copies and returns; durable later) or Abort.
  [[nodiscard]] bool TryBegin(std::uint64_t step, std::size_t values);
  [[nodiscard]] Status Commit(TrainingState& state);
  void Abort();

  // The whole of a save, waiting for older ones if need be.
  [[nodiscard]] Status Save(TrainingState& state);
  // Waits until all members' shards of `step` are durable and the checkpoint is committed.
  [[nodiscard]] Status Wait(std::uint64_t step, std::chrono::milliseconds patience);

  // This member has entered `step`. What all members are asked to do at it, the same on all.
  struct Wish {
    bool save = false;
    bool exit = false;
  };
  [[nodiscard]] Wish Enter(std::uint64_t step);

 private:
  [[nodiscard]] Error Failed(const std::string& what, int code) const;
  [[nodiscard]] std::size_t ShardBytes(std::size_t values) const;
  [[nodiscard]] std::string Metadata(std::size_t count, int rank, int size) const;
  [[nodiscard]] Status ReadShard(int rank, int size, TrainingState& state) const;
  [[nodiscard]] static int GetState(muster_restore* shard, std::span<float> part, Ops& ops);

  muster_handle* handle_;
  std::string shape_;
  int rank_;
  int size_;
};

}  // namespace muster::train
