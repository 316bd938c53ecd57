// What makes a fabric of Ethernet fit for RDMA, interface by interface: what it is, what it should be, and what sets it. Which of
// its settings a driver shows and takes differs; docs/network.md has the table.
#pragma once

#include <string>
#include <vector>

#include "net/roce/fabric_interfaces.h"
#include "net/roce/settings.h"

namespace muster::roce {

enum class State {
  kIs,       // as it should be
  kDiffers,  // it is not, or could not be set: `why`
  kSet,      // it was not, and now it is
  kUnknown,  // this driver, or what is installed, does not say: `why`
};
const char* Name(State state);

struct Knob {
  std::string interface;  // of a bond's ports each has its own
  std::string driver;
  std::string name;  // docs/network.md has all
  std::string is;
  std::string should;
  State state = State::kUnknown;
  std::string via;  // where it is read and set
  std::string why;
  std::string fix;       // a command, of what differs
  bool can_set = false;  // by Set; else a person must
};

// Changes nothing. In the order of the names above: the MTU of each interface; what an adapter has, of each port below, once for
// several interfaces; what rdma_cm has, of each port of an RDMA device.
std::vector<Knob> Check(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces);
// Sets what differs, and reads it again. Needs root.
std::vector<Knob> Set(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces);

}  // namespace muster::roce
