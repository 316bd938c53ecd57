#include "client/files/step_name.h"

#include <charconv>

namespace muster::files {

std::optional<uint64_t> StepOf(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  constexpr size_t kMaxDigits = 20;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.empty() || name.size() > kMaxDigits) return std::nullopt;
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  // The highest number is no step (MUSTER_LATEST).
  if (error != std::errc() || end != name.data() + name.size() || step == UINT64_MAX) return std::nullopt;
  return step;
}

}  // namespace muster::files
