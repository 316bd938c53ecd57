// Any line gets an answer, which is one line of JSON, and no text of it becomes more than the text that it is.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/slurm/helper/operations.h"
#include "daemon/slurm/messages.h"
#include "tests/unit/slurm/fake_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::slurm;
  FakeCalls calls;
  calls.AddJob(12, {"n1", "n2"});
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const std::string answer = Answer(calls, line);
  if (answer.find('\n') != std::string::npos || !nlohmann::json::accept(answer)) abort();
  if (const auto job = JobFromJson(nlohmann::json::parse(line, nullptr, false))) ToJson(*job);
  (void)ParseReply(line, 1);
  return 0;
}
