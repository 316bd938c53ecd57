#include "net/roce/knobs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "net/roce/ways.h"

namespace muster::roce {
namespace {

Knob Ask(const std::string& interface, const std::string& driver, const std::string& name,
         const Result<Way>& way, bool set) {
  Knob knob{interface, driver, name, "", "", State::kUnknown, "", "", ""};
  if (!way) {
    knob.why = way.error().message;
    return knob;
  }
  knob.via = way->via;
  knob.should = way->should;
  const auto is = way->read();
  if (!is) {
    knob.why = is.error().message;
    return knob;
  }
  knob.is = *is;
  knob.state = knob.is == knob.should ? State::kIs : State::kDiffers;
  if (knob.state == State::kIs) return knob;
  knob.fix = way->fix;
  knob.can_set = way->set != nullptr;
  if (!set) return knob;
  const Status done = way->set();
  const auto now = way->read();
  if (now && *now == knob.should) {
    knob.state = State::kSet;
    if (way->at_reboot) knob.why = "from the next reboot on";
  } else {
    knob.why = !done ? done.error().message
               : now ? fmt::format("it was set, and is {}", *now)
                     : now.error().message;
  }
  return knob;
}

std::vector<Knob> OfPort(const Host& host, const Settings& settings, const PhysicalPort& on, bool set) {
  const auto ask = [&](const char* name, const Result<Way>& way) {
    return Ask(on.name, on.driver, name, way, set);
  };
  std::vector<Knob> knobs;
  if (settings.rings > 0) knobs.push_back(ask("rings", RingSizes(host, settings, on)));
  knobs.push_back(ask("dcbx", Dcbx(host, on)));
  knobs.push_back(ask("dscp", Dscp(host, settings, on)));
  knobs.push_back(ask("pfc", Pfc(host, settings, on)));
  if (settings.pfc == "yes") knobs.push_back(ask("storm_prevention", StormPrevention(host, on)));
  if (!set) knobs.push_back(ask("pause_storms", PauseStorms(host, on)));
  // Switches mark no packet whose ECN bits are 0, so adapters have no marks to react to (ecn) or to notify (cnp).
  if (settings.ecn_bits != 0) {
    knobs.push_back(ask("ecn", Ecn(host, settings, on)));
    knobs.push_back(ask("cnp", Cnp(host, settings, on)));
  }
  return knobs;
}

std::vector<Knob> Each(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces,
                       bool set) {
  std::vector<Knob> knobs;
  std::set<std::string> seen;
  for (const Interface& on : interfaces) {
    const auto ask = [&](const char* name, const Result<Way>& way) {
      knobs.push_back(Ask(on.name, on.driver, name, way, set));
    };
    for (const std::string& parent : on.parents) {
      if (seen.insert(parent + " mtu").second)
        knobs.push_back(Ask(parent, "", "mtu", ParentMtu(host, settings, parent), set));
    }
    ask("mtu", Mtu(host, on.name, settings.mtu));
    if (!set) {
      for (const HostAddress& own : on.addresses) ask("subnet", Subnet(host, settings, own));
    }
    for (const PhysicalPort& port : on.ports) {
      if (!seen.insert(port.name).second) continue;
      for (Knob& knob : OfPort(host, settings, port, set)) knobs.push_back(std::move(knob));
    }
    if (on.driver == "vlan") {
      ask("trust", Trust(host, settings, on));
      if (knobs.back().is.find(kTrustsPcp) != std::string::npos && knobs.back().state == State::kDiffers)
        ask("egress", Egress(host, settings, on));
    }
    for (const RdmaPort& port : on.rdma) {
      ask("cma_tos", Cma(host, port, "default_roce_tos", std::to_string(settings.TrafficClass()), "0"));
      ask("cma_mode", Cma(host, port, "default_roce_mode", "RoCE v2", "RoCE v2"));
      if (::access(ForcedClassFile(host, port).c_str(), F_OK) == 0)
        ask("traffic_class", ForcedClass(host, settings, port));
    }
  }
  const auto nccl = ReadNcclConf(host);
  const bool rdma = std::ranges::any_of(interfaces, [](const Interface& on) { return !on.rdma.empty(); });
  if (const auto own = nccl.find("NCCL_IB_TC"); !set && rdma && own != nccl.end())
    knobs.push_back(Ask("", "", "nccl_traffic_class", NcclClass(own->second, settings), set));
  return knobs;
}

}  // namespace

const char* Name(State state) {
  constexpr std::array kNames = {"is", "differs", "set", "unknown"};
  return kNames[static_cast<size_t>(state)];
}

std::vector<Knob> Check(const Host& host, const Settings& settings,
                        const std::vector<Interface>& interfaces) {
  return Each(host, settings, interfaces, false);
}

std::vector<Knob> Set(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces) {
  return Each(host, settings, interfaces, true);
}

}  // namespace muster::roce
