// A daemon's answers as tables for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace muster {

std::string StatusTable(const nlohmann::json& document);
std::string EventsTable(const nlohmann::json& document);
std::string NodeText(const nlohmann::json& document);      // drain, resume
std::string NodeViewText(const nlohmann::json& document);  // show

}  // namespace muster
