// What `muster node show` is answered.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/agent/node_view.h"

namespace muster {

// docs/formats.md has the document.
nlohmann::json NodeReport(const std::string& node, const NodeView& view);

}  // namespace muster
