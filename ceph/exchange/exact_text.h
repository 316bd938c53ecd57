// Bytes of any kind in JSON: text when they are UTF-8, else {"hex": "..."}.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

nlohmann::json ExactText(std::string_view bytes);
std::optional<std::string> ReadExactText(const nlohmann::json& value);
// What is no UTF-8 is replaced.
std::string PrintableText(std::string_view bytes);

}  // namespace muster
