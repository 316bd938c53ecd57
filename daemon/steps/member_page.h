// musterd's side of the pages that members' libmusters share with it (wire/step_page.h).
#pragma once

#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/step_page.h"

namespace muster::steps {

// Gives it back with the last reference. kInvalid: it is no memory that can be trusted not to shrink, or is not of a page's size.
Result<std::shared_ptr<wire::StepPage>> MapPage(const UniqueFd& memory);

}  // namespace muster::steps
