#include "daemon/cli/net_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/key_file.h"
#include "base/unique_fd.h"
#include "daemon/cli/net_show.h"
#include "daemon/cli/net_test.h"
#include "daemon/cli/table.h"
#include "net/roce/knobs.h"

namespace muster::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kLookAgain = std::chrono::milliseconds(200);

struct NetOptions {
  std::string settings;
  std::string root;
  std::string interface;
  int wait_seconds = 0;
  std::string device;
  std::string nccl;
  TestWords test;
};

// What --settings says, or else the file that musterd takes: then hosts, gangs and `muster doctor` have the same fabric. A host may have
// no muster.yaml yet.
Result<std::string> SettingsPath(const Common& common, const NetOptions& options) {
  if (!options.settings.empty()) return options.settings;
  if (IsDefaultAndAbsent(common.config_path, Common().config_path)) return std::string(roce::kSettingsPath);
  const auto config = LoadConfig(common.config_path);
  if (!config) return Error{Errc::kInvalid, config.error().message};
  return config->fabric_settings;
}

roce::Host HostOf(const NetOptions& options) {
  roce::Host host = roce::ThisHost();
  host.root = options.root;
  return host;
}

// Whether the interface of the fabric, or an interface below it, has the name: a bond below a VLAN may have no address, and a bond's port
// has none.
bool HasInterface(const roce::Interface& interface, const std::string& name) {
  return interface.name == name || std::ranges::find(interface.parents, name) != interface.parents.end() ||
         std::ranges::find(interface.ports, name, &roce::PhysicalPort::name) != interface.ports.end();
}

// All interfaces of the fabric; with --interface only those that have that interface. An address may come later than its interface.
std::vector<roce::Interface> Chosen(const roce::Host& host, const roce::Settings& settings,
                                    const NetOptions& options) {
  const auto until = Clock::now() + std::chrono::seconds(options.wait_seconds);
  for (;;) {
    auto found = roce::FabricInterfaces(host, settings);
    if (!options.interface.empty())
      std::erase_if(found, [&](const roce::Interface& one) { return !HasInterface(one, options.interface); });
    if (!found.empty() || Clock::now() >= until) return found;
    std::this_thread::sleep_for(kLookAgain);
  }
}

