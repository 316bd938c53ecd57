// A node list from a hello: bounded, whatever it says.
#include <cstdlib>

#include "base/hostlist.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto hosts = muster::ExpandHostlist({reinterpret_cast<const char*>(data), size});
  if (!hosts) return 0;
  if (hosts->empty() || hosts->size() > muster::kMaxHosts) std::abort();
  // Written and read again it is the same.
  const auto same = muster::ExpandHostlist(muster::CompressHostlist(*hosts));
  if (!same || *same != *hosts) std::abort();
  for (const std::string& host : *hosts) {
    if (host.empty() || host.size() > muster::kMaxHostName) std::abort();
    // A name is a list of one.
    const auto again = muster::ExpandHostlist(host);
    if (!again || again->size() != 1 || again->front() != host) std::abort();
  }
  return 0;
}
