// What Muster needs: its configuration, MUNGE, musterd, the store; room on disks, and the node's health.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/run_program.h"
#include "daemon/auth/munge.h"
#include "daemon/cli/doctor_checks.h"
#include "daemon/cli/musterd_session.h"
#include "daemon/cli/plugstack.h"
#include "daemon/health/findings.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/rpc/ask_daemon.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kAskSeconds = 15;
constexpr auto kStoreLimit = std::chrono::seconds(25);
constexpr char kDirectory[] = "dir:";

// A path as musterd sees it, whose unit shows it the file system in its own way; root alone may look.
std::string AsMusterdSees(const Host& host, const std::string& path) {
  const int pid = host.unit("musterd").pid;
  return host.root && pid > 0 ? fmt::format("/proc/{}/root{}", pid, path) : path;
}

void CheckStoreDirectory(const Host& host, const std::string& path, DoctorNotes& notes) {
  DoctorFinding finding{
      "store-unreachable", "itself", fmt::format("{} does not answer", path),
      fmt::format("a directory that musterd may write into, as `store` in {} says", host.config_path),
      fmt::format("mount {} again", path)};
  notes.Next(finding);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 && errno == EACCES && !host.root)
    return notes.Unchecked(fmt::format("the store {}: root alone may look at it", path));
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    finding.is = fmt::format("{}: {}", path, std::strerror(S_ISDIR(info.st_mode) ? errno : ENOTDIR));
    finding.fix = fmt::format("mount or make {}", path);
    return notes.Check(false, finding);
  }
  if (!host.root)
    return notes.Unchecked(fmt::format("whether musterd may write into {}: root alone may look", path));
  if (::access(AsMusterdSees(host, path).c_str(), W_OK) != 0) {
    const int error = errno;
    finding.is = fmt::format("musterd cannot write into {}: {}", path, std::strerror(error));
    finding.fix =
        ::access(path.c_str(), W_OK) != 0
            ? fmt::format("mount -o remount,rw {}", path)
            : fmt::format(
                  R"(mkdir -p {0} && printf '[Service]\nReadWritePaths={1}\n' >{0}/store.conf && systemctl daemon-reload && systemctl restart musterd.service)",
                  "/etc/systemd/system/musterd.service.d", path);
    return notes.Check(false, finding);
  }
  notes.Check(true, finding);
}

void CheckPool(const Host& host, DoctorNotes& notes) {
  if (!host.root)
    return notes.Unchecked(fmt::format("the store {}: root alone has its key", host.config->store));
  const auto ran = RunProgram({"musterd", "--check-store", "--config", host.config_path}, kStoreLimit);
  if (!ran || ran->code == kNoProgram)
    return notes.Unchecked(fmt::format("the store {}: musterd is not installed", host.config->store));
  std::string said = ran->code == kTooLong ? "it does not answer" : ran->output;
  std::replace(said.begin(), said.end(), '\n', ' ');
  notes.Check(ran->code == 0, {"store-unreachable", "itself", fmt::format("{}: {}", host.config->store, said),
                               "a pool that this host may read and write", "ceph -s; musterd --check-store"});
}

struct Place {
  std::string path;
  std::string whose;
};

// SlurmdSpoolDir and the like, of this host.
std::string SlurmPath(const Host& host, const char* key, const char* otherwise) {
  std::string path = SlurmSetting(host.slurm.conf_text, key);
  for (const char* pattern : {"%n", "%h"}) {
    const size_t at = path.find(pattern);
    if (at != std::string::npos) path.replace(at, 2, host.name);
  }
  return path.empty() ? otherwise : path;
}

std::string Parent(const std::string& path) {
  return fs::path(path).parent_path();
}

// Where the services of this host write.
std::vector<Place> Written(const Host& host) {
  std::vector<Place> places;
  if (host.Has("musterd") && host.config) {
    places.push_back({host.config->state_dir, "musterd"});
    if (host.config->store.starts_with(kDirectory))
      places.push_back({host.config->store.substr(sizeof kDirectory - 1), "musterd"});
  }
  if (host.Has("slurmd")) {
    places.push_back({SlurmPath(host, "SlurmdSpoolDir", "/var/spool/slurmd"), "slurmd"});
    places.push_back({Parent(SlurmPath(host, "SlurmdLogFile", "")), "slurmd"});
  }
  if (host.Has("slurmctld")) {
    places.push_back({SlurmPath(host, "StateSaveLocation", "/var/spool"), "slurmctld"});
    places.push_back({Parent(SlurmPath(host, "SlurmctldLogFile", "")), "slurmctld"});
  }
  return places;
}

}  // namespace

void CheckConfig(const Host& host, DoctorNotes& notes) {
  notes.Check(host.config.has_value(),
              {"config-bad", "", host.config_error, "a file that musterd takes",
               fmt::format("correct that line; musterd --check-config --config {} says whether it is right",
                           host.config_path)});
}

