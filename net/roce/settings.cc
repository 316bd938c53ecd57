#include "net/roce/settings.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/key_file.h"
#include "base/small_files.h"

namespace muster::roce {
namespace {

// With the bits behind the prefix cleared.
std::string Masked(std::string bytes, int prefix) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int kept = std::min(8, std::max(0, prefix - static_cast<int>(i) * 8));
    bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) & (0xff00U >> kept));
  }
  return bytes;
}

const char* AreNetworks(const std::string& text) {
  const bool good = EachPart(text, [](const std::string& part) { return ParseNetwork(part).ok(); });
  return good ? nullptr : "give networks between commas, as in 10.1.0.0/16, fd00:1::/64";
}

std::vector<Key> Keys(Settings& settings) {
  return {
      TextKey("networks", &settings.networks_text,
              "The networks of the fabric, as in \"10.1.0.0/16, 10.2.0.0/16\": an interface with an address "
              "in one of "
              "them is set up. Empty: this host has no fabric.",
              AreNetworks),
      NumberKey("mtu", KeyKind::kCount, &settings.mtu, 1'280, 65'520, "The MTU of its interfaces, in bytes."),
      NumberKey("dscp", KeyKind::kCount, &settings.dscp, 0, 63, "The DSCP of RDMA's packets."),
      NumberKey("ecn_bits", KeyKind::kCount, &settings.ecn_bits, 0, 2,
                "The two bits below the DSCP. 2, ECT(0): a switch may mark such a packet in place of "
                "dropping it; the "
                "traffic class is then 4 x dscp + 2."),
      NumberKey("priority", KeyKind::kCount, &settings.priority, 0, 7,
                "The priority that this DSCP is mapped to."),
      TextKey("pfc", &settings.pfc,
              "Whether this priority, and it alone, is lossless by priority flow control. No: the fabric may "
              "drop "
              "packets, and no priority pauses.",
              IsYesOrNo),
      NumberKey("cnp_dscp", KeyKind::kCount, &settings.cnp_dscp, 0, 63,
                "The DSCP of congestion notification packets."),
      NumberKey("cnp_priority", KeyKind::kCount, &settings.cnp_priority, 0, 7, "The priority of these."),
      NumberKey(
          "rings", KeyKind::kCount, &settings.rings, 0, 65'536,
          "The size of an adapter's receive and send rings, or what it has at most where that is less. 0: "
          "whatever they are."),
      NumberKey("rate", KeyKind::kCount, &settings.rate, 0, 10'000'000,
                "What a link carries, in Mbit/s, as 400000: `muster net test` sends no faster. 0: what its "
                "adapter says."),
  };
}

}  // namespace

std::string AddressBytes(const std::string& text) {
  std::array<char, sizeof(in6_addr)> bytes{};
  if (::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in_addr)};
  if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in6_addr)};
  return "";
}

bool Network::Has(const std::string& address_text) const {
  const std::string bytes = AddressBytes(address_text);
  return bytes.size() == address.size() && Masked(bytes, prefix) == address;
}

bool Network::Overlaps(const Network& other) const {
  const int shorter = std::min(prefix, other.prefix);
  return address.size() == other.address.size() && Masked(address, shorter) == Masked(other.address, shorter);
}

Result<Network> ParseNetwork(const std::string& text) {
  const Error wrong{Errc::kInvalid,
                    fmt::format("'{}' is no network: give ADDRESS/PREFIX, as in 10.1.0.0/16", text)};
  const size_t slash = text.find('/');
  const std::string address = AddressBytes(text.substr(0, slash));
  if (slash == std::string::npos || address.empty()) return wrong;
  int prefix = -1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, prefix);
  if (error != std::errc() || rest != end || prefix < 1 || prefix > static_cast<int>(address.size()) * 8)
    return wrong;
  if (Masked(address, prefix) != address)
    return Error{Errc::kInvalid, fmt::format("'{}' has bits of hosts behind its prefix", text)};
  return Network{address, prefix};
}

Result<Settings> ParseSettings(const std::string& text, const std::string& name) {
  Settings settings;
  const auto given = ParseKeys(text, name, Keys(settings));
  if (!given) return given.error();
  for (const std::string& part : Words(settings.networks_text, ", "))
    settings.networks.push_back(*ParseNetwork(part));
  const auto texts = Words(settings.networks_text, ", ");
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!settings.networks[i].Overlaps(settings.networks[j])) continue;
      return Error{Errc::kInvalid,
                   fmt::format("{}: the networks {} and {} overlap: an address must be in one of them alone",
                               name, texts[j], texts[i])};
    }
  }
  if (settings.dscp == settings.cnp_dscp) {
    return Error{Errc::kInvalid,
                 fmt::format("{}: dscp and cnp_dscp are both {}: notifications of congestion must not "
                             "wait behind what is congested",
                             name, settings.dscp)};
  }
  if (settings.priority == settings.cnp_priority) {
    return Error{
        Errc::kInvalid,
        fmt::format("{}: priority and cnp_priority are both {}: notifications of congestion must not wait "
                    "behind what is congested",
                    name, settings.priority)};
  }
  return settings;
}

std::string SettingsFile(const std::string& path) {
  return path.empty() || IsDefaultAndAbsent(path, kSettingsPath) ? "/dev/null" : path;
}

Result<Settings> LoadSettings(const std::string& path) {
  const auto text = ReadKeyFile(SettingsFile(path));
  if (!text) return text.error();
  return ParseSettings(*text, path);
}

std::string DefaultSettingsText() {
  Settings defaults;
  return "# A RoCE fabric's settings, the same on all its hosts. Every key is shown with its default.\n"
         "# Compare this host with them: muster net check. Set it up: muster net set\n" +
         KeysText(Keys(defaults));
}

}  // namespace muster::roce
