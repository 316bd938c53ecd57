// Messages that were recorded once (fixtures/*/README.md).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace muster {

// The bytes of a file below tests/unit/daemon/fixtures.
inline std::string Fixture(const std::string& path) {
  std::ifstream in(std::string(MUSTER_FIXTURES) + "/" + path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(bytes.empty()) << "no fixture " << path;
  return bytes;
}

}  // namespace muster
