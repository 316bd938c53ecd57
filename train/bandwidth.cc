#include "train/bandwidth.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "net/collectives/cuda_device.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallest = std::size_t{1} << 20U;
constexpr std::size_t kGrowth = 8;
constexpr int kWarmUps = 2;
constexpr int kRepeats = 9;

struct Place {
  int node = 0;
  int in_node = 0;
  std::string host;
};

Result<std::vector<Place>> Meet(const BandwidthOptions& options) {
  const auto deadline = Clock::now() + options.gang.connect_timeout;
  const Result<std::vector<std::string>> given = options.gang.exchange(
      "nccl-test.places", fmt::format("{} {} {}", options.node, options.in_node, options.host), deadline);
  if (!given) return given.error();
  std::vector<Place> places;
  for (const std::string& one : *given) {
    Place& place = places.emplace_back();
    std::istringstream(one) >> place.node >> place.in_node >> place.host;
  }
  return places;
}

std::vector<std::size_t> Sizes(std::size_t largest) {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = std::min(kSmallest, largest); bytes < largest; bytes *= kGrowth)
    sizes.push_back(bytes);
  sizes.push_back(largest);
  return sizes;
}

// The ranks of each group of a kind, and which group each rank is in.
struct Groups {
  std::map<int, std::vector<int>> members;
  std::vector<int> of_rank;
};

Groups GroupsBy(const std::vector<Place>& places, const std::function<int(const Place&)>& key) {
  Groups groups;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const int group = key(places[rank]);
    groups.of_rank.push_back(group);
    groups.members[group].push_back(static_cast<int>(rank));
  }
  return groups;
}

// A group's members meet by the gang's exchange, in which all groups of a kind take part at once.
GroupOptions OptionsOf(const BandwidthOptions& options, const std::string& kind,
                       const std::vector<int>& ranks, const std::vector<Place>& places) {
  GroupOptions group = options.gang;
  group.size = static_cast<int>(ranks.size());
  group.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), options.gang.rank) - ranks.begin());
  const Place& first = places[static_cast<std::size_t>(ranks.front())];
  group.master_addr = first.node == options.node ? "127.0.0.1" : first.host;
  group.exchange = [&options, kind, ranks](const std::string& key, const std::string& value,
                                           Clock::time_point deadline) -> Result<std::vector<std::string>> {
    Result<std::vector<std::string>> all = options.gang.exchange(kind + "." + key, value, deadline);
    if (!all) return all;
    std::vector<std::string> own;
    for (const int rank : ranks) own.push_back(std::move(all->at(static_cast<std::size_t>(rank))));
    return own;
  };
  return group;
}

Result<std::vector<double>> TimesOf(Collectives& group, std::byte* memory,
                                    const std::vector<std::size_t>& sizes) {
  std::vector<double> times;
  for (const std::size_t bytes : sizes) {
    std::vector<double> taken;
    if (Status together = group.Barrier(); !together) return together.error();
    for (int i = -kWarmUps; i < kRepeats; ++i) {
      const auto begun = Clock::now();
      const Numbers numbers(memory, bytes / sizeof(float), DataType::kFloat);
      if (Status done = group.AllReduce(numbers, ReduceOp::kMax); !done) return done.error();
      if (i >= 0) taken.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
    }
    std::nth_element(taken.begin(), taken.begin() + kRepeats / 2, taken.end());
    times.push_back(taken[kRepeats / 2]);
  }
  return times;
}

// What every member of the gang has measured, by rank.
Result<std::vector<std::vector<double>>> TimesOfAll(const BandwidthOptions& options, const std::string& kind,
                                                    const std::vector<double>& own) {
  const Result<std::vector<std::string>> given = options.gang.exchange(
      kind + ".times", fmt::format("{}", fmt::join(own, " ")), Clock::now() + options.gang.operation_timeout);
  if (!given) return given.error();
  std::vector<std::vector<double>> all;
  for (const std::string& one : *given) {
    std::istringstream text(one);
    all.emplace_back(std::istream_iterator<double>(text), std::istream_iterator<double>());
    if (all.back().size() != own.size())
      return Error{Errc::kInvalid, "a member has measured other sizes: the members' options differ"};
  }
  return all;
}

std::string NameOf(const std::string& kind, const Place& first) {
  if (kind == "node") return first.host;
  return kind == "across" ? fmt::format("GPU {}", first.in_node) : std::string();
}

Result<KindBandwidth> MeasureKind(const BandwidthOptions& options, const std::string& kind,
                                  const std::vector<Place>& places, const Groups& groups, std::byte* memory,
                                  const std::vector<std::size_t>& sizes) {
  KindBandwidth found;
  found.kind = kind;
  for (const auto& [key, ranks] : groups.members) {
    if (ranks.size() > 1) continue;
    const Place& alone = places[static_cast<std::size_t>(ranks.front())];
    found.skipped = kind == "across" ? fmt::format("only {} has a GPU {}", alone.host, alone.in_node)
                                     : fmt::format("{} has one GPU", alone.host);
    return found;
  }
  const auto rank = static_cast<std::size_t>(options.gang.rank);
  const std::vector<int>& own = groups.members.at(groups.of_rank[rank]);
  Result<std::unique_ptr<Collectives>> group = MakeCollectives("nccl", OptionsOf(options, kind, own, places));
  if (!group) return group.error();
  const Result<std::vector<double>> times = TimesOf(**group, memory, sizes);
  if (!times) return times.error();
  const Result<std::vector<std::vector<double>>> all = TimesOfAll(options, kind, *times);
  if (!all) return all.error();
  for (const auto& [key, ranks] : groups.members) {
    GroupBandwidth& one = found.groups.emplace_back();
    one.name = NameOf(kind, places[static_cast<std::size_t>(ranks.front())]);
    one.members = static_cast<int>(ranks.size());
    one.microseconds.assign(sizes.size(), 0);
    for (const int member : ranks) {
      const std::vector<double>& took = (*all)[static_cast<std::size_t>(member)];
      for (std::size_t i = 0; i < sizes.size(); ++i)
        one.microseconds[i] = std::max(one.microseconds[i], took[i]);
    }
  }
  return found;
}

