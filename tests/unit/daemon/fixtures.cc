#include "tests/unit/daemon/fixtures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace muster {

std::string Fixture(const std::string& path) {
  std::ifstream in(std::string(MUSTER_FIXTURES) + "/" + path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(bytes.empty()) << "no fixture " << path;
  return bytes;
}

}  // namespace muster
