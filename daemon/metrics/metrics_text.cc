#include "daemon/metrics/metrics_text.h"

#include <fmt/format.h>

#include <functional>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace muster {
namespace {

// Samples of one name; without a sample the name is not mentioned.
class Family {
 public:
  Family(std::string* text, const char* name, const char* type, const char* help)
      : text_(text),
        name_(name),
        head_(fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type)) {}
  void Add(const std::string& labels, double value) {
    *text_ += head_;
    head_.clear();
    fmt::format_to(std::back_inserter(*text_), "{}{{{}}} {}\n", name_, labels, value);
  }

 private:
  std::string* text_;
  const char* name_;
  std::string head_;
};

std::string Labels(const GangMetrics& gang) {
  return fmt::format("gang=\"{}\",uid=\"{}\"", EscapeLabel(gang.gang), gang.uid);
}

}  // namespace

std::string EscapeLabel(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    c == '\n' ? escaped += "\\n" : escaped += c;
  }
  return escaped;
}

std::string MetricsText(const NodeMetrics& node, const std::vector<GangMetrics>& gangs) {
  std::string text;
  Family(&text, "muster_build_info", "gauge", "musterd's version.")
      .Add(fmt::format("version=\"{}\"", EscapeLabel(node.version)), 1);
  Family nodes(&text, "muster_node_gangs", "gauge",
               "Gangs with tasks on this node, and gangs that it coordinates.");
  nodes.Add("role=\"member\"", static_cast<double>(node.gangs));
  nodes.Add("role=\"coordinator\"", static_cast<double>(node.coordinated));
  Family(&text, "muster_node_loop_seconds", "gauge",
         "The longest time since musterd's start in which it attended to one thing only.")
      .Add("", node.longest_turn_seconds);
  if (node.healthy) {
    Family(&text, "muster_node_healthy", "gauge",
           "1 if nothing keeps gangs from this node: its newest check, and its fabric.")
        .Add("", *node.healthy ? 1 : 0);
  }

  const std::initializer_list<std::pair<const char*, const StoreWork&>> work = {
      {"operation=\"write\"", node.writes}, {"operation=\"read\"", node.reads}};
  Family operations(&text, "muster_node_store_operations_total", "counter",
                    "Operations on objects of checkpoints that the store has carried out for this node.");
  for (const auto& [labels, done] : work) operations.Add(labels, static_cast<double>(done.operations));
  Family seconds(&text, "muster_node_store_seconds_total", "counter", "How long they took, added up.");
  for (const auto& [labels, done] : work) seconds.Add(labels, done.seconds);
  Family bytes(&text, "muster_node_store_bytes_total", "counter", "How many bytes they had.");
  for (const auto& [labels, done] : work) bytes.Add(labels, static_cast<double>(done.bytes));

  if (node.fabric) {
    Family ports(&text, "muster_fabric_ports", "gauge", "Ports of the fabric, by whether they have a link.");
    ports.Add("state=\"up\"", static_cast<double>(node.fabric->ports_up));
    ports.Add("state=\"down\"", static_cast<double>(node.fabric->ports_down));
    Family(&text, "muster_fabric_links_lost_total", "counter",
           "How often a port of the fabric has lost its link while gangs ran.")
        .Add("", static_cast<double>(node.fabric->links_lost));
    Family counts(&text, "muster_fabric_counts_total", "counter",
                  "What the ports of the fabric have counted while gangs ran, added up.");
    for (const auto& [kind, count] : node.fabric->counts)
      counts.Add(fmt::format("kind=\"{}\"", kind), static_cast<double>(count));
  }

  const auto each = [&](const char* name, const char* type, const char* help,
                        const std::function<void(Family&, const std::string&, const GangMetrics&)>& add) {
    Family family(&text, name, type, help);
    for (const GangMetrics& gang : gangs) add(family, Labels(gang), gang);
  };
  each("muster_gang_state", "gauge", "1 for the state that the gang is in.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         family.Add(fmt::format("{},state=\"{}\"", labels, EscapeLabel(gang.state)), 1);
       });
  each("muster_gang_generation", "gauge", "The generation that runs, or ran last.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         family.Add(labels, static_cast<double>(gang.generation));
       });
  each("muster_gang_restarts_total", "counter", "Generations that were started after the first, by cause.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         for (const auto& [cause, count] : gang.restarts)
           family.Add(fmt::format("{},cause=\"{}\"", labels, cause), count);
       });
  each("muster_gang_user_faults", "gauge", "Faults that count against the gang's limit of restarts now.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         family.Add(labels, gang.user_faults);
       });
  each("muster_gang_tasks", "gauge", "Tasks of the gang, spares' included.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         family.Add(labels, gang.tasks);
       });
  each("muster_gang_nodes", "gauge", "Nodes of the gang by what they are for it.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         family.Add(labels + ",role=\"active\"", gang.nodes_active);
         family.Add(labels + ",role=\"spare\"", gang.nodes_spare);
         family.Add(labels + ",role=\"lost\"", gang.nodes_lost);
       });
  each("muster_gang_recovery_seconds", "gauge", "From the newest fault to the last member's start after it.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.recovery_seconds) family.Add(labels, *gang.recovery_seconds);
       });
  each("muster_gang_step", "gauge", "The highest step that a member has reported.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.step) family.Add(labels, static_cast<double>(*gang.step));
       });
  each("muster_gang_step_seconds", "gauge", "Time that a step takes, the members' median.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.step_seconds) family.Add(labels, *gang.step_seconds);
       });
  each("muster_gang_checkpoint_step", "gauge", "Step of the newest checkpoint that was committed.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.checkpoint) family.Add(labels, static_cast<double>(gang.checkpoint->step));
       });
  each("muster_gang_checkpoint_bytes", "gauge", "Size of the newest checkpoint that was committed.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.checkpoint) family.Add(labels, static_cast<double>(gang.checkpoint->bytes));
       });
  each("muster_gang_checkpoint_timestamp_seconds", "gauge",
       "When the newest checkpoint was committed, in seconds since 1970.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.checkpoint) family.Add(labels, gang.checkpoint->at);
       });
  each("muster_gang_checkpoint_stall_seconds", "gauge",
       "How long the newest checkpoint that was committed held up a member, at most.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.checkpoint && gang.checkpoint->stall_seconds)
           family.Add(labels, *gang.checkpoint->stall_seconds);
       });
  each("muster_gang_checkpoint_drain_seconds", "gauge",
       "How long a member's part of it took from there to the store, at most.",
       [](Family& family, const std::string& labels, const GangMetrics& gang) {
         if (gang.checkpoint && gang.checkpoint->drain_seconds)
           family.Add(labels, *gang.checkpoint->drain_seconds);
       });
  return text;
}

}  // namespace muster
