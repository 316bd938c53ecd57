// Lines of /dev/kmsg: nothing in them may do harm, and what is kept of them is bounded and printable.
#include <cstdlib>
#include <string_view>

#include "daemon/health/kernel_fact.h"

namespace {

void Require(bool good) {
  if (!good) std::abort();
}

void RequirePrintable(std::string_view text, size_t limit) {
  Require(text.size() <= limit);
  for (const char c : text) Require(c >= 0x20 && c < 0x7f);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  muster::KernelFactParser parser;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  while (!input.empty()) {
    const size_t newline = input.find('\n');
    const auto record = muster::ParseKernelRecord(input.substr(0, newline));
    input.remove_prefix(newline == std::string_view::npos ? input.size() : newline + 1);
    if (!record) continue;
    Require(record->log_us >= 0);
    const auto fact = parser.Parse(*record);
    if (!fact) continue;
    Require(record->priority < 8);
    Require(fact->pid >= 0);
    RequirePrintable(fact->text, 256);
    RequirePrintable(fact->device, 64);
    RequirePrintable(fact->comm, 64);
    RequirePrintable(fact->cgroup, 512);
  }
  return 0;
}
