// musterd: the node daemon.
#include <fmt/format.h>
#include <pwd.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <thread>

#include "base/backtrace.h"
#include "base/helper_program.h"
#include "ceph/engine/engine.h"
#include "ceph/store/cluster_store.h"
#include "ceph/store/store.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/fabric_environment.h"
#include "daemon/agent/memory_grants.h"
#include "daemon/beat/beat.h"
#include "daemon/beat/locked_memory.h"
#include "daemon/config/config.h"
#include "daemon/health/kernel_log.h"
#include "daemon/metrics/metrics_file.h"
#include "daemon/metrics/metrics_port.h"
#include "daemon/metrics/metrics_text.h"
#include "daemon/partner/tier.h"
#include "daemon/rpc/grpc_link.h"
#include "daemon/service/checkpoint_exchange.h"
#include "daemon/service/cluster_name.h"
#include "daemon/service/coordinators.h"
#include "daemon/service/queries.h"
#include "daemon/slurm/slurm.h"
#include "daemon/slurm/topology.h"
#include "daemon/watch/fabric_watch.h"

namespace muster {
namespace {

constexpr char kDefaultConfig[] = "/etc/muster/muster.yaml";
// Beats have long said by then that a host is dead.
constexpr int64_t kSilencesOfALink = 3;
constexpr int64_t kLeastLinkMs = 20'000;

// journald reads a "<N>" prefix as the priority; a terminal gets the time instead.
void SetUpLog(const std::string& level) {
  auto logger = spdlog::stderr_logger_mt("musterd");
  logger->set_pattern(::getenv("JOURNAL_STREAM") != nullptr ? "%v" : "%Y-%m-%d %H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(logger);
}

std::string NodeName(const Config& config) {
  if (!config.node_name.empty()) return config.node_name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string full(name.data());
  return full.substr(0, full.find('.'));
}

// Opens the store and reads from it, whatever is there.
Status CheckStore(const Config& config) {
  constexpr int kSeconds = 10;
  const auto store = OpenStore({config.store, config.ceph_conf, config.ceph_user, kSeconds});
  if (!store) return store.error();
  const auto head = (*store)->ReadHead({"u0", "check"});
  if (!head && head.error().code != Errc::kNotFound) return head.error();
  return {};
}

Result<uint32_t> UidOf(const std::string& user) {
  const passwd* entry = ::getpwnam(user.c_str());
  if (entry == nullptr)
    return Error{Errc::kInvalid, fmt::format("service_user: there is no user '{}'", user)};
  return entry->pw_uid;
}

// Calls `stop` on SIGTERM and SIGINT. The signals must be blocked in all threads.
UniqueFd WatchSignals(Loop& loop, std::function<void(int)> stop) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  loop.Watch(fd.get(), EPOLLIN, [raw = fd.get(), stop = std::move(stop)](uint32_t) {
    signalfd_siginfo info{};
    if (::read(raw, &info, sizeof info) == sizeof info) stop(static_cast<int>(info.ssi_signo));
  });
  return fd;
}

void BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

// systemd's watchdog: told from the loop's own thread, so that a stuck loop is seen.
void FeedWatchdog(Loop& loop, std::chrono::milliseconds every) {
  loop.After(every, [&loop, every] {
    ::sd_notify(0, "WATCHDOG=1");
    FeedWatchdog(loop, every);
  });
}

// Beats stop when the loop does: a daemon that does not act must not look alive.
void ShowLife(Loop& loop, Beat& beat, std::chrono::milliseconds every) {
  beat.LoopAlive();
  loop.AfterPeriod(every, [&loop, &beat, every] { ShowLife(loop, beat, every); });
}

lease::Times TimesOf(const Config& config) {
  lease::Times times;
  times.beat = config.beat_ms * lease::kMillisecond;
  times.lease = config.lease_ms * lease::kMillisecond;
  times.silence = config.silence_ms * lease::kMillisecond;
  times.reconnect = config.reconnect_ms * lease::kMillisecond;
  return times;
}

SlurmOptions SlurmOptionsOf(const Config& config) {
  SlurmOptions options;
  options.helper = config.slurm_helper;
  options.timeout = std::chrono::milliseconds(config.slurm_timeout_ms);
  options.requeue_timeout = std::chrono::milliseconds(config.slurm_requeue_timeout_ms);
  options.node_downs_per_minute = static_cast<int>(config.slurm_node_downs_per_minute);
  options.requeue_dir = config.state_dir + "/requeues";
  return options;
}

// Ends this process within seconds, whatever its threads wait for: a store or a Slurm that does not answer, questions that nobody
// will answer. What is cut short is as after a SIGKILL. Members are left alone first: while this process has their
// supervisors' connections they count on its beats.
class QuickEnd {
 public:
  explicit QuickEnd(Agent& agent) : agent_(agent) {}
  ~QuickEnd() {
    std::thread([code = code] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      ::_exit(code);
    }).detach();
    agent_.Close();
  }
  QuickEnd(const QuickEnd&) = delete;
  QuickEnd& operator=(const QuickEnd&) = delete;
  int code = 1;

