// What musterd says of checkpoints, as text for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace muster::cli {

std::string CheckpointTable(const nlohmann::json& document);
std::string CheckpointText(const nlohmann::json& document);
std::string VerifyTable(const nlohmann::json& document);
std::string PinText(const nlohmann::json& document);
std::string RemovedText(const nlohmann::json& document);
std::string ExportText(const nlohmann::json& document);
std::string ImportText(const nlohmann::json& document);
std::string StorageTable(const nlohmann::json& document);

}  // namespace muster::cli
