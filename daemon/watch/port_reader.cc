#include "daemon/watch/port_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/small_files.h"
#include "net/roce/gids.h"

namespace muster::watch {
namespace {

struct KnownCounter {
  Count count;
  const char* path;  // below the port's directory, or the interface's
};

// mlx5; bnxt_re; rxe; the InfiniBand specification's.
constexpr std::array kOfPort = {
    KnownCounter{Count::kRetransmit, "hw_counters/local_ack_timeout_err"},
    KnownCounter{Count::kRetransmit, "hw_counters/packet_seq_err"},
    KnownCounter{Count::kRetransmit, "hw_counters/implied_nak_seq_err"},
    KnownCounter{Count::kRetransmit, "hw_counters/roce_slow_restart"},
    KnownCounter{Count::kRetransmit, "hw_counters/to_retransmits"},
    KnownCounter{Count::kRetransmit, "hw_counters/seq_err_naks_rcvd"},
    KnownCounter{Count::kRetransmit, "hw_counters/rcvd_seq_err"},
    KnownCounter{Count::kRetransmit, "hw_counters/completer_retry_err"},
    KnownCounter{Count::kOutOfSequence, "hw_counters/out_of_sequence"},
    KnownCounter{Count::kOutOfSequence, "hw_counters/oos_drop_count"},
    KnownCounter{Count::kOutOfSequence, "hw_counters/out_of_seq_request"},
    KnownCounter{Count::kReceiverNotReady, "hw_counters/rnr_nak_retry_err"},
    KnownCounter{Count::kReceiverNotReady, "hw_counters/rnr_naks_rcvd"},
    KnownCounter{Count::kReceiverNotReady, "hw_counters/rcvd_rnr_err"},
    KnownCounter{Count::kCnpSent, "hw_counters/np_cnp_sent"},
    KnownCounter{Count::kCnpSent, "hw_counters/tx_cnp_pkts"},
    KnownCounter{Count::kCnpReceived, "hw_counters/rp_cnp_handled"},
    KnownCounter{Count::kCnpReceived, "hw_counters/rx_cnp_pkts"},
    KnownCounter{Count::kLinkErrors, "counters/symbol_error"},
    KnownCounter{Count::kLinkErrors, "counters/link_error_recovery"},
    KnownCounter{Count::kLinkErrors, "counters/local_link_integrity_errors"},
};
constexpr std::array kOfInterface = {KnownCounter{Count::kLinkErrors, "statistics/rx_crc_errors"}};

// What says whether there is a link; "unknown", "NOP" and what no kernel writes do not.
constexpr std::array<std::string_view, 6> kOperstates = {"up",      "down",       "lowerlayerdown",
                                                         "dormant", "notpresent", "testing"};
constexpr std::array<std::string_view, 5> kPortStates = {"ACTIVE", "ACTIVE_DEFER", "ARMED", "DOWN", "INIT"};

constexpr uint32_t kGidsLookedAt = 32;        // of up to 256; drivers fill them from the first
constexpr uint32_t kMostStatistics = 16'384;  // mlx5 with many channels has some thousands
constexpr uint64_t kPausesEvery = 3;  // samples: a driver asks its firmware for all statistics at once

std::optional<uint64_t> WholeNumber(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool Has(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return text.find(part) != std::string::npos; });
}

}  // namespace

PauseColumns FindPauses(const std::vector<std::string>& names) {
  PauseColumns columns;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (!Has(name, {"pause", "pfc_frames", "pfc_ena_frames"}) ||
        Has(name, {"duration", "transition", "storm", "cntrl", "warning", "discard"}))
      continue;
    if (name.starts_with("rx_")) columns.received.push_back(i);
    if (name.starts_with("tx_")) columns.sent.push_back(i);
  }
  return columns;
}

PortReader::PortReader(std::string root, std::vector<roce::Network> networks, std::string interface,
                       std::optional<roce::RdmaPort> rdma)
    : root_(std::move(root)),
      networks_(std::move(networks)),
      interface_(std::move(interface)),
      name_(rdma ? fmt::format("{} port {} ({})", rdma->device, rdma->port, interface_) : interface_) {
  net_.directory = fmt::format("{}/sys/class/net/{}", root_, interface_);
  if (rdma)
    port_ = Place{fmt::format("{}/sys/class/infiniband/{}/ports/{}", root_, rdma->device, rdma->port)};
}