 private:
  Agent& agent_;
};

// A port that users' programs may take would be lost to the first that waits for a restart of musterd.
void WarnOfOpenPorts(const Config& config) {
  int64_t first = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first;
  for (const int64_t port :
       {config.port, config.partner_memory > 0 ? config.partner_port : 0, config.metrics_port}) {
    if (port < first) continue;
    spdlog::warn(
        "users' programs may take port {} while musterd restarts: give musterd a port below {} "
        "(net.ipv4.ip_unprivileged_port_start)",
        port, std::min<int64_t>(first, 1024));
  }
}

std::optional<FabricMetrics> FabricMetricsOf(const watch::FabricWatch& fabric) {
  const auto figures = fabric.figures();
  if (!figures) return std::nullopt;
  FabricMetrics metrics{figures->up, figures->down, figures->links_lost, {}};
  for (size_t i = 0; i < watch::kCounts; ++i)
    metrics.counts.emplace_back(watch::ToString(static_cast<watch::Count>(i)), figures->totals[i]);
  return metrics;
}

int Fail(const std::string& message) {
  spdlog::error("{}", message);
  ::sd_notifyf(0, "STATUS=%s", message.c_str());
  return 1;
}

int Run(const Config& config) {
  const std::string self = NodeName(config);
  auto service_uid = UidOf(config.service_user);
  if (!service_uid) return Fail(service_uid.error().message);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(config.socket).parent_path(), error);
  std::filesystem::create_directories(config.state_dir, error);
  if (error) return Fail(fmt::format("cannot make {}: {}", config.state_dir, error.message()));

  // The members of a musterd that is started while Ceph is down wait for musterd, not for Ceph.
  const auto late = [said = std::make_shared<std::string>()](const Status& status) {
    if (status) {
      said->clear();
      return spdlog::info("the store answers now");
    }
    if (*said == status.error().message) return;
    *said = status.error().message;
    spdlog::warn("{}; musterd goes on without it, and tries again", *said);
  };
  auto opened = OpenStore({config.store, config.ceph_conf, config.ceph_user,
                           static_cast<int>(config.store_timeout_ms / 1000), late});
  if (!opened) return Fail(opened.error().message);
  const auto of_cluster = std::make_shared<ClusterStore>(*std::move(opened));
  const std::shared_ptr<Store> store = of_cluster;

