#include "net/roce/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/small_files.h"

namespace muster::roce {
namespace {

// Of the two sections of `ethtool -g`: what there may be at most, and what there is.
struct Rings {
  int64_t receive = 0;
  int64_t send = 0;
};
Result<std::pair<Rings, Rings>> ReadRings(const Host& host, const PhysicalPort& on) {
  const auto output = Output(host, {"ethtool", "-g", on.name});
  if (!output) return output.error();
  std::array<Rings, 2> sections;
  size_t section = 0;
  for (const std::string& line : Words(*output, "\n")) {
    if (line.starts_with("Current")) section = 1;
    const auto words = Words(line);
    const auto number = words.size() == 2 ? ParseDecimal(words[1]) : std::nullopt;
    if (number && words[0] == "RX:") sections[section].receive = static_cast<int64_t>(*number);
    if (number && words[0] == "TX:") sections[section].send = static_cast<int64_t>(*number);
  }
  if (section == 0 || sections[0].receive == 0 || sections[0].send == 0)
    return Error{Errc::kUnavailable,
                 fmt::format("the driver {} does not say how large they may be", on.driver)};
  return std::pair(sections[0], sections[1]);
}

}  // namespace

Result<Way> RingSizes(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const auto read = ReadRings(host, on);
  if (!read) return read.error();
  const Rings& most = read->first;
  const auto text = [](const Rings& rings) {
    return fmt::format("receive {}, send {}", rings.receive, rings.send);
  };
  const Rings should{std::min(settings.rings, most.receive), std::min(settings.rings, most.send)};
  const std::vector<std::string> set{
      "ethtool", "-G", on.name, "rx", std::to_string(should.receive), "tx", std::to_string(should.send)};
  return Way{"ethtool", text(should),
             [&host, on, text]() -> Result<std::string> {
               const auto now = ReadRings(host, on);
               if (!now) return now.error();
               return text(now->second);
             },
             Joined(set), Running(host, set)};
}

Way StormPrevention(const Host& host, const PhysicalPort& on) {
  // 65535: the driver's own time.
  const std::vector<std::string> set{"ethtool", "--set-tunable", on.name, "pfc-prevention-tout", "65535"};
  return {"ethtool", "on",
          [&host, on]() -> Result<std::string> {
            const auto output = Output(host, {"ethtool", "--get-tunable", on.name, "pfc-prevention-tout"});
            if (!output) return output.error();
            const auto words = Words(*output);
            const auto number = words.empty() ? std::nullopt : ParseDecimal(words.back());
            if (!number) return ShowsNothing(on);
            return std::string(*number == 0 ? "off" : "on");
          },
          Joined(set), Running(host, set)};
}

Way PauseStorms(const Host& host, const PhysicalPort& on) {
  return {"ethtool", "none",
          [&host, on]() -> Result<std::string> {
            const auto output = Output(host, {"ethtool", "-S", on.name});
            if (!output) return output.error();
            std::optional<uint64_t> storms;
            for (const std::string& line : Words(*output, "\n")) {
              const auto words = Words(line, " \t:");
              if (words.size() != 2 || words[0].find("storm") == std::string::npos ||
                  words[0].find("warning") != std::string::npos)
                continue;
              if (const auto number = ParseDecimal(words[1])) storms = storms.value_or(0) + *number;
            }
            if (!storms) return ShowsNothing(on);
            return *storms == 0 ? "none" : fmt::format("{} counted", *storms);
          },
          on.pci.empty() ? fmt::format("ethtool -S {} | grep storm", on.name)
                         : fmt::format("devlink dev reload pci/{}", on.pci)};
}

}  // namespace muster::roce