UniqueFd PortReader::OpenFile(const std::string& path) {
  ++calls_;
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::string PortReader::Text(const UniqueFd& file) {
  if (!file.valid()) return "";
  std::array<char, 256> block{};
  ++calls_;
  const ssize_t size = ::pread(file.get(), block.data(), block.size(), 0);
  if (size <= 0) return "";
  const std::string_view text(block.data(), static_cast<size_t>(size));
  return std::string(text.substr(0, text.find_first_of(std::string_view("\n\0", 2))));
}

// A device that came back has another directory; files of the former one are read no more.
bool PortReader::Moved(Place& place, bool* there) {
  struct stat found {};
  ++calls_;
  if (::stat(place.directory.c_str(), &found) != 0) {
    *there = false;
    place.inode = 0;
    return true;
  }
  return std::exchange(place.inode, found.st_ino) != found.st_ino;
}

PortSample PortReader::Read() {
  PortSample sample;
  bool moved = Moved(net_, &sample.there);
  if (port_ && Moved(*port_, &sample.there)) moved = true;
  if (!sample.there) {
    Close();
    return sample;
  }
  if (moved) Open();
  const std::string operstate = Text(operstate_);
  if (std::ranges::count(kOperstates, operstate) > 0) sample.up = operstate == "up";
  sample.state = "operstate " + operstate;
  if (port_) {
    const std::string state = roce::StateName(Text(state_));
    const std::string physical = roce::StateName(Text(phys_state_));
    if (std::ranges::count(kPortStates, state) > 0) {
      sample.up = sample.up.value_or(true) && state == "ACTIVE" && (physical.empty() || physical == "LinkUp");
      sample.state += fmt::format(", port {}, {}", state, physical);
    }
  }
  sample.carrier_changes = WholeNumber(Text(carrier_changes_));
  for (const OpenCounter& counter : counters_) {
    if (const auto value = WholeNumber(Text(counter.file)))
      sample.counters.push_back({counter.count, counter.name, *value});
  }
  ReadPauses(sample);
  if (gid_index_) {
    sample.gid_index = *gid_index_;
    sample.gid = Text(gid_file_);
    if (!sample.gid.empty() && sample.gid != gid_) {
      if (const auto found = FindGid(gid_)) {
        sample.gid_moved_to = found;
      } else if (sample.gid.find_first_not_of("0:") != std::string::npos) {
        gid_ = sample.gid;  // the port's from now on
      }
    }
  }
  return sample;
}

void PortReader::Close() {
  for (UniqueFd* file : {&operstate_, &carrier_changes_, &state_, &phys_state_, &gid_file_, &ethtool_})
    file->reset();
  counters_.clear();
}

void PortReader::Open() {
  Close();
  operstate_ = OpenFile(net_.directory + "/operstate");
  carrier_changes_ = OpenFile(net_.directory + "/carrier_changes");
  const auto open = [this](const std::string& directory, const KnownCounter& known) {
    UniqueFd file = OpenFile(directory + "/" + known.path);
    if (!file.valid()) return;
    const std::string_view path(known.path);
    counters_.push_back({known.count, std::string(path.substr(path.rfind('/') + 1)), std::move(file)});
  };
  for (const KnownCounter& known : kOfInterface) open(net_.directory, known);
  if (port_) {
    for (const KnownCounter& known : kOfPort) open(port_->directory, known);
    state_ = OpenFile(port_->directory + "/state");
    phys_state_ = OpenFile(port_->directory + "/phys_state");
    if (!gid_index_) ChooseGid();
    if (gid_index_) gid_file_ = OpenFile(fmt::format("{}/gids/{}", port_->directory, *gid_index_));
  }
  if (root_.empty()) OpenPauses();
}

// The GID that programs use too, if its address is in the fabric's networks.
void PortReader::ChooseGid() {
  std::vector<roce::Gid> gids;
  std::vector<std::string> lines;
  const auto read = [this](const char* of, int index) {
    return Text(OpenFile(fmt::format("{}/{}/{}", port_->directory, of, index)));
  };
  for (int i = 0; i < static_cast<int>(kGidsLookedAt); ++i) {
    lines.push_back(read("gids", i));
    if (lines.back().empty()) break;
    roce::Gid gid{i, roce::GidAddress(lines.back()), "", ""};
    if (!roce::OfFabric(networks_, gid)) continue;
    gid.type = read("gid_attrs/types", i);
    gid.interface = read("gid_attrs/ndevs", i);
    gids.push_back(std::move(gid));
  }
  const roce::Gid* best = roce::BestGid(gids, networks_, interface_);
  if (best == nullptr) return;
  gid_index_ = best->index;
  gid_ = lines[static_cast<size_t>(best->index)];
}

std::optional<uint32_t> PortReader::FindGid(const std::string& gid) {
  for (uint32_t i = 0; i < kGidsLookedAt; ++i) {
    const std::string found = Text(OpenFile(fmt::format("{}/gids/{}", port_->directory, i)));
    if (found.empty()) return std::nullopt;
    if (found == gid && i != *gid_index_ &&
        Text(OpenFile(fmt::format("{}/gid_attrs/types/{}", port_->directory, i))) == "RoCE v2")
      return i;
  }
  return std::nullopt;
}

// ---- ethtool: questions that need no capability, on a socket of any family

namespace {

bool Ask(int socket, const std::string& interface, void* question) {
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = static_cast<char*>(question);
  return ::ioctl(socket, SIOCETHTOOL, &request) == 0;
}

}  // namespace

void PortReader::OpenPauses() {
  pauses_ = {};
  statistics_ = 0;
  ++calls_;
  ethtool_.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!ethtool_.valid()) return;
  alignas(ethtool_sset_info) std::array<char, sizeof(ethtool_sset_info) + sizeof(uint32_t)> set{};
  ethtool_sset_info info{};
  info.cmd = ETHTOOL_GSSET_INFO;
  info.sset_mask = 1ULL << ETH_SS_STATS;
  std::memcpy(set.data(), &info, sizeof info);
  ++calls_;
  if (!Ask(ethtool_.get(), interface_, set.data())) return;
  std::memcpy(&info, set.data(), sizeof info);
  if (info.sset_mask == 0) return;  // the driver has none
  std::memcpy(&statistics_, set.data() + sizeof info, sizeof statistics_);
  if (statistics_ == 0 || statistics_ > kMostStatistics) return;
  // For more than there are: a driver whose channels are changed meanwhile has more.
  std::vector<char> bytes(sizeof(ethtool_gstrings) + size_t{kMostStatistics} * ETH_GSTRING_LEN);
  ethtool_gstrings head{};
  head.cmd = ETHTOOL_GSTRINGS;
  head.string_set = ETH_SS_STATS;
  head.len = statistics_;
  std::memcpy(bytes.data(), &head, sizeof head);
  ++calls_;
  if (!Ask(ethtool_.get(), interface_, bytes.data())) return;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < statistics_; ++i) {
    const char* name = bytes.data() + sizeof head + size_t{i} * ETH_GSTRING_LEN;
    names.emplace_back(name, ::strnlen(name, ETH_GSTRING_LEN));
  }
  pauses_ = FindPauses(names);
}

void PortReader::ReadPauses(PortSample& sample) {
  if (!ethtool_.valid() || (pauses_.sent.empty() && pauses_.received.empty())) return;
  if (pause_turn_++ % kPausesEvery != 0) return;
  std::vector<uint64_t> words(1 + kMostStatistics);
  static_assert(sizeof(ethtool_stats) == sizeof(uint64_t));
  ethtool_stats head{ETHTOOL_GSTATS, statistics_};
  std::memcpy(words.data(), &head, sizeof head);
  ++calls_;
  if (!Ask(ethtool_.get(), interface_, words.data())) return;
  std::memcpy(&head, words.data(), sizeof head);
  if (head.n_stats != statistics_) return OpenPauses();
  const auto largest = [&](const std::vector<size_t>& columns) {
    uint64_t most = 0;
    for (const size_t column : columns) most = std::max(most, words[1 + column]);
    return most;
  };
  sample.counters.push_back({Count::kPauseSent, "pauses sent", largest(pauses_.sent)});
  sample.counters.push_back({Count::kPauseReceived, "pauses received", largest(pauses_.received)});
}

}  // namespace muster::watch
