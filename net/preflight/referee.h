// Leads a test of the fabric: waits for the nodes, lets pairs of them measure, judges, looks once more at what it suspects, and names
// the links that are bad.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "net/preflight/line_stream.h"

namespace muster::preflight {

struct TestOptions {
  std::string run;     // nodes of another one are refused
  uint32_t nodes = 0;  // how many take part, this one too
  bool full = false;   // all pairs, and long enough to see one lost packet in a thousand
  Deadline come;       // until when nodes may come
};

// Runs the test over a listening socket. The document is what `muster net test --json` prints:
//   ok, nodes, rails, mode, transport, seconds (from the last node's coming to the verdict), mbit_s (what good links reach, over TCP or
//   with RDMA, whichever is more),
//   latency_us (half of the shortest round trip, the median of the pairs), longest_latency_us and longest_pair, measurements,
//   packets (of TCP's data, over the direction of a link that had fewest),
//   over_tcp: [{text, fix}] (why nodes have measured over TCP though the fabric has RDMA devices),
//   findings: [{trouble, node | pair | switch | networks, interface, direction, is, should, text, fix}], passing (what was seen once
//   only, likewise), shared: [names of nodes whose links carried other traffic], gone: [names] (ended, or answered no more),
//   missing: [numbers].
// Every node hears whether it is ok. kUnavailable when fewer than two nodes come.
Result<nlohmann::json> RunTest(const UniqueFd& listening, const TestOptions& options);

}  // namespace muster::preflight
