// Programs of the host that a command asks: ended when they do not answer.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

inline constexpr int kNoProgram = 127;
inline constexpr int kTooLong = 124;

struct Ran {
  int code = 0;        // 128 + N after signal N; kNoProgram: it is not installed; kTooLong
  std::string output;  // standard output and error
};

// Runs a program of PATH, or of /usr/sbin, to its end. `words` may begin with NAME=VALUE. One that runs on past `limit` is killed
// and not waited for, whatever it hangs in.
Result<Ran> RunProgram(std::vector<std::string> words, std::chrono::milliseconds limit);

}  // namespace muster
