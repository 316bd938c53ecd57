// What musterd and muster-slurm say to each other, docs/formats.md "muster-slurm": one JSON object a line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/slurm/slurm.h"

namespace muster::slurm {

inline constexpr int kProtocol = 1;
inline constexpr size_t kMaxRequest = 64 << 10;  // bytes of a line
inline constexpr size_t kMaxReply = 8 << 20;
inline constexpr size_t kMaxText = 256;
// Before every reason that Muster gives a node, so that it takes back its own only.
inline constexpr char kReasonPrefix[] = "muster: ";

// A question about a run of a job.
nlohmann::json About(const char* what, const JobRun& run);

nlohmann::json ToJson(const SlurmJob& job);
Result<SlurmJob> JobFromJson(const nlohmann::json& json);

// {"id": N, "error": {"code": ..., "message": ...}}
nlohmann::json ErrorReply(uint64_t id, const Error& error);
// The "ok" of a reply to question `id`, its error, or kInternal when it is no such reply.
Result<nlohmann::json> ParseReply(std::string_view line, uint64_t id);

// At most kMaxText bytes, no control characters, whole UTF-8 characters.
std::string CleanText(std::string_view text);

}  // namespace muster::slurm
