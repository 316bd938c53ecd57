#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "daemon/hang/stacks.h"

namespace muster::hang {
namespace {

using nlohmann::json;

constexpr size_t kSummaryBytes = 200;
constexpr size_t kSummaryFrames = 4;

// What the lines say comes from a program's own names: it is looked at with care, and printed without control
// characters.
std::string Clean(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string Get(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  if (found->is_string()) return Clean(found->get<std::string>());
  return found->is_number() ? found->dump() : "";
}

std::vector<std::string> List(const json& object, const char* key) {
  std::vector<std::string> list;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return list;
  for (const json& item : *found) {
    list.push_back(item.is_string() ? Clean(item.get<std::string>()) : item.is_number() ? item.dump() : "");
  }
  return list;
}

std::vector<json> Objects(std::string_view lines) {
  std::vector<json> objects;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    json object = json::parse(lines.substr(0, end), nullptr, false);
    if (object.is_object()) objects.push_back(std::move(object));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return objects;
}

std::vector<json> Groups(const json& object) {
  std::vector<json> groups;
  const auto found = object.find("groups");
  if (found == object.end() || !found->is_array()) return groups;
  for (const json& group : *found) {
    if (group.is_object()) groups.push_back(group);
  }
  return groups;
}

std::string Joined(const std::vector<std::string>& words, const char* between, size_t most) {
  std::string text;
  for (size_t i = 0; i < words.size() && i < most; ++i) text += (i == 0 ? "" : between) + words[i];
  if (words.size() > most) text += fmt::format("{}... ({} in all)", between, words.size());
  return text;
}

void AddGroup(const json& group, std::string* text) {
  const auto threads = List(group, "threads");
  *text += fmt::format("  {} {} {}", threads.size() == 1 ? "thread" : "threads", Joined(threads, " ", 8),
                       Get(group, "name"));
  const std::string call = Get(group, "call");
  const std::string wait = Get(group, "wait");
  if (const std::string state = Get(group, "state"); !state.empty()) *text += ", state " + state;
  if (!call.empty()) *text += ", in " + call;
  if (!wait.empty()) *text += ", waits in " + wait;
  *text += "\n";
  for (const char* key : {"frames", "stack"}) {
    for (const std::string& frame : List(group, key)) *text += "    " + frame + "\n";
  }
}

// The function of "gloo::Pair::recv(...)+0x12 libtorch_cpu.so".
std::string FunctionOf(const std::string& frame) {
  const std::string name = frame.substr(0, frame.rfind('+'));
  return name.substr(0, name.find('('));
}

// faulthandler and py-spy both print one indented line a frame, the newest first; the main thread is faulthandler's
// last and py-spy's the one so named.
std::vector<std::string> PythonFrames(const json& object) {
  std::vector<std::vector<std::string>> threads;
  std::optional<size_t> main;
  for (const std::string& line : List(object, "text")) {
    if (line.empty()) continue;
    if (line[0] != ' ') {
      if (!line.starts_with("Thread") && !line.starts_with("Current thread")) continue;
      threads.emplace_back();
      if (line.find("MainThread") != std::string::npos) main = threads.size() - 1;
    } else if (!threads.empty()) {
      threads.back().push_back(line.substr(line.find_first_not_of(' ')));
    }
  }
  if (threads.empty()) return {};
  return threads[main.value_or(threads.size() - 1)];
}

}  // namespace

std::string StacksText(std::string_view lines) {
  std::string text;
  for (const json& object : Objects(lines)) {
    const std::string kind = Get(object, "kind");
    if (kind == "process") {
      text +=
          fmt::format("process {} {} ({}): state {}, {} threads\n", Get(object, "pid"), Get(object, "name"),
                      Get(object, "command"), Get(object, "state"), Get(object, "threads"));
    } else if (kind == "kernel" || kind == "native") {
      text += fmt::format(" {} of {}:\n", kind == "kernel" ? "in the kernel" : "stacks", Get(object, "pid"));
      for (const json& group : Groups(object)) AddGroup(group, &text);
    } else if (kind == "python") {
      const std::string by = Get(object, "by");
      text += fmt::format(" Python of {}{}{}:\n", Get(object, "pid"), by.empty() ? "" : ", by ", by);
      for (const std::string& line : List(object, "text")) text += "  " + line + "\n";
    }
    if (kind == "dump") {
      const auto asked = List(object, "asked");
      text += " dump of the flight recorder" + (asked.empty() ? "" : " asked for: " + Joined(asked, " ", 8)) +
              "\n";
    }
    if (const std::string error = Get(object, "error"); !error.empty()) text += "  (" + error + ")\n";
    if (object.contains("left_out")) text += fmt::format("  ({} more left out)\n", Get(object, "left_out"));
  }
  return text;
}

std::string StacksSummary(std::string_view lines) {
  std::string pid;
  std::string python;
  std::string native;
  std::string kernel;
  for (const json& object : Objects(lines)) {
    const std::string kind = Get(object, "kind");
    if (kind == "process" && pid.empty()) pid = Get(object, "pid");
    if (pid.empty() || Get(object, "pid") != pid) continue;
    if (kind == "python") python = Joined(PythonFrames(object), " < ", 2);
    const std::vector<json> groups = Groups(object);
    if (groups.empty()) continue;
    if (kind == "native") {
      std::vector<std::string> functions;
      for (const std::string& frame : List(groups.front(), "frames")) {
        if (functions.size() < kSummaryFrames) functions.push_back(FunctionOf(frame));
      }
      native = Joined(functions, " < ", kSummaryFrames);
    } else if (kind == "kernel") {
      kernel = Get(groups.front(), "call");
      if (const std::string wait = Get(groups.front(), "wait"); !wait.empty()) kernel += " (" + wait + ")";
    }
  }
  std::string text = !python.empty() ? python : !native.empty() ? native : kernel;
  if (text.size() > kSummaryBytes) text = text.substr(0, kSummaryBytes - 3) + "...";
  return text;
}

}  // namespace muster::hang
