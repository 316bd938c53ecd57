#include "train/state.h"

#include <algorithm>

namespace muster::train {

Slice SliceOf(std::size_t count, int rank, int size) {
  const auto members = static_cast<std::size_t>(size);
  const auto index = static_cast<std::size_t>(rank);
  const std::size_t each = count / members;
  const std::size_t longer = count % members;  // the first of them have one more
  const std::size_t begin = index * each + std::min(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

}  // namespace muster::train