void CheckMunge(const Host& host, DoctorNotes& notes) {
  if (host.systemd && !host.Has("munge")) return;
  DoctorFinding finding{"munge-not-working", "", "munged does not answer",
                        "it takes a credential that it has made", "systemctl restart munge.service"};
  notes.Next(finding);
  const auto made = MungeEncode("muster doctor");
  const auto taken = made ? MungeDecode(*made) : Result<Credential>(made.error());
  if (!taken) finding.is = taken.error().message;
  notes.Check(taken.ok(), finding);
}

void CheckMusterd(const Host& host, DoctorNotes& notes) {
  if (!host.config || !host.Has("musterd")) return;
  DoctorFinding finding{"musterd-not-answering", "",
                        fmt::format("musterd does not answer on {}", host.config->socket),
                        "it answers within seconds", "systemctl restart musterd.service"};
  notes.Next(finding);
  if (const auto session = MusterdSession::Open(host.config->socket, std::nullopt); !session) {
    finding.is = session.error().message;
    return notes.Check(false, finding);
  }
  v1::Question question;
  question.set_kind(v1::Question::STATUS);
  const auto reply = AskDaemon(host.name, fmt::format("127.0.0.1:{}", host.config->port),
                               question.SerializeAsString(), kAskSeconds);
  v1::Answer answer;
  if (!reply || !answer.ParseFromString(*reply)) {
    finding.is =
        reply ? "musterd has answered with what this command does not understand" : reply.error().message;
    return notes.Check(false, finding);
  }
  notes.Check(true, finding);
  // What it cannot answer without the store.
  notes.Check(answer.error().empty(),
              {"store-unreachable", "as musterd sees it", "musterd says: " + answer.error(),
               "it reads from the store", "journalctl -u musterd says since when; ceph -s"});
}

void CheckStore(const Host& host, DoctorNotes& notes) {
  if (!host.config || !host.Has("musterd")) return;
  const std::string& store = host.config->store;
  if (store.starts_with(kDirectory))
    return CheckStoreDirectory(host, store.substr(sizeof kDirectory - 1), notes);
  CheckPool(host, notes);
}

void CheckRoom(const Host& host, DoctorNotes& notes) {
  const Config config = host.config.value_or(Config());
  std::set<dev_t> seen;
  for (const Place& place : Written(host)) {
    DoctorFinding finding{
        "disk-full", "", place.path + " does not answer",
        fmt::format("at least {} % free, for {} writes there", config.health_disk_free, place.whose),
        fmt::format("remove what nobody needs; du -xh {} | sort -h | tail", place.path)};
    struct stat info {};
    notes.Next(finding);
    if (place.path.empty() || ::stat(place.path.c_str(), &info) != 0) {
      if (errno == EACCES) notes.Unchecked(fmt::format("the room in {}: root alone may look", place.path));
      continue;
    }
    if (!S_ISDIR(info.st_mode) || !seen.insert(info.st_dev).second) continue;
    bool good = true;
    Findings disks([&](const HealthLine& line) {
      if (line.kind != HealthLine::Kind::kFinding) return;
      good = false;
      finding.is = fmt::format("{} {}", place.path, line.text);
      // What is full is a warning there, for a job may have done it.
      if (line.severity == HealthSeverity::kSick) finding.id = "disk-failing";
      notes.Check(false, finding);
    });
    HealthOptions options;
    options.disks = {place.path};
    options.disk_free_percent = static_cast<uint32_t>(config.health_disk_free);
    CheckDisks(options, disks);
    if (good) notes.Check(true, finding);
  }
}

void CheckHealth(const Host& host, DoctorNotes& notes) {
  if (!host.config || !host.Has("musterd") || host.config->health_timeout_ms == 0) return;
  const auto warning = [](const std::string& subject, const std::string& what) {
    return DoctorFinding{"health",
                         "",
                         fmt::format("{} {}", subject, what),
                         "nothing of the kind",
                         "docs/architecture.md, \"Health\", says what is looked at",
                         true};
  };
  std::string open;  // the subject that is looked at, and of which nothing is found yet
  Findings findings([&](const HealthLine& line) {
    if (line.kind == HealthLine::Kind::kFinding) {
      notes.Check(false, warning(line.subject, line.text));
      open.clear();
    }
    if (line.kind != HealthLine::Kind::kChecking && line.kind != HealthLine::Kind::kDone) return;
    if (!open.empty()) notes.Check(true, {});
    open = line.subject;
    if (line.kind == HealthLine::Kind::kChecking) notes.Next(warning(line.subject, "does not answer"));
  });
  const HealthOptions options = HealthOptionsOf(*host.config);
  CheckMemory(options, findings);
  CheckNics(options, findings);
  CheckGpus(options, findings);
  CheckClock(findings);
  findings.Done();
}

}  // namespace muster::cli
