#include "daemon/service/queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/agent/agent.h"
#include "daemon/config/configured_retention.h"
#include "daemon/gang/gang.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/service/checkpoint_changes.h"
#include "daemon/service/checkpoint_queries.h"
#include "daemon/service/node_report.h"
#include "daemon/service/storage_report.h"
#include "daemon/slurm/slurm.h"
#include "wire/gang_options.h"

namespace muster {
namespace {

using nlohmann::json;

// The muster command's exit codes.
constexpr uint32_t kBadFinding = 1;
constexpr uint32_t kUsage = 2;
constexpr uint32_t kNotReachable = 3;

constexpr std::string_view kByName = "name=";
constexpr size_t kMaxGangText = kByName.size() + wire::kMaxName;

// From the coordinator's memory.
struct Live {
  GangRecord record;
  std::vector<hang::Pace> paces;
};

struct Known {
  std::string key;
  GangRecord record;
  bool live = false;
  std::vector<hang::Pace> paces;
};

std::string Dump(const json& document) {
  return document.dump(2, ' ', false, json::error_handler_t::replace);
}

json EventsJson(const GangRecord& record) {
  json events = json::array();
  for (const HistoryEvent& event : record.events) {
    events.push_back({{"time_ns", event.time_ns},
                      {"generation", event.generation},
                      {"kind", event.kind},
                      {"text", event.text}});
  }
  return events;
}

json MembersJson(const std::vector<hang::Pace>& paces, bool stragglers_only) {
  json members = json::array();
  for (const hang::Pace& pace : paces) {
    if (stragglers_only && !pace.straggler) continue;
    members.push_back({{"rank", pace.rank},
                       {"step", pace.step ? json(*pace.step) : json()},
                       {"step_ns", pace.step_ns},
                       {"late_ns", pace.late_ns},
                       {"straggler", pace.straggler},
                       {"why", pace.why}});
  }
  return members;
}

// One question, answered on the worker's thread: the store may be slow.
class Answering {
 public:
  Answering(const v1::Question& question, uint32_t uid, std::shared_ptr<Store> store, Engine& engine,
            std::map<std::string, Live> live, std::vector<Live> waiting, std::string self,
            const Config& config)
      : question_(question),
        space_(SpaceOf(uid)),
        store_(std::move(store)),
        engine_(engine),
        live_(std::move(live)),
        waiting_(std::move(waiting)),
        self_(std::move(self)),
        config_(config) {}

  v1::Answer Run() {
    if (question_.kind() == v1::Question::STORAGE)
      return Found(StorageReport(store_, question_.all() ? std::nullopt : std::optional(space_),
                                 static_cast<uint64_t>(config_.user_storage_limit)));
    if (question_.gang().starts_with(kByName)) return OfName(question_.gang().substr(kByName.size()));
    auto known = Gather();
    if (!known) return Fail(known.error().message, kNotReachable);
    if (question_.kind() == v1::Question::STATUS && question_.gang().empty()) return List(*known);
    if (known->empty()) {
      return Fail(
          fmt::format("no gang of job {} is known (of this user; root may give --uid)", question_.gang()),
          kBadFinding);
    }
    // Several jobs may have had this number: the question is about the newest of them.
    std::erase_if(*known, [submission = known->back().record.submission](const Known& other) {
      return other.record.submission != submission;
    });
    const Known& newest = known->back();
    if (newest.record.state != gang::ToString(gang::State::kFinished) && !newest.live &&
        newest.record.coordinator != self_ && !newest.record.coordinator.empty() &&
        question_.kind() <= v1::Question::EVENTS) {
      v1::Answer answer = Compose(*known);
      answer.set_ask_instead(fmt::format("{}:{}", newest.record.coordinator, config_.port));
      return answer;
    }
    return Compose(*known);
  }

 private:
  v1::Answer Compose(const std::vector<Known>& known) {
    switch (question_.kind()) {
      case v1::Question::STATUS:
        return List(known);
      case v1::Question::EVENTS:
        return Events(known.back());
      default:
        return OfCheckpoints(known.back().key, known.back().record.gang);
    }
  }

  static v1::Answer Fail(const std::string& text, uint32_t code) {
    v1::Answer answer;
    answer.set_error(text);
    answer.set_exit_code(code);
    return answer;
  }
  static v1::Answer Good(const json& document, uint32_t code = 0) {
    v1::Answer answer;
    answer.set_json(Dump(document));
    answer.set_exit_code(code);
    return answer;
  }

  // "12" names all gangs of job 12, "12.0" one step's, "12.0-1f00c3e95a2b7d84" one of them where Slurm has given the number again.
  [[nodiscard]] bool Named(const std::string& gang, const std::string& key) const {
    const std::string& name = question_.gang();
    return name.empty() || gang == name || gang.starts_with(name + ".") || gang.starts_with(name + "-r") ||
           key == "job-" + name;
  }

