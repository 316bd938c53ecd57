// The way of each knob; docs/network.md says what each should be, and which driver has it. An error: this host has no such way, and
// why. What is read and set later asks `host`, which is to outlive it.
#pragma once

#include <string>

#include "net/roce/settings.h"
#include "net/roce/way.h"

namespace muster::roce {

// ---- an interface and its addresses (ip_ways.cc)

Way Mtu(const Host& host, const std::string& interface, int64_t bytes);
// What carries a VLAN may have a larger one, for others.
Way ParentMtu(const Host& host, const Settings& settings, const std::string& interface);
// The prefix that the kernel has for an address. With a longer one than the network's, others are out of reach where no route leads to
// them; a shorter one takes in other networks of the fabric.
Result<Way> Subnet(const Host& host, const Settings& settings, const HostAddress& own);

// ---- a port's priorities (priority_ways.cc)

inline constexpr const char* kTrustsPcp = "PCP";
Way Dcbx(const Host& host, const PhysicalPort& on);
Way Dscp(const Host& host, const Settings& settings, const PhysicalPort& on);
// By what an adapter finds the priority of a packet: its DSCP, or the PCP of its VLAN's tag. The kernel's drivers trust the DSCP
// as soon as they have an entry for one. Set by `dscp`, of each port.
Way Trust(const Host& host, const Settings& settings, const Interface& on);
// Where the PCP is trusted, rdma_cm finds it through the VLAN's map, by the priority that the kernel derives from the traffic
// class (ip_tos2prio).
Way Egress(const Host& host, const Settings& settings, const Interface& on);
Way Pfc(const Host& host, const Settings& settings, const PhysicalPort& on);

// ---- how an adapter reacts to congestion (congestion_ways.cc)

Result<Way> Ecn(const Host& host, const Settings& settings, const PhysicalPort& on);
Result<Way> Cnp(const Host& host, const Settings& settings, const PhysicalPort& on);

// ---- what ethtool shows of a port (ethtool_ways.cc)

Result<Way> RingSizes(const Host& host, const Settings& settings, const PhysicalPort& on);
// An adapter whose host takes no packets pauses its switch without end. After this time it stops that, and drops packets.
Way StormPrevention(const Host& host, const PhysicalPort& on);
// Pauses that reached the time of their prevention since the driver was loaded. Those of the shorter time, warnings, are no finding.
Way PauseStorms(const Host& host, const PhysicalPort& on);

// ---- the traffic class of connections (traffic_class_ways.cc)

// What rdma_cm gives a connection whose program says nothing. A device's directory is made by whoever wants to see it; until then
// nobody has changed the kernel's own values.
Way Cma(const Host& host, const RdmaPort& port, const std::string& file, const std::string& should,
        const std::string& at_first);
// The vendor's driver gives each connection a class of its own, whatever programs say, once the file has one.
std::string ForcedClassFile(const Host& host, const RdmaPort& port);
Way ForcedClass(const Host& host, const Settings& settings, const RdmaPort& port);
Way NcclClass(const std::string& is, const Settings& settings);

}  // namespace muster::roce
