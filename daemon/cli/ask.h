// How the command asks musterd, and how it ends.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/proto/muster.pb.h"

namespace muster::cli {

// The command's exit codes.
inline constexpr int kGood = 0;
inline constexpr int kBadFinding = 1;
inline constexpr int kUsage = 2;
inline constexpr int kNotReachable = 3;

inline constexpr int kTimeoutSeconds = 60;
inline constexpr int kLongTimeoutSeconds = 600;  // for what looks at everything in the store

// What every command takes.
struct Common {
  std::string config_path = "/etc/muster/muster.yaml";
  bool json = false;
  std::optional<uint32_t> uid;
};

struct Answered {
  nlohmann::json document;
  int code = kGood;  // a document may be a bad finding
};

// This host's name, as Slurm knows it.
std::string OwnName(const Config& config);
// Asks this host's daemon, and the coordinator when that one knows better; if it does not answer, what the store says is
// given. The errors' codes are those that ExitCode knows.
Result<Answered> Ask(const Common& common, const Config& config, v1::Question question,
                     int timeout_seconds = kTimeoutSeconds);

int ExitCode(Errc code);
// Says it on stderr; gives the exit code.
int Fail(const Error& error);

// Asks one question, and shows the answer as JSON or as a table.
int Show(const Common& common, const v1::Question& question, std::string (*table)(const nlohmann::json&),
         int timeout_seconds = kTimeoutSeconds);
// Shows a document in the same way.
int Print(const Common& common, const Answered& answered, std::string (*table)(const nlohmann::json&));

}  // namespace muster::cli