  Result<std::vector<Known>> Gather() {
    auto index = Catalog::ListKeys(*store_, space_);
    std::vector<Known> known;
    if (!index && index.error().code != Errc::kNotFound) {
      // What this daemon coordinates itself it knows without the store.
      for (const auto& [key, live] : live_) {
        if (Named(live.record.gang, key)) known.push_back({key, live.record, true, live.paces});
      }
      if (known.empty()) return index.error();
    }
    if (index) {
      for (const auto& [key, entry] : *index) {
        const json parsed = json::parse(entry, nullptr, false);
        const bool named = parsed.is_object() && parsed.contains("gang") && parsed["gang"].is_string();
        const std::string gang = named ? parsed["gang"].get<std::string>() : "";
        if (!Named(gang, key)) continue;
        if (const auto found = live_.find(key); found != live_.end()) {
          known.push_back({key, found->second.record, true, found->second.paces});
          continue;
        }
        const auto head = Catalog(store_, space_, key).Load();
        if (!head) {
          if (head.error().code == Errc::kNotFound) continue;
          return head.error();
        }
        if (auto record = GangRecord::Decode(head->record))
          known.push_back({key, *std::move(record), false, {}});
      }
    }
    for (const Live& waiting : waiting_) {
      const GangRecord& record = waiting.record;
      if (Named(record.gang, record.key)) known.push_back({record.key, record, true, {}});
    }
    std::sort(known.begin(), known.end(),
              [](const Known& a, const Known& b) { return a.record.created_ns < b.record.created_ns; });
    return known;
  }

  v1::Answer List(const std::vector<Known>& known) {
    json gangs = json::array();
    bool bad = false;
    for (const Known& item : known) {
      json summary = item.record.Summary();
      summary["live"] = item.live;
      if (item.live) {
        summary["members"] = MembersJson(item.paces, false);
        summary["stragglers"] = MembersJson(item.paces, true);
      }
      gangs.push_back(std::move(summary));
      bad |= item.record.state == gang::ToString(gang::State::kFinished) && !item.record.succeeded;
    }
    return Good({{"gangs", std::move(gangs)}}, bad && !question_.gang().empty() ? kBadFinding : 0);
  }

  v1::Answer Events(const Known& item) {
    return Good({{"gang", item.record.gang}, {"events", EventsJson(item.record)}});
  }

  // "name=KEY": of whatever jobs have used it, or of none.
  v1::Answer OfName(const std::string& name) {
    if (question_.kind() <= v1::Question::EVENTS || !wire::detail::IsName(name.data(), name.size()))
      return Fail(fmt::format("{} names checkpoints: name=KEY, as in --gang", question_.gang()), kUsage);
    const std::string key = "name-" + name;
    const auto head = Catalog(store_, space_, key).Load();
    if (!head && head.error().code == Errc::kNotFound) {
      return Fail(fmt::format("name={} has no checkpoints (of this user; root may give --uid)", name),
                  kBadFinding);
    }
    const auto record = head ? GangRecord::Decode(head->record) : Result<GangRecord>(head.error());
    return OfCheckpoints(key, record ? record->gang : "");
  }

  v1::Answer OfCheckpoints(const std::string& key, const std::string& gang) {
    const CheckpointsOf of{store_, engine_, space_, key, gang};
    const auto step = question_.has_step() ? std::optional(question_.step()) : std::nullopt;
    const auto rank = question_.has_rank() ? std::optional(question_.rank()) : std::nullopt;
    const bool of_one = question_.kind() >= v1::Question::CHECKPOINT_PIN &&
                        question_.kind() <= v1::Question::CHECKPOINT_DELETE;
    if (of_one && !step) return Fail("which step is meant is not said", kUsage);
    switch (question_.kind()) {
      case v1::Question::CHECKPOINT_LIST:
        return Found(ListCheckpoints(of));
      case v1::Question::CHECKPOINT_SHOW:
        return Found(ShowCheckpoint(of, step, rank));
      case v1::Question::CHECKPOINT_PIN:
        return Found(PinCheckpoint(of, question_.step(), question_.name()));
      case v1::Question::CHECKPOINT_UNPIN:
        return Found(PinCheckpoint(of, question_.step(), ""));
      case v1::Question::CHECKPOINT_DELETE:
        return Found(DeleteCheckpoint(of, question_.step()));
      case v1::Question::CHECKPOINT_PRUNE:
        return Found(PruneCheckpoints(of, Pruning()));
      default:
        return Fail("unknown question", kUsage);
    }
  }

  Retention Pruning() const {
    Retention retention = RetentionOf(config_);
    if (question_.has_keep()) retention.newest = question_.keep();
    return retention;
  }

  // What is wrong with the question is the asker's fault, what is not there a finding.
  static v1::Answer Found(const Result<json>& document) {
    if (document) return Good(*document);
    switch (document.error().code) {
      case Errc::kInvalid:
      case Errc::kDenied:
        return Fail(document.error().message, kUsage);
      case Errc::kNotFound:
      case Errc::kCorrupt:
      case Errc::kConflict:
        return Fail(document.error().message, kBadFinding);
      default:
        return Fail(document.error().message, kNotReachable);
    }
  }

