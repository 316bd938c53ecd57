#include "net/roce/ways.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/small_files.h"

namespace muster::roce {
namespace {

std::string MtuFile(const Host& host, const std::string& interface) {
  return host.root + "/sys/class/net/" + interface + "/mtu";
}

// Whether somebody has set a route out of this interface to a part of `network`, or to a network that contains it. The route that the
// kernel adds with the interface's own address does not count.
Result<bool> Leads(const Host& host, const std::string& network, const HostAddress& own) {
  const char* family = own.text.find(':') == std::string::npos ? "-4" : "-6";
  for (const char* which : {"root", "match"}) {
    const auto routes = Output(host, {"ip", family, "route", "show", "table", "all", which, network});
    if (!routes) return routes.error();
    bool with_address = false;
    for (const std::string& line : Words(*routes, "\n")) {
      const auto words = Words(line);
      if (words.empty()) continue;
      // The next hops of a route have lines of their own.
      if (words[0] != "nexthop")
        with_address = words[0] == "local" || words[0] == "broadcast" || words[0] == "multicast" ||
                       line.find(" proto kernel ") != std::string::npos;
      const auto device = std::ranges::find(words, "dev");
      if (!with_address && device != words.end() && device + 1 != words.end() && device[1] == own.interface)
        return true;
    }
  }
  return false;
}

}  // namespace

Way Mtu(const Host& host, const std::string& interface, int64_t bytes) {
  const std::string should = std::to_string(bytes);
  const std::vector<std::string> set{"ip", "link", "set", "dev", interface, "mtu", should};
  return {"ip", should, [path = MtuFile(host, interface)] { return ReadValue(path); }, Joined(set),
          Running(host, set)};
}

Way ParentMtu(const Host& host, const Settings& settings, const std::string& interface) {
  const auto now = static_cast<int64_t>(ReadNumber(MtuFile(host, interface)).value_or(0));
  return Mtu(host, interface, std::max(settings.mtu, now));
}

Result<Way> Subnet(const Host& host, const Settings& settings, const HostAddress& own) {
  const auto has = [&own](const Network& network) { return network.Has(own.text); };
  const auto found = std::ranges::find_if(settings.networks, has);
  const auto at = static_cast<size_t>(found - settings.networks.begin());
  const std::string network = Words(settings.networks_text, ", ")[at];
  const std::string is = fmt::format("{}/{}", own.text, own.prefix);
  std::string should = fmt::format("{}/{}", own.text, found->prefix);
  bool fine = own.interface == "lo";
  if (own.prefix < found->prefix) {
    Network mine = *found;
    mine.prefix = own.prefix;
    fine = fine || std::ranges::none_of(settings.networks, [&](const Network& other) {
             return &other != &*found && mine.Overlaps(other);
           });
  } else if (own.prefix > found->prefix && !fine) {
    // With several interfaces in the network each has a part of it.
    fine = std::ranges::any_of(host.addresses(), [&](const HostAddress& other) {
      return other.interface != own.interface && found->Has(other.text);
    });
    if (!fine) {
      const auto leads = Leads(host, network, own);
      if (!leads) return leads.error();
      fine = *leads;
    }
  }
  if (fine) should = is;
  return Way{"ip", should, [is]() -> Result<std::string> { return is; },
             fmt::format("ip address add {} dev {} && ip address del {} dev {}", should, own.interface, is,
                         own.interface)};
}

}  // namespace muster::roce
