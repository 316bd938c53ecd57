// What a gang's record says of the gang, and what the coordinator that takes the record over goes on from. Pure: no I/O, clock or
// thread.
#pragma once

#include <optional>
#include <string>

#include "daemon/coordinator/record.h"
#include "daemon/coordinator/record_fence.h"
#include "daemon/coordinator/starts.h"
#include "daemon/coordinator/terms.h"
#include "daemon/gang/gang.h"

namespace muster {

// What a coordinator has of its gang.
struct RecordParts {
  const GangJob& job;
  const std::string& coordinator;  // its host
  const RecordFence& fence;
  const gang::Gang* gang = nullptr;  // null: the record is not this coordinator's yet
  const Starts& starts;
  const Terms& terms;
};
// All that another coordinator needs, and of what only people read that which the parts say.
GangRecord RecordOf(const RecordParts& parts);
void SetWitnesses(Terms::Sets sets, GangRecord* record);

inline bool Is(const GangRecord& record, gang::State state) {
  return record.state == gang::ToString(state);
}
// What the state machine of the next coordinator begins with.
gang::Memory MemoryOf(const GangRecord& record);
// None: no member has run under this record.
std::optional<Terms::Found> TermsOf(const GangRecord& record);
// What the generation that runs has started from.
void Inherit(const GangRecord& record, Starts* starts);

}  // namespace muster
