// What NCCL must be told of this host's fabric. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/fabric/devices.h"

namespace muster::fabric {

struct NcclVersion {
  int major = 0;
  int minor = 0;

  [[nodiscard]] bool Before(int other_major, int other_minor) const {
    return major != other_major ? major < other_major : minor < other_minor;
  }
};
// "2.19.3", "2.19"
std::optional<NcclVersion> ParseNcclVersion(const std::string& text);

struct Variable {
  std::string key;
  std::string value;
  std::string why;  // a sentence
  bool in_file =
      false;  // /etc/nccl.conf has it, which a variable would overrule: it is for people to see, and not to be set
};

// `interfaces`: roce::FabricNames. Nothing where the settings name no networks, or no interface of this host has an address in one:
// there NCCL chooses. An index of GIDs is given only to a version that does not find one itself, and only where all ports agree. Other
// versions are told where to look, where that is not where they look first.
std::vector<Variable> NcclEnvironment(const HostDevices& devices, const std::vector<std::string>& interfaces,
                                      const roce::Settings& settings, std::optional<NcclVersion> version);

}  // namespace muster::fabric
