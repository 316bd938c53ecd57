#include "daemon/service/queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/base/gang_job.h"
#include "daemon/gang/gang.h"
#include "daemon/proto/muster.pb.h"

namespace muster {
namespace {

using nlohmann::json;

// The muster command's exit codes.
constexpr uint32_t kBadFinding = 1;
constexpr uint32_t kUsage = 2;
constexpr uint32_t kNotReachable = 3;

struct Known {
  std::string key;
  GangRecord record;
  bool live = false;  // from the coordinator's memory
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

// One question, answered on the worker's thread: the store may be slow.
class Answering {
 public:
  Answering(const v1::Question& question, uint32_t uid, std::shared_ptr<Store> store, Engine& engine,
            std::map<std::string, GangRecord> live, std::string self, int64_t port)
      : question_(question),
        space_(SpaceOf(uid)),
        store_(std::move(store)),
        engine_(engine),
        live_(std::move(live)),
        self_(std::move(self)),
        port_(port) {}

  v1::Answer Run() {
    auto known = Gather();
    if (!known) return Fail(known.error().message, kNotReachable);
    if (question_.kind() == v1::Question::STATUS && question_.gang().empty()) return List(*known);
    if (known->empty()) {
      return Fail(
          fmt::format("no gang of job {} is known (of this user; root may give --uid)", question_.gang()),
          kBadFinding);
    }
    const Known& newest = known->back();
    if (newest.record.state != gang::ToString(gang::State::kFinished) && !newest.live &&
        newest.record.coordinator != self_ && !newest.record.coordinator.empty() &&
        question_.kind() <= v1::Question::EVENTS) {
      v1::Answer answer = Compose(*known);
      answer.set_ask_instead(fmt::format("{}:{}", newest.record.coordinator, port_));
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
      case v1::Question::CHECKPOINT_LIST:
        return Checkpoints(known.back());
      case v1::Question::CHECKPOINT_VERIFY:
        return Verify(known.back());
      default:
        return Fail("unknown question", kUsage);
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

  // "12" names all gangs of job 12, "12.0" one step's. Oldest first.
  [[nodiscard]] bool Named(const std::string& gang) const {
    const std::string& name = question_.gang();
    return name.empty() || gang == name || gang.starts_with(name + ".") || gang.starts_with(name + "-r");
  }

  Result<std::vector<Known>> Gather() {
    auto index = Catalog::ListKeys(*store_, space_);
    if (!index && index.error().code != Errc::kNotFound) return index.error();
    std::vector<Known> known;
    if (index) {
      for (const auto& [key, entry] : *index) {
        const json parsed = json::parse(entry, nullptr, false);
        const bool named = parsed.is_object() && parsed.contains("gang") && parsed["gang"].is_string();
        const std::string gang = named ? parsed["gang"].get<std::string>() : "";
        if (!Named(gang)) continue;
        if (const auto found = live_.find(key); found != live_.end()) {
          known.push_back({key, found->second, true});
          continue;
        }
        const auto head = Catalog(store_, space_, key).Load();
        if (!head) {
          if (head.error().code == Errc::kNotFound) continue;
          return head.error();
        }
        if (auto record = GangRecord::Decode(head->record)) known.push_back({key, *std::move(record), false});
      }
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
      gangs.push_back(std::move(summary));
      bad |= item.record.state == gang::ToString(gang::State::kFinished) && !item.record.succeeded;
    }
    return Good({{"gangs", std::move(gangs)}}, bad && !question_.gang().empty() ? kBadFinding : 0);
  }

  v1::Answer Events(const Known& item) {
    return Good({{"gang", item.record.gang}, {"events", EventsJson(item.record)}});
  }

  v1::Answer Checkpoints(const Known& item) {
    const auto head = Catalog(store_, space_, item.key).Load();
    if (!head) return Fail(head.error().message, kNotReachable);
    json list = json::array();
    for (const CheckpointInfo& info : head->checkpoints) {
      list.push_back({{"step", info.step},
                      {"generation", info.fence.generation},
                      {"term", info.fence.term},
                      {"bytes", info.bytes},
                      {"members", info.world_size},
                      {"created_ns", info.created_ns},
                      {"state", info.good ? "good" : "bad"},
                      {"reason", info.reason},
                      {"latest", head->latest == info.step}});
    }
    return Good({{"gang", item.record.gang}, {"key", item.key}, {"checkpoints", std::move(list)}});
  }

  v1::Answer Verify(const Known& item) {
    Catalog catalog(store_, space_, item.key);
    const auto head = catalog.Load();
    if (!head) return Fail(head.error().message, kNotReachable);
    json list = json::array();
    bool all_good = true;
    bool found = false;
    for (const CheckpointInfo& info : head->checkpoints) {
      if (question_.has_step() && info.step != question_.step()) continue;
      found = true;
      const auto manifest = catalog.LoadManifest(info.step);
      const Status verified = manifest ? engine_.Verify(space_, *manifest) : Status(manifest.error());
      all_good &= verified.ok();
      list.push_back({{"step", info.step},
                      {"bytes", info.bytes},
                      {"verified", verified.ok()},
                      {"reason", verified ? "" : verified.error().message}});
    }
    if (question_.has_step() && !found) {
      return Fail(fmt::format("gang {} has no checkpoint of step {}", item.record.gang, question_.step()),
                  kBadFinding);
    }
    return Good({{"gang", item.record.gang}, {"key", item.key}, {"checkpoints", std::move(list)}},
                all_good ? 0 : kBadFinding);
  }

  v1::Question question_;
  std::string space_;
  std::shared_ptr<Store> store_;
  Engine& engine_;
  std::map<std::string, GangRecord> live_;  // by key
  std::string self_;
  int64_t port_;
};

}  // namespace

Queries::Queries(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store,
                 Engine& engine, const Coordinators& coordinators)
    : loop_(loop),
      config_(config),
      self_(std::move(self)),
      store_(std::move(store)),
      engine_(engine),
      coordinators_(coordinators) {}

void Queries::Ask(AskedBy who, std::string question, std::function<void(std::string)> reply) {
  v1::Question parsed;
  v1::Answer refusal;
  if (!parsed.ParseFromString(question) || parsed.gang().size() > 64) {
    refusal.set_error("malformed question");
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
    std::map<std::string, GangRecord> live;
    for (const auto& [id, coordinator] : coordinators_.gangs()) {
      if (coordinator->job().uid == uid) live.emplace(coordinator->job().Key(), coordinator->Record());
    }
    worker_.Do([this, parsed, uid, live = std::move(live), reply] {
      reply(Answering(parsed, uid, store_, engine_, live, self_, config_.port).Run().SerializeAsString());
    });
  });
}

}  // namespace muster
