#include "train/gradient_exchange.h"

#include <utility>

namespace muster::train {

GradientExchange::GradientExchange(Ops& ops, Collectives& group, const ExchangeOptions& options,
                                   std::size_t parameters, std::size_t shared)
    : ops_(ops),
      group_(group),
      options_(options),
      shared_(shared),
      values_(ops, shared + parameters),
      end_(values_.size()) {
  if (options.overlap && group.size() > 1) queue_ = std::make_unique<WorkQueue>(group);
}

void GradientExchange::Ready(Slice part) {
  const std::size_t begin = shared_ + part.begin;
  // The last part waits for what is shared.
  if (part.begin == 0 || (end_ - begin) * sizeof(float) < options_.bucket_bytes) return;
  Begin({begin, end_});
  end_ = begin;
}

void GradientExchange::Begin(Slice part) {
  if (queue_ == nullptr) return waiting_.push_back(part);
  const std::span<float> values = values_.values().subspan(part.begin, part.size());
  under_way_.push_back(queue_->AllReduce(Numbers(values), ReduceOp::kSum, ops_.Mark()));
}

Status GradientExchange::Finish() {
  Begin({0, end_});
  end_ = values_.size();
  Status first;
  for (std::future<Status>& one : under_way_) {
    Status reduced = one.get();
    if (first && !reduced) first = std::move(reduced);
  }
  under_way_.clear();
  if (first && !waiting_.empty()) first = ops_.Wait();
  // A group of one may be of another memory, and has nothing to add.
  if (group_.memory() != ops_.memory()) waiting_.clear();
  for (const Slice part : waiting_) {
    if (!first) break;
    first = group_.AllReduce(Numbers(values_.values().subspan(part.begin, part.size())), ReduceOp::kSum);
  }
  waiting_.clear();
  return first;
}

}  // namespace muster::train
