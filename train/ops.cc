#include "train/ops.h"

namespace muster::train {

Ops::~Ops() = default;

}  // namespace muster::train
