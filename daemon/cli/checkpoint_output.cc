#include "daemon/cli/checkpoint_output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "daemon/cli/table.h"

namespace muster::cli {
namespace {

using nlohmann::json;

std::string Number(const json& value) {
  return std::to_string(value.get<uint64_t>());
}

std::string StateOf(const json& item) {
  std::string state = item.at("state");
  if (item.at("latest").get<bool>()) state += ", latest";
  const std::string pinned = item.at("pinned");
  if (!pinned.empty()) state += ", pinned as " + pinned;
  const std::string reason = item.at("reason");
  if (!reason.empty()) state += ": " + reason;
  return state;
}

// A name that a program has given: control characters would move the cursor.
std::string Plain(const std::string& name) {
  std::string text = name;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

void AddEntries(const json& shard, std::string* text) {
  const json entries = shard.value("entries", json());
  if (shard.contains("unreadable"))
    *text +=
        fmt::format("\nrank {}: {}\n", Number(shard.at("rank")), shard.at("unreadable").get<std::string>());
  if (!entries.is_array()) return;
  std::vector<Row> rows = {{"NAME", "TYPE", "SHAPE", "SIZE"}};
  for (const json& entry : entries) {
    rows.push_back(
        {Plain(entry.at("name")), entry.at("dtype"), entry.at("shape").dump(), Bytes(entry.at("bytes"))});
  }
  *text += fmt::format("\nrank {}\n", Number(shard.at("rank"))) + Table(rows);
  const auto left_out = shard.value("entries_left_out", uint64_t{0});
  if (left_out > 0) *text += fmt::format("and {} more\n", left_out);
}

}  // namespace

std::string CheckpointTable(const json& document) {
  std::vector<Row> rows = {{"STEP", "SIZE", "MEMBERS", "GENERATION", "COMMITTED", "STATE"}};
  for (const json& item : document.at("checkpoints")) {
    rows.push_back({Number(item.at("step")), Bytes(item.at("bytes")), Number(item.at("members")),
                    Number(item.at("generation")), Time(item.at("created_ns"), false), StateOf(item)});
  }
  return rows.size() == 1 ? "no checkpoints\n" : Table(rows);
}

std::string CheckpointText(const json& document) {
  std::string text =
      Table({{"key", document.at("key")},
             {"step", Number(document.at("step"))},
             {"state", StateOf(document)},
             {"committed", Time(document.at("created_ns"), true)},
             {"members", Number(document.at("members"))},
             {"size", fmt::format("{}, {} of it written for this step", Bytes(document.at("bytes")),
                                  Bytes(document.at("own_bytes")))},
             {"stored", Bytes(document.at("stored_bytes"))},
             {"chunks", Number(document.at("chunks"))},
             {"fence", fmt::format("term {}, generation {}", Number(document.at("term")),
                                   Number(document.at("generation")))}});
  std::vector<Row> rows = {{"RANK", "SIZE", "WRITTEN", "STORED", "CHUNKS"}};
  for (const json& shard : document.at("shards"))
    rows.push_back({Number(shard.at("rank")), Bytes(shard.at("bytes")), Bytes(shard.at("own_bytes")),
                    Bytes(shard.at("stored_bytes")), Number(shard.at("chunks"))});
  text += "\n" + Table(rows);
  for (const json& shard : document.at("shards")) AddEntries(shard, &text);
  return text;
}

std::string VerifyTable(const json& document) {
  std::vector<Row> rows = {{"STEP", "SIZE", "RESULT"}};
  for (const json& item : document.at("checkpoints")) {
    rows.push_back(
        {Number(item.at("step")), Bytes(item.at("bytes")),
         item.at("verified").get<bool>() ? "verified" : "BAD: " + item.at("reason").get<std::string>()});
  }
  for (const json& item : document.at("removed"))
    rows.push_back({Number(item.at("step")), "-", "not verified: " + item.at("reason").get<std::string>()});
  return rows.size() == 1 ? "no checkpoints\n" : Table(rows);
}

std::string PinText(const json& document) {
  const std::string name = document.at("pinned");
  return fmt::format("step {} of {} is {}\n", Number(document.at("step")),
                     document.at("key").get<std::string>(),
                     name.empty() ? "not pinned" : "pinned as " + name);
}

std::string RemovedText(const json& document) {
  std::string text;
  for (const json& step : document.at("removed"))
    text += fmt::format("step {} of {} is removed\n", Number(step), document.at("key").get<std::string>());
  if (const auto orphans = document.value("orphans", uint64_t{0}); orphans > 0)
    text += fmt::format("removed objects that unfinished saves had left: {}\n", orphans);
  return text.empty() ? "nothing is removed\n" : text;
}

std::string ExportText(const json& document) {
  return fmt::format("step {} of {} is in {}: {} files and index.json\n", Number(document.at("step")),
                     document.at("key").get<std::string>(), document.at("directory").get<std::string>(),
                     document.at("files").size());
}

std::string ImportText(const json& document) {
  const std::string name = document.at("name");
  return fmt::format(
      "name={} has a checkpoint of step {} now, of {} members, {}: --gang=name={} starts from it\n", name,
      Number(document.at("step")), Number(document.at("members")), Bytes(document.at("bytes")), name);
}

std::string StorageTable(const json& document) {
  std::vector<Row> rows = {{"USER", "KEY", "GANG", "CHECKPOINTS", "SIZE", "STORED"}};
  for (const json& user : document.at("users")) {
    const std::string uid = Number(user.at("uid"));
    for (const json& key : user.at("keys")) {
      rows.push_back({uid, key.at("key"), key.at("gang"), Number(key.at("checkpoints")),
                      Bytes(key.at("bytes")), Bytes(key.at("stored_bytes"))});
    }
    rows.push_back({uid, "all", "", Number(user.at("checkpoints")), Bytes(user.at("bytes")),
                    Bytes(user.at("stored_bytes"))});
  }
  std::string text = rows.size() == 1 ? "nothing is stored\n" : Table(rows);
  if (const json limit = document.value("user_limit", json()); !limit.is_null())
    text += fmt::format("each user may have {}\n", Bytes(limit));
  return text;
}

}  // namespace muster::cli
