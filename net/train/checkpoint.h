// Checkpoints of the training state through libmuster.
//
// Every member has the same state, so each saves its own slice of it only: the checkpoint holds one copy, and
// members write side by side. A shard has two entries: "state", this member's slice of weights and moments
// (float32, little endian), and "loss", the last step's loss (float64). The metadata of "state" names format,
// shape and slice; a checkpoint of another shape is refused with both in the message. One that another number of
// members saved is read whole all the same: the old slices are dealt out among the members.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "net/train/muster_api.h"
#include "net/train/state.h"
#include "net/train/weight_layout.h"

namespace muster::train {

// One member's checkpoints. Not thread-safe.
class Checkpoints {
 public:
  // Null when this process was not started by Muster; then there is nothing to save to and training does
  // without.
  [[nodiscard]] static Result<std::unique_ptr<Checkpoints>> Open(const ModelConfig& model, int rank,
                                                                 int size);

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

  void Progress(std::uint64_t step);
  [[nodiscard]] bool ShouldCheckpoint();
  [[nodiscard]] bool ShouldExit();

 private:
  Checkpoints(Handle handle, std::string shape, int rank, int size);
  [[nodiscard]] Error Failed(const std::string& what, int code) const;
  [[nodiscard]] std::size_t ShardBytes(std::size_t values) const;
  [[nodiscard]] std::string Metadata(std::size_t count, int rank, int size) const;
  [[nodiscard]] Status ReadShard(int rank, int size, TrainingState& state) const;

  Handle handle_;
  std::string shape_;
  int rank_;
  int size_;
};

}  // namespace muster::train