  WarnOfOpenPorts(config);
  Loop loop;
  EngineOptions engine_options;
  engine_options.chunk_bytes = static_cast<uint64_t>(config.chunk_bytes);
  engine_options.compress = config.compression == "auto";
  Engine engine(store, engine_options);
  Worker reader;
  Worker records;
  Worker dialer;
  Worker sampler;
  const auto chores = std::make_shared<Worker>();
  NodeHealth health(loop, HealthOptionsOf(config));
  KernelLog kernel_log(loop);
  kernel_log.Open(config.kernel_log);
  Slurm slurm(loop, SlurmOptionsOf(config));
  slurm.ResumeRequeues();
  ClusterName cluster(loop, slurm, config.cluster, config.state_dir + "/cluster",
                      [&of_cluster](const std::string& name) { of_cluster->SetCluster(name); });
  BeatOptions beat_options;
  beat_options.times = TimesOf(config);
  beat_options.listen_address = config.listen_address;
  beat_options.port = static_cast<uint16_t>(config.port);
  beat_options.loop_stall_ms = config.loop_stall_ms;
  beat_options.stalled = TraceMainThread();
  beat_options.state_path = config.state_dir + "/beats";
  beat_options.mailbox = loop.mailbox();
  auto beat = Beat::Start(std::move(beat_options));
  if (!beat) return Fail(beat.error().message);
  ShowLife(loop, **beat, std::chrono::milliseconds(std::min<int64_t>(config.loop_stall_ms / 2, 1'000)));
  // Leases hang on their reader: it reads nothing else.
  const auto topology = std::make_shared<TopologyFile>(config.slurm_topology);
  Coordinators coordinators({loop, config, self, store, &records, beat->get(), &slurm, topology});
  const auto take_over = [&coordinators](const GangJob& job, TakeOverRequest request) {
    coordinators.TakeOver(job, std::move(request));
  };
  const auto read_coordinator =
      [&coordinators](const GangJob& job, std::function<void(std::optional<RecordedCoordinator>)> done) {
        coordinators.ReadCoordinator(job, std::move(done));
      };
  CheckpointExchange exchange(loop, config, store, engine);
  auto tier = PartnerTier::Start(config, self, *service_uid, topology);
  if (!tier) spdlog::warn("no partner copies: {}", tier.error().message);
  const std::unique_ptr<PartnerTier> partners = tier ? *std::move(tier) : nullptr;
  FabricEnvironment fabric_environment(config.fabric_settings);
  Agent* watched = nullptr;
  watch::FabricWatch fabric(
      loop, {config.fabric_settings}, [&watched] { return watched != nullptr && !watched->gangs().empty(); },
      [&watched](const std::vector<std::string>& news, const std::string& sick) {
        if (watched != nullptr) watched->FabricSaid(news, sick);
      });
  Agent agent(AgentContext{loop,
                           config,
                           self,
                           HelperProgram("muster-door"),
                           store,
                           engine,
                           reader,
                           dialer,
                           sampler,
                           chores,
                           health,
                           OpenLink,
                           beat->get(),
                           &kernel_log,
                           take_over,
                           read_coordinator,
                           &slurm,
                           &exchange,
                           partners.get(),
                           &fabric_environment,
                           std::make_shared<MemoryGrants>(static_cast<uint64_t>(config.health_memory_min)),
                           &fabric});
  watched = &agent;
  coordinators.SetAgent([&agent](const GangJob& gang) { return agent.CoordinatorOf(gang); },
                        [&agent](const GangJob& gang) { agent.CoordinatedHere(gang); });
  Queries queries(loop, config, self, store, engine, coordinators, agent, slurm);

  const UniqueFd signals = WatchSignals(loop, [&loop](int signal) {
    spdlog::info("SIG{}: stopping; running gangs go on and are found again at the next start",
                 sigabbrev_np(signal));
    ::sd_notify(0, "STOPPING=1");
    loop.Stop();
  });
  auto server = Server::Start(
      {fmt::format("{}:{}", config.listen_address, config.port), self, *service_uid,
       std::chrono::milliseconds(kLeastLinkMs + kSilencesOfALink * config.silence_ms)},
      [&](std::shared_ptr<Link> link) { return coordinators.Accept(std::move(link)); },
      [&](AskedBy who, std::string question, std::function<void(std::string)> reply) {
        queries.Ask(who, std::move(question), std::move(reply));
      });
  if (!server) return Fail(server.error().message);
  const auto figures = [&] {
    std::vector<GangMetrics> gangs;
    for (const auto& [gang, coordinator] : coordinators.gangs()) gangs.push_back(coordinator->Metrics());
    const auto work = [](const StoreUse& use) {
      return StoreWork{use.operations, std::chrono::duration<double>(use.took).count(), use.bytes};
    };
    return MetricsText({MUSTER_VERSION, agent.gangs().size(), gangs.size(), health.healthy(),
                        work(engine.writes()), work(engine.reads()), FabricMetricsOf(fabric),
                        std::chrono::duration<double>(loop.longest_turn()).count()},
                       gangs);
  };
  const MetricsFile metrics_file(loop, config.metrics_file, figures);
  std::unique_ptr<MetricsPort> metrics_port;
  if (config.metrics_port > 0) {
    auto started = MetricsPort::Start(
        loop, {config.metrics_address, static_cast<uint16_t>(config.metrics_port)}, figures);
    if (!started) spdlog::warn("no figures by HTTP: {}", started.error().message);
    if (started) metrics_port = *std::move(started);
  }
  QuickEnd end(agent);
  if (Status started = agent.Start(); !started) return Fail(started.error().message);
  DropStartCode();
  if (Status locked = LockMemory(); !locked) spdlog::warn("{}", locked.error().message);

  spdlog::info("musterd on {}: socket {}, port {}, store {}", self, config.socket, config.port,
               store->Describe());
  ::sd_notifyf(0, "READY=1\nSTATUS=store %s", store->Describe().c_str());
  uint64_t watchdog_us = 0;
  if (::sd_watchdog_enabled(0, &watchdog_us) > 0)
    FeedWatchdog(loop, std::chrono::milliseconds(watchdog_us / 2000));
  loop.Run();
  end.code = 0;
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  CLI::App app{"musterd: Muster's node daemon"};
  std::string path = muster::kDefaultConfig;
  bool check = false;
  bool check_store = false;
  bool print = false;
  app.add_option("--config", path, "Configuration file")->capture_default_str();
  app.add_flag("--check-config", check, "Check the configuration and exit");
  app.add_flag("--check-store", check_store, "Open the store, read from it and exit");
  app.add_flag("--print-default-config", print,
               "Print a commented configuration with every default and exit");
  app.set_version_flag("--version", MUSTER_VERSION);
  CLI11_PARSE(app, argc, argv);
  if (print) {
    std::cout << muster::DefaultConfigText();
    return 0;
  }
  const auto config = muster::LoadConfig(path);
  if (!config) {
    std::cerr << "musterd: " << config.error().message << "\n";
    return 2;
  }
  if (check) {
    std::cout << path << ": good\n";
    return 0;
  }
  if (check_store) {
    const muster::Status good = muster::CheckStore(*config);
    std::cout << (good ? config->store + ": good" : good.error().message) << std::endl;
    ::_exit(good ? 0 : 1);  // a client of Ceph's that cannot connect may take long to end
  }
  muster::BlockSignals();
  muster::TraceCrashes("musterd");
  muster::SetUpLog(config->log_level);
  try {
    const int code = muster::Run(*config);
    // Not what static objects do at the end: threads of libraries may still call them.
    ::_exit(code);
  } catch (const std::exception& e) {
    return muster::Fail(e.what());
  }
}
