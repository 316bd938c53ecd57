// /etc/muster/roce.yaml: what a RoCE fabric is to be, the same on all its hosts and switches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::roce {

inline constexpr const char* kSettingsPath = "/etc/muster/roce.yaml";

// An IPv4 or IPv6 address in network byte order: of two addresses of one family the lower one has the lower bytes. "": the text is no
// address.
std::string AddressBytes(const std::string& text);

// Of IPv4 or IPv6.
struct Network {
  std::string address;  // network byte order, 4 or 16 bytes
  int prefix = 0;

  // Nothing for what is no address of its family.
  [[nodiscard]] bool Has(const std::string& address_text) const;
  // They share addresses.
  [[nodiscard]] bool Overlaps(const Network& other) const;
};
Result<Network> ParseNetwork(const std::string& text);  // "10.1.0.0/16"

struct Settings {
  std::vector<Network> networks;  // an interface with an address in one of them is one of the fabric
  std::string networks_text;      // as they were written
  int64_t mtu = 9'000;            // bytes
  int64_t dscp = 26;
  int64_t ecn_bits = 2;
  int64_t priority = 3;
  std::string pfc = "yes";
  int64_t cnp_dscp = 48;
  int64_t cnp_priority = 6;
  int64_t rings = 0;  // descriptors of each ring of an adapter; 0: whatever they are
  int64_t rate = 0;   // Mbit/s of a link; 0: what its adapter says

  // The byte of IP's header that a packet of RDMA has: the upper six bits are the DSCP.
  [[nodiscard]] int64_t TrafficClass() const { return dscp << 2 | ecn_bits; }
};

Result<Settings> ParseSettings(const std::string& text, const std::string& name_for_errors);
// The file that LoadSettings reads for a path: /dev/null, which names no networks, where the host has no fabric. That is a host without
// kSettingsPath, and one with "" for a path. Another file must be there.
std::string SettingsFile(const std::string& path);
Result<Settings> LoadSettings(const std::string& path);
// A commented file with every key and its default.
std::string DefaultSettingsText();

}  // namespace muster::roce
