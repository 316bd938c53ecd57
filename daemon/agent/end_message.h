// How a member has ended, as the coordinator is told.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/agent/node_member.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

// For a registration. The member has ended.
v1::MemberExited EndOf(uint32_t task, const NodeMember& member);
// As a message of its own.
v1::AgentMessage EndMessage(const std::string& gang, uint32_t task, const NodeMember& member);

}  // namespace muster