std::string SizeText(std::size_t bytes) {
  if (bytes % (std::size_t{1} << 30U) == 0) return fmt::format("{} GiB", bytes >> 30U);
  return bytes % kSmallest == 0 ? fmt::format("{} MiB", bytes >> 20U) : fmt::format("{} bytes", bytes);
}

std::string Heading(const Bandwidth& found, const KindBandwidth& kind) {
  if (kind.kind == "all") return fmt::format("all {} GPUs", found.gpus);
  return kind.kind == "node" ? "the GPUs of a node" : "one GPU of each node";
}

}  // namespace

double BusBandwidth(std::size_t bytes, int members, double microseconds) {
  if (microseconds <= 0) return 0;
  return static_cast<double>(bytes) * 2 * (members - 1) / members / microseconds / 1000;
}

Result<Bandwidth> MeasureBandwidth(const BandwidthOptions& options) {
  // Before the others are met: who has no GPU says so itself.
  const Result<std::unique_ptr<CudaDevice>> device =
      CudaDevice::Open(options.gang.cuda_library, options.gang.device);
  if (!device) return device.error();
  const Result<std::byte*> memory = (*device)->Staging(options.largest);
  if (!memory) return memory.error();
  // What it holds must be numbers.
  if (Status cleared = (*device)->Zero(*memory, options.largest); !cleared) return cleared.error();
  if (Status cleared = (*device)->Wait(); !cleared) return cleared.error();

  const Result<std::vector<Place>> places = Meet(options);
  if (!places) return places.error();
  Bandwidth found;
  found.bytes = Sizes(options.largest);
  found.gpus = static_cast<int>(places->size());
  const Groups all = GroupsBy(*places, [](const Place&) { return 0; });
  const Groups nodes = GroupsBy(*places, [](const Place& place) { return place.node; });
  const Groups across = GroupsBy(*places, [](const Place& place) { return place.in_node; });
  found.nodes = static_cast<int>(nodes.members.size());
  for (const auto& [kind, groups] : {std::pair{"all", &all}, {"node", &nodes}, {"across", &across}}) {
    Result<KindBandwidth> one = MeasureKind(options, kind, *places, *groups, *memory, found.bytes);
    if (!one) return one.error();
    found.kinds.push_back(*std::move(one));
  }
  return found;
}

std::string BandwidthText(const Bandwidth& found, double link) {
  std::string text = fmt::format("{} GPUs on {} node{}; bus bandwidth in GB/s", found.gpus, found.nodes,
                                 found.nodes == 1 ? "" : "s");
  text += link > 0 ? fmt::format(", where a link carries {:.1f}\n", link) : "\n";
  text += fmt::format("{:<24}", "");
  for (const std::size_t bytes : found.bytes) text += fmt::format("{:>10}", SizeText(bytes));
  text += "\n";
  for (const KindBandwidth& kind : found.kinds) {
    text += fmt::format("{:<24}", Heading(found, kind));
    if (!kind.skipped.empty()) {
      text += fmt::format("not measured: {}\n", kind.skipped);
      continue;
    }
    // Of several groups the slowest, and at the largest size which that is.
    for (std::size_t i = 0; i < found.bytes.size(); ++i) {
      double least = 0;
      for (const GroupBandwidth& group : kind.groups) {
        const double has = BusBandwidth(found.bytes[i], group.members, group.microseconds[i]);
        least = &group == &kind.groups.front() ? has : std::min(least, has);
      }
      text += fmt::format("{:>10.1f}", least);
    }
    if (kind.groups.size() > 1) {
      const auto slowest =
          std::max_element(kind.groups.begin(), kind.groups.end(), [](const auto& one, const auto& other) {
            return one.microseconds.back() < other.microseconds.back();
          });
      text += fmt::format("  slowest: {}", slowest->name);
    }
    text += "\n";
  }
  return text;
}

std::string BandwidthJson(const Bandwidth& found, double link) {
  using nlohmann::json;
  json kinds = json::array();
  for (const KindBandwidth& kind : found.kinds) {
    json groups = json::array();
    for (const GroupBandwidth& group : kind.groups) {
      json sizes = json::array();
      for (std::size_t i = 0; i < found.bytes.size(); ++i) {
        sizes.push_back({{"bytes", found.bytes[i]},
                         {"microseconds", group.microseconds[i]},
                         {"bus_gb_s", BusBandwidth(found.bytes[i], group.members, group.microseconds[i])}});
      }
      groups.push_back({{"name", group.name}, {"members", group.members}, {"sizes", sizes}});
    }
    json one{{"kind", kind.kind}, {"groups", groups}};
    if (!kind.skipped.empty()) one["skipped"] = kind.skipped;
    kinds.push_back(one);
  }
  json document{{"gpus", found.gpus}, {"nodes", found.nodes}, {"kinds", kinds}};
  if (link > 0) document["link_gb_s"] = link;
  return document.dump() + "\n";
}

}  // namespace muster::train
