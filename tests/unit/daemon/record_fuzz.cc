// A record as the store gives it: refused, or the same after another round.
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "daemon/coordinator/record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto record = muster::GangRecord::Decode(std::string(reinterpret_cast<const char*>(data), size));
  if (!record) return 0;
  const std::string text = record->Encode();
  const auto again = muster::GangRecord::Decode(text);
  if (!again || again->Encode() != text) std::abort();
  return 0;
}
