#include "daemon/health/findings.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdint>

#include "base/small_files.h"

namespace muster {
namespace {

using Kind = HealthLine::Kind;

struct Name {
  const char* name;
  Kind kind;
  HealthSeverity severity;
};
constexpr std::array kNames = {
    Name{"checking", Kind::kChecking, HealthSeverity::kWarning},
    Name{"warning", Kind::kFinding, HealthSeverity::kWarning},
    Name{"sick", Kind::kFinding, HealthSeverity::kSick},
    Name{"counter", Kind::kCounter, HealthSeverity::kWarning},
    Name{"done", Kind::kDone, HealthSeverity::kWarning},
};

std::string OneField(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = ' ';
  }
  return text;
}

bool SetText(const std::string& key, const std::string& value, HealthOptions* options) {
  if (key == "sys") {
    options->sys_root = value;
  } else if (key == "proc") {
    options->proc_root = value;
  } else if (key == "nvml") {
    options->nvml_library = value;
  } else if (key == "state_dir") {
    options->state_dir = value;
  } else if (key == "nic") {
    options->nics.push_back(value);
  } else if (key == "disk") {
    options->disks.push_back(value);
  } else {
    return false;
  }
  return true;
}

bool SetNumber(const std::string& key, const std::string& value, HealthOptions* options) {
  const size_t name_end = key == "last" ? value.rfind('=') : std::string::npos;
  const std::string digits = value.substr(name_end + 1);  // npos + 1 is 0
  const uint64_t number = ParseDecimal(digits).value_or(UINT64_MAX);
  if (digits != std::to_string(number) || number > INT64_MAX) return false;
  if (key == "timeout_ms") {
    options->timeout = std::chrono::milliseconds(number);
  } else if (key == "settle_ms") {
    options->settle = std::chrono::milliseconds(number);
  } else if (key == "memory_min") {
    options->memory_min_bytes = number;
  } else if (key == "disk_free") {
    options->disk_free_percent = static_cast<uint32_t>(number);
  } else if (key == "gpu_unowned_max") {
    options->gpu_unowned_max_bytes = number;
  } else if (key == "gpu") {
    options->gpus.push_back(static_cast<uint32_t>(number));
  } else if (key == "last" && name_end != std::string::npos) {
    options->last_counters[value.substr(0, name_end)] = number;
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string ToLine(const HealthLine& line) {
  for (const Name& name : kNames) {
    if (name.kind != line.kind || name.severity != line.severity) continue;
    return fmt::format("{}\t{}\t{}\n", name.name, OneField(line.subject), OneField(line.text));
  }
  return "";
}

std::optional<HealthLine> ParseHealthLine(std::string_view text) {
  const size_t first = text.find('\t');
  const size_t second = text.find('\t', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  for (const Name& name : kNames) {
    if (text.substr(0, first) != name.name) continue;
    return HealthLine{name.kind, name.severity, std::string(text.substr(first + 1, second - first - 1)),
                      std::string(text.substr(second + 1))};
  }
  return std::nullopt;
}

void Findings::Checking(const std::string& subject) {
  subject_ = subject;
  tell_({Kind::kChecking, HealthSeverity::kWarning, subject, ""});
}
void Findings::Add(HealthSeverity severity, const std::string& what) {
  tell_({Kind::kFinding, severity, subject_, what});
}
void Findings::Counter(const std::string& name, uint64_t value) {
  tell_({Kind::kCounter, HealthSeverity::kWarning, name, std::to_string(value)});
}

std::vector<std::string> ToArguments(const HealthOptions& options) {
  std::vector<std::string> arguments = {
      "sys=" + options.sys_root,
      "proc=" + options.proc_root,
      "nvml=" + options.nvml_library,
      fmt::format("timeout_ms={}", options.timeout.count()),
      fmt::format("settle_ms={}", options.settle.count()),
      "state_dir=" + options.state_dir,
      fmt::format("memory_min={}", options.memory_min_bytes),
      fmt::format("disk_free={}", options.disk_free_percent),
      fmt::format("gpu_unowned_max={}", options.gpu_unowned_max_bytes),
  };
  for (const uint32_t gpu : options.gpus) arguments.push_back(fmt::format("gpu={}", gpu));
  for (const std::string& nic : options.nics) arguments.push_back("nic=" + nic);
  for (const std::string& disk : options.disks) arguments.push_back("disk=" + disk);
  for (const auto& [name, value] : options.last_counters) {
    arguments.push_back(fmt::format("last={}={}", OneField(name), value));
  }
  return arguments;
}

Result<HealthOptions> ParseHealthArguments(const std::vector<std::string>& arguments) {
  HealthOptions options;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (equals == std::string::npos || (!SetText(key, value, &options) && !SetNumber(key, value, &options))) {
      return Error{
          Errc::kInvalid,
          fmt::format("'{}': give sys=, proc=, nvml=, state_dir=, disk=, nic= with a text; timeout_ms=, "
                      "settle_ms=, memory_min=, disk_free=, gpu_unowned_max=, gpu= or last=NAME= with a "
                      "number",
                      argument)};
    }
  }
  return options;
}

}  // namespace muster
