#include "train/muster_api.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "wire/status_codes.h"

namespace muster::train {
namespace {

// What muster_exchange takes for the time until then.
int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

}  // namespace

Result<Handle> OpenMuster() {
  muster_handle* opened = nullptr;
  const int code = muster_open(&opened);
  Handle handle(opened);
  // Inside a gang the same code says that musterd does not know it; then a member must not train on alone.
  if (code == MUSTER_E_NO_GANG && std::getenv("MUSTER_GANG") == nullptr) return Handle();
  if (code != MUSTER_OK)
    return Error{wire::ErrcOf(code), std::string("opening libmuster: ") + muster_last_error(nullptr)};
  return handle;
}

Exchange ExchangeOver(muster_handle* handle) {
  return [handle](const std::string& key, const std::string& value,
                  std::chrono::steady_clock::time_point deadline) -> Result<std::vector<std::string>> {
    const auto failed = [handle](int code) {
      return Error{wire::ErrcOf(code), std::string("meeting the others: ") + muster_last_error(handle)};
    };
    if (const int code =
            muster_exchange(handle, key.c_str(), value.data(), value.size(), MillisecondsUntil(deadline));
        code != MUSTER_OK) {
      return failed(code);
    }
    std::vector<std::string> values;
    for (std::uint32_t rank = 0; rank < muster_world_size(handle); ++rank) {
      const void* given = nullptr;
      std::size_t bytes = 0;
      if (const int code = muster_exchanged(handle, rank, &given, &bytes); code != MUSTER_OK)
        return failed(code);
      values.emplace_back(static_cast<const char*>(given), bytes);
    }
    return values;
  };
}

}  // namespace muster::train
