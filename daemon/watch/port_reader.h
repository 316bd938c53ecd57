// A port of the fabric as the kernel shows it: /sys and, for pauses, the driver's ethtool statistics. Files stay open, so that a
// sample costs one pread a counter.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/watch/port_watch.h"
#include "net/roce/fabric_interfaces.h"

namespace muster::watch {

// Of a driver's statistics, those that count frames of pause; a driver counts the same frame under several names, so the largest
// of each direction is taken.
struct PauseColumns {
  std::vector<size_t> sent;
  std::vector<size_t> received;
};
PauseColumns FindPauses(const std::vector<std::string>& names);

// Not thread-safe. What cannot be read is left out of the sample. A driver that hangs holds its caller.
class PortReader {
 public:
  // `root`: what /sys is below; with another than "" no ethtool is asked. `networks`: whose address makes a GID the fabric's.
  PortReader(std::string root, std::vector<roce::Network> networks, std::string interface,
             std::optional<roce::RdmaPort> rdma);

  PortSample Read();

  // "mlx5_0 port 1 (roce0)"; without RDMA "roce0".
  [[nodiscard]] const std::string& name() const { return name_; }
  // System calls so far.
  [[nodiscard]] uint64_t calls() const { return calls_; }

 private:
  struct Place {
    std::string directory;
    ino_t inode = 0;
  };
  struct OpenCounter {
    Count count;
    std::string name;
    UniqueFd file;
  };

  bool Moved(Place& place, bool* there);
  void Open();
  void Close();
  UniqueFd OpenFile(const std::string& path);
  std::string Text(const UniqueFd& file);
  void ChooseGid();
  std::optional<uint32_t> FindGid(const std::string& gid);
  void OpenPauses();
  void ReadPauses(PortSample& sample);

  std::string root_;
  std::vector<roce::Network> networks_;
  std::string interface_;
  std::string name_;
  Place net_;
  std::optional<Place> port_;
  uint64_t calls_ = 0;

  UniqueFd operstate_;
  UniqueFd carrier_changes_;
  UniqueFd state_;
  UniqueFd phys_state_;
  UniqueFd gid_file_;
  std::vector<OpenCounter> counters_;
  std::optional<uint32_t> gid_index_;
  std::string gid_;  // what was there when the index was chosen
  UniqueFd ethtool_;
  uint32_t statistics_ = 0;  // the driver's
  PauseColumns pauses_;
  uint64_t pause_turn_ = 0;
};

}  // namespace muster::watch
