// `muster net show` and `muster net env`: what this host has for RDMA, and what NCCL must be told of it.
#pragma once

#include <string>

#include "daemon/cli/ask.h"
#include "net/roce/fabric_interfaces.h"
#include "net/roce/settings.h"

namespace muster::cli {

// Of one device, or of all when `device` is empty; kNotFound names those that are there.
Result<Answered> ShowDevices(const roce::Host& host, const roce::Settings& settings,
                             const std::string& device);
std::string DevicesText(const nlohmann::json& document);

// `nccl`: the version of a program's NCCL, as "2.19.3", or "" for today's. What is set in this process's own environment stays, and
// is told.
Result<Answered> ShowEnvironment(const roce::Host& host, const roce::Settings& settings,
                                 const std::string& nccl);
// Lines for a shell.
std::string EnvironmentText(const nlohmann::json& document);

}  // namespace muster::cli
