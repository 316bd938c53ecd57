#include "daemon/slurm/messages.h"

#include <array>
#include <utility>

namespace muster::slurm {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<Errc, const char*>, 8> kCodes = {{{Errc::kInvalid, "invalid"},
                                                                 {Errc::kNotFound, "not_found"},
                                                                 {Errc::kConflict, "conflict"},
                                                                 {Errc::kCorrupt, "corrupt"},
                                                                 {Errc::kDenied, "denied"},
                                                                 {Errc::kUnavailable, "unavailable"},
                                                                 {Errc::kExhausted, "exhausted"},
                                                                 {Errc::kInternal, "internal"}}};

const char* NameOf(Errc code) {
  for (const auto& [known, name] : kCodes) {
    if (known == code) return name;
  }
  return "internal";
}

Errc CodeOf(std::string_view name) {
  for (const auto& [code, known] : kCodes) {
    if (name == known) return code;
  }
  return Errc::kInternal;
}

}  // namespace

json About(const char* what, const JobRun& run) {
  json question = {{"do", what}, {"job", run.job_id}, {"restarts", run.restart_count}};
  if (run.seen != 0) question.update({{"uid", run.uid}, {"seen", run.seen}});
  return question;
}

json ToJson(const SlurmJob& job) {
  return {{"job", job.job_id},
          {"uid", job.uid},
          {"state", job.state},
          {"completing", job.completing},
          {"requeueable", job.requeueable},
          {"batch", job.batch},
          {"restarts", job.restart_count},
          {"submitted", job.submit_time},
          {"start", job.start_time},
          {"end", job.end_time},
          {"preempted", job.preempt_time},
          {"preemptable", job.preemptable_time},
          {"grace", job.grace_seconds},
          {"partition", job.partition},
          {"batch_host", job.batch_host},
          {"nodes", job.nodes},
          {"shared_nodes", job.shared_nodes},
          {"het_leader", job.het_leader},
          {"het_offset", job.het_offset}};
}

Result<SlurmJob> JobFromJson(const json& json) {
  SlurmJob job;
  try {
    json.at("job").get_to(job.job_id);
    json.at("uid").get_to(job.uid);
    json.at("state").get_to(job.state);
    json.at("completing").get_to(job.completing);
    json.at("requeueable").get_to(job.requeueable);
    json.at("batch").get_to(job.batch);
    json.at("restarts").get_to(job.restart_count);
    json.at("submitted").get_to(job.submit_time);
    json.at("start").get_to(job.start_time);
    json.at("end").get_to(job.end_time);
    json.at("preempted").get_to(job.preempt_time);
    json.at("preemptable").get_to(job.preemptable_time);
    json.at("grace").get_to(job.grace_seconds);
    json.at("partition").get_to(job.partition);
    json.at("batch_host").get_to(job.batch_host);
    json.at("nodes").get_to(job.nodes);
    json.at("shared_nodes").get_to(job.shared_nodes);
    json.at("het_leader").get_to(job.het_leader);
    json.at("het_offset").get_to(job.het_offset);
  } catch (const nlohmann::json::exception& e) {
    return Error{Errc::kInternal, std::string("muster-slurm's answer is malformed: ") + e.what()};
  }
  return job;
}

json ErrorReply(uint64_t id, const Error& error) {
  return {{"id", id}, {"error", {{"code", NameOf(error.code)}, {"message", error.message}}}};
}

Result<json> ParseReply(std::string_view line, uint64_t id) {
  const auto malformed = [&] {
    return Error{Errc::kInternal, "muster-slurm's answer is malformed: " + CleanText(line)};
  };
  json reply = json::parse(line, nullptr, false);
  if (!reply.is_object()) return malformed();
  const auto of = reply.find("id");
  if (of == reply.end() || !of->is_number_unsigned() || *of != id) return malformed();
  if (const auto ok = reply.find("ok"); ok != reply.end() && ok->is_object()) return std::move(*ok);
  const auto error = reply.find("error");
  if (error == reply.end() || !error->is_object()) return malformed();
  const auto code = error->find("code");
  const auto message = error->find("message");
  if (code == error->end() || !code->is_string() || message == error->end() || !message->is_string()) {
    return malformed();
  }
  return Error{CodeOf(code->get<std::string>()), message->get<std::string>()};
}

std::string CleanText(std::string_view text) {
  size_t size = std::min(text.size(), kMaxText);
  // Not in the middle of a character.
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  std::string clean(text.substr(0, size));
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return clean;
}

}  // namespace muster::slurm
