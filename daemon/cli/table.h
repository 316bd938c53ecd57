// Text for people: columns, times, sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster::cli {

using Row = std::vector<std::string>;

// Columns as wide as their widest cell; the last one is not padded.
std::string Table(const std::vector<Row>& rows);
// Local time; `precise`: with milliseconds.
std::string Time(int64_t realtime_ns, bool precise);
// "1.5 MB"
std::string Bytes(uint64_t bytes);

}  // namespace muster::cli
