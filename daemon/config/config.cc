#include "daemon/config/config.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/key_file.h"
#include "daemon/gang/cause.h"

namespace muster {
namespace {

const char* IsStore(const std::string& text) {
  const bool good = (text.starts_with("rados:") && text != "rados:") || text.starts_with("dir:/");
  return good ? nullptr : "give rados:POOL or dir:/PATH";
}
const char* IsLevel(const std::string& text) {
  const bool good = text == "debug" || text == "info" || text == "warning" || text == "error";
  return good ? nullptr : "give debug, info, warning or error";
}
const char* AreNics(const std::string& text) {
  const bool good = EachPart(text, [](const std::string& name) {
    return name.size() <= 63 && name.front() != '.' && name.find('/') == std::string::npos;
  });
  return good ? nullptr : "give names between commas, as in mlx5_0, eth0";
}
const char* ArePaths(const std::string& text) {
  const bool good = EachPart(text, [](const std::string& path) { return path.starts_with("/"); });
  return good ? nullptr : "give absolute paths between commas";
}
const char* AreExitCodes(const std::string& text) {
  return gang::ParseExitCodes(text)
             ? nullptr
             : "give CODE=CLASS between commas, each CODE from 1 to 255 and once, CLASS user, "
               "infrastructure, preemption or time_limit";
}
const char* IsAddress(const std::string& text) {
  std::array<char, sizeof(in6_addr)> unused{};
  const bool good = ::inet_pton(AF_INET, text.c_str(), unused.data()) == 1 ||
                    ::inet_pton(AF_INET6, text.c_str(), unused.data()) == 1;
  return good ? nullptr : "give an address, as in 127.0.0.1, or ::1";
}
const char* IsNoOrAuto(const std::string& text) {
  return text == "no" || text == "auto" ? nullptr : "give no or auto";
}
std::vector<Key> Keys(Config& config) {
  return {
      TextKey("store", &config.store,
              "Where gang records and checkpoints live: rados:POOL, or dir:/PATH (shared by all nodes).",
              IsStore),
      TextKey("ceph_conf", &config.ceph_conf, "Ceph's configuration file, for a rados: store."),
      TextKey("ceph_user", &config.ceph_user, "The Ceph user, without \"client.\"."),
      NumberKey("store_timeout", KeyKind::kDuration, &config.store_timeout_ms, 1'000, 600'000,
                "How long one operation of the store may take."),
      TextKey("socket", &config.socket, "The local socket for supervisors and libmuster.", IsPath),
      TextKey("state_dir", &config.state_dir,
              "What a restarted musterd must know of running gangs; on a tmpfs.", IsPath),
      TextKey("listen_address", &config.listen_address,
              "Address on which other nodes' daemons reach this one."),
      NumberKey("port", KeyKind::kCount, &config.port, 1, 65'535,
                "Port between daemons, TCP and UDP; the same on all nodes. Below 1024 no user's program can "
                "take it while musterd restarts."),
      TextKey("servers", &config.servers,
              "Nodes that `muster` asks on a host without musterd, as on a login host, in this order, as in "
              "\"n1, n2\"; empty: "
              "those of the user's jobs, then any that Slurm has.",
              Anything),
      TextKey("cluster", &config.cluster,
              "The name by which this cluster's checkpoints and records are told from those of others in the "
              "same store, the same on all nodes; empty: Slurm's ClusterName.",
              Anything),
      TextKey("node_name", &config.node_name,
              "This node's Slurm NodeName; empty: the host's name up to the first dot.", Anything),
      TextKey("service_user", &config.service_user, "The user besides root whose daemons are trusted."),
      NumberKey("master_ports_first", KeyKind::kCount, &config.master_ports_first, 1'024, 65'535,
                "First port leased as MASTER_PORT; outside the kernel's ip_local_port_range."),
      NumberKey("master_ports_last", KeyKind::kCount, &config.master_ports_last, 1'024, 65'535,
                "Last such port."),
      NumberKey("keep_checkpoints", KeyKind::kCount, &config.keep_checkpoints, 1, 1'000'000,
                "The newest good checkpoints that are kept of each gang."),
      NumberKey("keep_every", KeyKind::kCount, &config.keep_every, 0, 1'000'000'000,
                "Good checkpoints whose step is a multiple of this are kept too, for ever; 0: none."),
      NumberKey(
          "user_storage_limit", KeyKind::kSize, &config.user_storage_limit, 0, 1LL << 60,
          "What the checkpoints of one user may take of the store; a save that could go above it fails. "
          "The one that is being saved, and the one that a generation has started from, count beside those "
          "that are kept. 0: no limit."),
      TextKey("incremental", &config.incremental,
              "Whether a checkpoint shares the chunks that have not changed with the one before; not with "
              "keep_checkpoints of 1.",
              IsYesOrNo),
      TextKey(
          "compression", &config.compression,
          "Whether checkpoints are compressed: no, or auto, which does it where samples say that it pays. "
          "Floats become a sixth to a third less, for one to two seconds of a core for each GB.",
          IsNoOrAuto),
      NumberKey(
          "recovery_memory", KeyKind::kCount, &config.recovery_memory, 0, 90,
          "How much of the node's memory, in percent, shards may keep that a program has saved before it "
          "died, so "
          "that it is restored from there; 0: always from the store."),
      NumberKey(
          "partner_memory", KeyKind::kCount, &config.partner_memory, 0, 90,
          "How much of the node's memory, in percent, copies of other nodes' newest shards may take, so that "
          "a node that takes a lost one's place is restored from there. They take as much as the "
          "node's own shards; a tenth of the memory stays free all the same. 0: no copies are kept, nor "
          "made; "
          "the same on all nodes."),
      NumberKey(
          "partner_group", KeyKind::kCount, &config.partner_group, 0, 8,
          "From 3 on, groups of so many nodes keep parity of each other's shards in place of whole copies: "
          "3 take half the memory, 4 a third, and so on, and one of each group can be lost. Groups that do "
          "not come out even have up to twice as many nodes. 0: whole copies; the same on all nodes."),
      NumberKey("partner_port", KeyKind::kCount, &config.partner_port, 1, 65'535,
                "TCP port for these copies, the same on all nodes."),
      TextKey(
          "slurm_topology", &config.slurm_topology,
          "A topology.conf or topology.yaml of Slurm's, the same on all nodes: a partner is below another "
          "leaf switch, or of another block, and with --gang=order=topology ranks follow its switches. "
          "Empty: Slurm's own, if there is one.",
          IsPathOrNothing),
      NumberKey(
          "collect_pause", KeyKind::kDuration, &config.collect_pause_ms, 0, 86'400'000,
          "How long at least between two searches, which list the pool, for what a gang's torn saves have "
          "left."),
      NumberKey("chunk_size", KeyKind::kSize, &config.chunk_bytes, 64 << 10, 64 << 20,
                "Size of a checkpoint's objects in the store."),
      NumberKey(
          "max_shard_size", KeyKind::kSize, &config.max_shard_bytes, 1 << 20, 1LL << 42,
          "The largest shard one member may save. It has at most 400000 chunks besides: with a chunk_size of "
          "64KiB 24.4 GiB, of 4MiB 1.5 TiB."),
      NumberKey("reconnect", KeyKind::kDuration, &config.reconnect_ms, 1'000, 3'600'000,
                "How long members run on without musterd, and a gang waits for a node's musterd."),
      NumberKey(
          "unkillable_after", KeyKind::kDuration, &config.unkillable_after_ms, 1'000, 3'600'000,
          "A process that SIGKILL has ended counts as stuck in the kernel when nothing of it has gone for so "
          "long, or after five times as long; then the gang leaves its node, and drains it in Slurm."),
      NumberKey(
          "stranded_after", KeyKind::kDuration, &config.stranded_after_ms, 1'000, 86'400'000,
          "How long a new coordinator waits for nodes when too few are left to tell whether the others are "
          "dead; then the job is requeued, or ends. At least reconnect and twice silence."),
      NumberKey("progress_after", KeyKind::kDuration, &config.progress_after_ms, 100, 86'400'000,
                "A generation that has run so long counts as progress when the program reports none."),
      NumberKey("forgive_after", KeyKind::kDuration, &config.forgive_after_ms, 0, 31'536'000'000,
                "A fault of the program's own counts against --gang=restarts=N for so long, and until there "
                "was progress since. 0: for ever."),
      NumberKey(
          "beat", KeyKind::kDuration, &config.beat_ms, 10, 60'000,
          "How often a node shows its life to a gang's coordinator; the same on all nodes, as lease and "
          "silence."),
      NumberKey(
          "lease", KeyKind::kDuration, &config.lease_ms, 50, 600'000,
          "A node kills its members so long after the last beat that was answered; a supervisor kills its "
          "program when it hears nothing from a connected musterd for so long. More than two beats."),
      NumberKey("silence", KeyKind::kDuration, &config.silence_ms, 100, 600'000,
                "A node that was not heard for so long is replaced. At least lease and two beats."),
      NumberKey(
          "hang_report", KeyKind::kDuration, &config.hang_report_ms, 100, 60'000,
          "How long the restart of a gang that hangs waits for its members' stacks at most; the same on "
          "all nodes."),
      NumberKey("loop_stall", KeyKind::kDuration, &config.loop_stall_ms, 1'000, 600'000,
                "A musterd that does not act for so long stops beating: its node counts as lost."),
      NumberKey("preflight_age", KeyKind::kDuration, &config.preflight_age_ms, 0, 86'400'000,
                "Links that have been found good so long ago, between the same nodes for the same user, are "
                "not tested again (--gang=preflight)."),
      TextKey("fabric_settings", &config.fabric_settings,
              "The RoCE fabric's settings, roce.yaml(5), for musterd, `muster net` and `muster doctor`: "
              "where they "
              "name networks, members are told what NCCL needs. Empty: this host has no fabric.",
              IsPathOrNothing),
      TextKey("metrics_file", &config.metrics_file,
              "Figures for Prometheus, in the directory of node exporter's textfile collector; where that is "
              "missing nothing is written. Empty: none.",
              IsPathOrNothing),
      NumberKey(
          "metrics_port", KeyKind::kCount, &config.metrics_port, 0, 65'535,
          "TCP port on which Prometheus can ask for the same figures by HTTP, at /metrics. Who reaches it "
          "may read them. 0: none."),
      TextKey("metrics_address", &config.metrics_address,
              "This host's address for that port; 0.0.0.0: all of IPv4.", IsAddress),
      TextKey("slurm_helper", &config.slurm_helper,
              "The program muster-slurm, which speaks to slurmctld; empty: where it is installed.",
              IsPathOrNothing),
      NumberKey("slurm_timeout", KeyKind::kDuration, &config.slurm_timeout_ms, 100, 600'000,
                "How long one question to Slurm may take."),
      NumberKey(
          "slurm_requeue_timeout", KeyKind::kDuration, &config.slurm_requeue_timeout_ms, 1'000, 86'400'000,
          "How long a requeued job may take until Slurm has cleaned up its last run, epilogs included."),
      NumberKey("slurm_node_downs_per_minute", KeyKind::kCount, &config.slurm_node_downs_per_minute, 0, 1'000,
                "How many lost nodes this daemon sets DOWN in Slurm; the others wait for SlurmdTimeout."),
      NumberKey("time_limit_margin", KeyKind::kDuration, &config.time_limit_margin_ms, 0, 86'400'000,
                "How long before its time limit a job is asked for a checkpoint and requeued; 0: never."),
      TextKey("enabled", &config.enabled,
              "No: --gang is ignored, and jobs run as plain Slurm jobs. The same on all nodes.", IsYesOrNo),
      TextKey("exit_codes", &config.exit_codes,
              "What programs' exit codes mean here, as in \"75=infrastructure, 143=preemption\": user, "
              "infrastructure, preemption or time_limit; 128 + N is a death by signal N. The others: the "
              "program's own fault.",
              AreExitCodes),
      NumberKey(
          "health_timeout", KeyKind::kDuration, &config.health_timeout_ms, 0, 600'000,
          "How long a check of the node's health may take; what hangs longer makes the node sick. 0: no "
          "checks."),
      TextKey("health_nics", &config.health_nics,
              "RDMA devices or network interfaces that must be up for a node to be healthy, as in \"mlx5_0, "
              "eth0\".",
              AreNics),
      TextKey(
          "health_disks", &config.health_disks,
          "Directories whose file systems must be writable, as in \"/tmp, /scratch\"; one without room is a "
          "warning.",
          ArePaths),
      NumberKey("health_memory_min", KeyKind::kSize, &config.health_memory_min, 0, 1LL << 42,
                "A node with less memory available is sick."),
      NumberKey("health_disk_free", KeyKind::kCount, &config.health_disk_free, 0, 50,
                "A file system with less free, in percent of bytes and of inodes, has no room."),
      NumberKey(
          "memlock_limit", KeyKind::kSize, &config.memlock_limit, 0, 1LL << 60,
          "How much memory slurmd, and with it jobs, and musterd must be allowed to lock: `muster doctor` "
          "names "
          "a lower limit. 0: all of it, as RDMA needs; in containers, which cannot raise theirs, what "
          "they have."),
      TextKey("nvml_library", &config.nvml_library,
              "NVIDIA's management library, for the GPUs' health; not there or empty: they are not checked.",
              Anything),
      TextKey(
          "kernel_log", &config.kernel_log,
          "Where the kernel's log is read, to join GPU, link, memory and disk errors with faults; empty: it "
          "is not.",
          IsPathOrNothing),
      TextKey("log_level", &config.log_level, "What is logged: debug, info, warning or error.", IsLevel),
  };
}

}  // namespace

Result<Config> ParseConfig(const std::string& text, const std::string& name) {
  Config config;
  const auto given = ParseKeys(text, name, Keys(config));
  if (!given) return given.error();
  // Where the last of these keys is.
  const auto at = [&](std::initializer_list<const char*> names) {
    int last = 1;
    for (const char* key : names) {
      if (const auto found = given->find(key); found != given->end()) last = std::max(last, found->second);
    }
    return fmt::format("{}:{}", name, last);
  };
  if (2 * config.beat_ms >= config.lease_ms || config.lease_ms + 2 * config.beat_ms > config.silence_ms) {
    return Error{
        Errc::kInvalid,
        fmt::format("{}: beat {}, lease {} and silence {} do not go together: lease must be more than two "
                    "beats, silence at least lease and two beats",
                    at({"beat", "lease", "silence"}), ShowNumber(KeyKind::kDuration, config.beat_ms),
                    ShowNumber(KeyKind::kDuration, config.lease_ms),
                    ShowNumber(KeyKind::kDuration, config.silence_ms))};
  }
  if (config.partner_group == 1 || config.partner_group == 2) {
    return Error{Errc::kInvalid,
                 fmt::format("{}: partner_group {} makes no groups: give 0 for whole copies, or from 3 on",
                             at({"partner_group"}), config.partner_group)};
  }
  if (config.master_ports_first > config.master_ports_last) {
    return Error{Errc::kInvalid, fmt::format("{}: master_ports_first, {}, is above master_ports_last, {}",
                                             at({"master_ports_first", "master_ports_last"}),
                                             config.master_ports_first, config.master_ports_last)};
  }
  return config;
}

uint64_t LargestShard(const Config& config) {
  return static_cast<uint64_t>(std::min(config.max_shard_bytes, config.chunk_bytes * kMaxShardChunks));
}

Result<Config> LoadConfig(const std::string& path) {
  const auto text = ReadKeyFile(path);
  if (!text) return text.error();
  return ParseConfig(*text, path);
}

std::string DefaultConfigText() {
  Config defaults;
  return "# Muster's configuration, the same on all nodes of a cluster. Every key is shown with its "
         "default.\n"
         "# Check a changed file with: musterd --check-config --config FILE\n" +
         KeysText(Keys(defaults));
}

}  // namespace muster