// A lock that this process holds while it sets something on its host. At boot the units of several interfaces begin together, and each sets all ports of
// a bond, but an adapter's firmware answers one program at a time. An ordinary user has no lock, and cannot set anything either.
UniqueFd LockOfSet() {
  UniqueFd lock(::open("/run/muster-net-set.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  while (lock.valid() && ::flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return lock;
}

json KnobJson(const roce::Knob& knob) {
  json entry{{"interface", knob.interface},
             {"driver", knob.driver},
             {"knob", knob.name},
             {"state", Name(knob.state)},
             {"can_set", knob.can_set}};
  const auto put = [&](const char* key, const std::string& value) {
    if (!value.empty()) entry[key] = value;
  };
  put("is", knob.is);
  put("should", knob.should);
  put("via", knob.via);
  put("why", knob.why);
  put("fix", knob.fix);
  return entry;
}

Result<Answered> Look(const NetOptions& options, bool set) {
  const auto settings = roce::LoadSettings(options.settings);
  if (!settings) return settings.error();
  const roce::Host host = HostOf(options);
  json knobs = json::array();
  bool ok = true;
  const auto interfaces = Chosen(host, *settings, options);
  const UniqueFd lock = set && options.root.empty() ? LockOfSet() : UniqueFd();
  for (const roce::Knob& knob : (set ? roce::Set : roce::Check)(host, *settings, interfaces)) {
    ok = ok && knob.state != roce::State::kDiffers;
    knobs.push_back(KnobJson(knob));
  }
  // muster-roce@.service asks with --interface about each interface that comes up: no fault where none of the fabric has it.
  if (interfaces.empty() && options.interface.empty() && !settings->networks.empty()) ok = false;
  return Answered{{{"ok", ok},
                   {"settings", options.settings},
                   {"networks", settings->networks_text},
                   {"traffic_class", settings->TrafficClass()},
                   {"knobs", knobs}},
                  ok ? kGood : kBadFinding};
}

// One line: what is unknown, by its reason; "" where all is known.
std::string UnknownText(const json& knobs) {
  std::map<std::string, std::set<std::string>> by_reason;
  size_t count = 0;
  for (const json& knob : knobs) {
    if (knob.at("state") != Name(roce::State::kUnknown)) continue;
    by_reason[knob.value("why", "")].insert(knob.at("knob"));
    ++count;
  }
  if (count == 0) return "";
  std::vector<std::string> parts;
  parts.reserve(by_reason.size());
  for (const auto& [why, names] : by_reason)
    parts.push_back(fmt::format("{}: {}", fmt::join(names, ", "), why));
  return fmt::format("{} of {} are unknown, which is no finding: {}\n", count, knobs.size(),
                     fmt::join(parts, "; "));
}

std::string NoNetworksText(const json& document) {
  const std::string settings = document.at("settings");
  return settings.empty() ? "fabric_settings in muster.yaml names no file: this host has no fabric\n"
                          : fmt::format("{} names no networks: this host has no fabric\n", settings);
}

std::string KnobsText(const json& document) {
  const json& knobs = document.at("knobs");
  const std::string networks = document.at("networks");
  if (networks.empty()) return NoNetworksText(document);
  if (knobs.empty()) return fmt::format("no interface has an address in {}\n", networks);
  std::vector<Row> rows{{"INTERFACE", "DRIVER", "KNOB", "STATE", "IS", "SHOULD", "BY", "NOTE"}};
  for (const json& knob : knobs) {
    const std::string interface = knob.at("interface");
    const std::string driver = knob.at("driver");
    const std::string why = knob.value("why", "");
    rows.push_back({interface.empty() ? "-" : interface, driver.empty() ? "-" : driver, knob.at("knob"),
                    knob.at("state"), knob.value("is", "-"), knob.value("should", "-"),
                    knob.value("via", "-"), why.empty() ? knob.value("fix", "") : why});
  }
  return Table(rows) + UnknownText(knobs);
}

// What every port of the fabric's switches must have, so that they treat packets as hosts with these settings do.
Result<Answered> ShowSwitches(const NetOptions& options) {
  const auto settings = roce::LoadSettings(options.settings);
  if (!settings) return settings.error();
  json knobs = json::array();
  const auto add = [&](const char* knob, const std::string& should, const std::string& why) {
    knobs.push_back({{"knob", knob}, {"should", should}, {"why", why}});
  };
  if (!settings->networks.empty()) {
    const bool lossless = settings->pfc == "yes";
    const std::string priority = fmt::format("priority {}", settings->priority);
    const std::string notices = fmt::format("priority {}", settings->cnp_priority);
    add("mtu", fmt::format("{} or more", settings->mtu),
        "of IP; a switch that counts header, checksum and a VLAN's tag needs 22 more");
    add("trust", "DSCP", "not the tag of a VLAN");
    add("dscp", fmt::format("{} to {}, {} to {}", settings->dscp, priority, settings->cnp_dscp, notices),
        "RDMA's packets, and notifications of congestion");
    add("pfc", lossless ? priority + " alone" : "none",
        lossless ? "RDMA's packets are not dropped" : "the fabric may drop packets, and nothing pauses");
    add("ecn", settings->ecn_bits == 0 ? "none" : priority,
        settings->ecn_bits == 0 ? "packets have no bits for marks: a switch would drop what it marks"
                                : "packets are marked before a queue is full, and their senders slow down");
    add("strict", notices, "notifications of congestion wait behind nothing");
  }
  return Answered{{{"settings", options.settings},
                   {"networks", settings->networks_text},
                   {"traffic_class", settings->TrafficClass()},
                   {"knobs", knobs}},
                  kGood};
}

std::string SwitchesText(const json& document) {
  const json& knobs = document.at("knobs");
  if (knobs.empty()) return NoNetworksText(document);
  std::vector<Row> rows{{"KNOB", "SHOULD", "WHY"}};
  for (const json& knob : knobs) rows.push_back({knob.at("knob"), knob.at("should"), knob.at("why")});
  return Table(rows);
}

}  // namespace

void AddNetCommand(CLI::App* app, const Common* common, int* result) {
  CLI::App* net = app->add_subcommand("net", "This host's part of a RoCE fabric (roce.yaml)");
  net->fallthrough();
  net->require_subcommand(1);
  const auto options = std::make_shared<NetOptions>();
  net->add_option("--settings", options->settings,
                  "The fabric's settings; fabric_settings in muster.yaml otherwise")
      ->check(CLI::Validator(
          [](const std::string& path) {
            return std::string(path.empty() ? "an empty name is no file; leave --settings out" : "");
          },
          "FILE"));
  net->add_option("--root", options->root, "What /sys is below, as in a copy of another host's");
  net->add_option("--interface", options->interface, "This interface, and those above it, alone");
  net->add_option("--wait", options->wait_seconds, "How many seconds to wait for an address of the fabric")
      ->check(CLI::Range(0, 3'600));
  const auto add = [=](const char* name, const char* about, std::function<void()> run) {
    CLI::App* command = net->add_subcommand(name, about);
    command->fallthrough();
    command->callback([=, run = std::move(run)] {
      auto path = SettingsPath(*common, *options);
      if (!path) {
        *result = Fail(path.error());
        return;
      }
      options->settings = *std::move(path);
      run();
    });
    return command;
  };
  const auto show = [=](const auto& look, std::string (*text)(const json&)) {
    const auto settings = roce::LoadSettings(options->settings);
    if (!settings) return Fail(settings.error());
    const auto answered = look(HostOf(*options), *settings);
    return answered ? Print(*common, *answered, text) : Fail(answered.error());
  };
  const auto show_devices = [options](const roce::Host& host, const roce::Settings& settings) {
    return ShowDevices(host, settings, options->device);
  };
  const auto show_environment = [options](const roce::Host& host, const roce::Settings& settings) {
    return ShowEnvironment(host, settings, options->nccl);
  };
  add("show", "Show RDMA devices, their GIDs, and how far GPUs are", [=] {
    *result = show(show_devices, DevicesText);
  })->add_option("device", options->device, "This device alone, as mlx5_0");
  add("env", "Print what NCCL must be told of this host's fabric", [=] {
    *result = show(show_environment, EnvironmentText);
  })->add_option("--nccl", options->nccl, "The program's version of NCCL, as 2.19.3: old ones need more");
  const auto look = [=](bool set) {
    const auto answered = Look(*options, set);
    *result = answered ? Print(*common, *answered, KnobsText) : Fail(answered.error());
  };
  add("check", "Compare this host's interfaces with the fabric's settings; root sees all of it",
      [=] { look(false); });
  add("set", "Set what differs (root)", [=] { look(true); });
  add("switch", "Print what the ports of the fabric's switches must have, by the same settings", [=] {
    const auto answered = ShowSwitches(*options);
    *result = answered ? Print(*common, *answered, SwitchesText) : Fail(answered.error());
  });
  CLI::App* test = add("test", "Measure between the nodes of a gang, and name the links that are bad", [=] {
    const auto settings = roce::LoadSettings(options->settings);
    const auto run = options->test.nccl ? TestGpus : TestFabric;
    *result = settings ? run(*common, HostOf(*options), *settings, options->test) : Fail(settings.error());
  });
  test->add_flag("--full", options->test.full,
                 "All pairs, and long enough to see one lost packet in a thousand");
  CLI::Option* const nccl = test->add_flag(
      "--nccl", options->test.nccl, "How fast the gang's GPUs exchange by NCCL, with one task for each GPU");
  test->get_option("--full")->excludes(nccl);
  test->add_option("--largest-mib", options->test.largest_mib, "The largest all-reduce of --nccl")
      ->check(CLI::Range(1, 65'536))
      ->needs(nccl)
      ->capture_default_str();
  test->add_option("--wait", options->test.wait_seconds, "How many seconds to wait for the other nodes")
      ->check(CLI::Range(1, 3'600))
      ->capture_default_str();
  net->add_subcommand("settings", "Print the settings, each with its default")->fallthrough()->callback([] {
    std::cout << roce::DefaultSettingsText();
  });
}

}  // namespace muster::cli
