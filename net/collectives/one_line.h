// Texts from elsewhere: another member, NCCL.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// Fit for a line of an error: at most 512 bytes, each of them printable ASCII.
[[nodiscard]] inline std::string OneLine(std::string_view text) {
  std::string line(text.substr(0, 512));
  for (char& byte : line) {
    if (byte < ' ' || byte > '~') byte = ' ';
  }
  return line;
}

}  // namespace muster
