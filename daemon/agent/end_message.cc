#include "daemon/agent/end_message.h"

namespace muster {

v1::MemberExited EndOf(uint32_t task, const NodeMember& member) {
  v1::MemberExited message;
  message.set_task(task);
  message.set_generation(member.generation);
  message.set_status(member.end->status);
  message.set_pid(member.end->pid);
  message.set_oom_killed(member.end->oom_killed);
  message.set_supervisor_lost(member.end->supervisor_lost);
  message.set_time_ns(member.end->time_ns);
  message.set_program(member.end->program);
  message.set_stderr_tail(member.end->stderr_tail);
  for (const MemberEnd::Fact& fact : member.end->facts) {
    v1::KernelFact* said = message.add_facts();
    said->set_fact_class(fact.fact_class);
    said->set_text(fact.text);
    said->set_meaning(fact.meaning);
  }
  return message;
}

v1::AgentMessage EndMessage(const std::string& gang, uint32_t task, const NodeMember& member) {
  v1::AgentMessage message;
  message.set_gang(gang);
  *message.mutable_exited() = EndOf(task, member);
  return message;
}

}  // namespace muster
