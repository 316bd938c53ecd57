// Which roles a gang has, from its components.
#pragma once

#include "daemon/gang/gang.h"
#include "daemon/gang_job/gang_job.h"

namespace muster {

// Fills in `roles` and `node_roles`. Ranks follow the roles: the chief's component first, then the tracked ones', so that
// those who train together have the ranks from 0 on; then services, untracked members, sidecars.
void SetRoles(const GangJob& job, gang::Settings* settings);

}  // namespace muster