  v1::Question question_;
  std::string space_;
  std::shared_ptr<Store> store_;
  Engine& engine_;
  std::map<std::string, Live> live_;  // by key
  std::vector<Live> waiting_;         // their names are other gangs'
  std::string self_;
  const Config& config_;
};

}  // namespace

Queries::Queries(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store,
                 Engine& engine, const Coordinators& coordinators, Agent& agent, Slurm& slurm)
    : loop_(loop),
      config_(config),
      self_(std::move(self)),
      store_(std::move(store)),
      engine_(engine),
      coordinators_(coordinators),
      agent_(agent),
      slurm_(slurm) {}

void Queries::Ask(AskedBy who, std::string question, std::function<void(std::string)> reply) {
  v1::Question parsed;
  v1::Answer refusal;
  if (!parsed.ParseFromString(question) || parsed.gang().size() > kMaxGangText ||
      parsed.node().size() > 255 || parsed.reason().size() > 200) {
    refusal.set_error("malformed question");
    refusal.set_exit_code(kUsage);
    return reply(refusal.SerializeAsString());
  }
  const bool wish = parsed.kind() == v1::Question::NODE_DRAIN || parsed.kind() == v1::Question::NODE_RESUME;
  if (wish && who.uid != 0) {
    refusal.set_error("only root may drain a node or give it back");
    refusal.set_exit_code(kUsage);
    return reply(refusal.SerializeAsString());
  }
  if (wish || parsed.kind() == v1::Question::NODE_SHOW) {
    loop_.Post([this, parsed, who, reply = std::move(reply)] { AskNode(parsed, who.uid, reply); });
    return;
  }
  if (parsed.all() && who.uid != 0) {
    refusal.set_error("only root may ask for all users' storage");
    refusal.set_exit_code(kUsage);
    return reply(refusal.SerializeAsString());
  }
  const uint32_t uid = parsed.has_uid() ? parsed.uid() : who.uid;
  if (uid != who.uid && who.uid != 0) {
    refusal.set_error("only root may ask for another user's gangs");
    refusal.set_exit_code(kUsage);
    return reply(refusal.SerializeAsString());
  }
  loop_.Post([this, parsed, uid, reply = std::move(reply)] {
    std::map<std::string, Live> live;
    std::vector<Live> waiting;
    for (const auto& [id, coordinator] : coordinators_.gangs()) {
      if (coordinator->job().uid != uid) continue;
      Live one{coordinator->Record(), coordinator->Paces()};
      if (one.record.state == Coordinator::kWaiting) {
        waiting.push_back(std::move(one));
      } else {
        live.emplace(coordinator->job().Key(), std::move(one));
      }
    }
    worker_.Do([this, parsed, uid, live = std::move(live), waiting = std::move(waiting), reply] {
      reply(Answering(parsed, uid, store_, engine_, live, waiting, self_, config_).Run().SerializeAsString());
    });
  });
}

// The node's own daemon answers: it knows which gangs are there.
void Queries::AskNode(const v1::Question& question, uint32_t uid,
                      const std::function<void(std::string)>& reply) {
  v1::Answer answer;
  if (question.node() != self_) {
    answer.set_ask_instead(fmt::format("{}:{}", question.node(), config_.port));
    answer.set_error(fmt::format("musterd on {} is to be asked", question.node()));
    answer.set_exit_code(kNotReachable);
    return reply(answer.SerializeAsString());
  }
  if (question.kind() != v1::Question::NODE_SHOW) return WishNode(question, reply);
  agent_.View(uid == 0 ? std::nullopt : std::optional(uid), [reply, node = self_](const NodeView& view) {
    const json report = NodeReport(node, view);
    v1::Answer told;
    told.set_json(Dump(report));
    told.set_exit_code(report.at("fit").get<bool>() ? 0 : kBadFinding);
    reply(told.SerializeAsString());
  });
}

void Queries::WishNode(const v1::Question& question, const std::function<void(std::string)>& reply) {
  const bool drain = question.kind() == v1::Question::NODE_DRAIN;
  const std::string reason = question.reason().empty() ? "drained by an operator" : question.reason();
  const auto done = [reply, node = self_, drain, gangs = agent_.Wish(drain, reason)](const Status& slurm) {
    v1::Answer told;
    told.set_json(Dump({{"node", node},
                        {"drain", drain},
                        {"gangs", gangs},
                        {"slurm", slurm ? "done" : slurm.error().message}}));
    told.set_exit_code(slurm ? 0 : kBadFinding);
    reply(told.SerializeAsString());
  };
  if (drain) return slurm_.NodeDrain(self_, reason, done);
  slurm_.NodeResume(self_, done);
}

}  // namespace muster
