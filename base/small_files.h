// Small files of /proc and /sys, read whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// At most 256 KiB of a file, or nothing when it cannot be read.
std::optional<std::string> ReadSmallFile(const std::string& path);
// Its first line without space around it; "" when it cannot be read.
std::string ReadLine(const std::string& path);
// The decimal number that a file (or text) begins with.
std::optional<uint64_t> ReadNumber(const std::string& path);
std::optional<uint64_t> ParseDecimal(std::string_view text);
// Of a line "NAME:   123 kB" of /proc/meminfo, in bytes; the name with its colon.
std::optional<uint64_t> ReadMemInfo(const std::string& proc_root, std::string_view name);
// Names in a directory, sorted, without those that begin with a dot; empty when it cannot be read.
std::vector<std::string> ListDirectory(const std::string& path);
// The parts of a text between spaces (or what `separators` has), without empty ones.
std::vector<std::string> Words(std::string_view text, std::string_view separators = " \t\n");

}  // namespace muster
