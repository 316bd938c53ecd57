// The variables that identify a member: its place in the gang, its rendezvous, its token. A program that has them acts as that member.
#pragma once

namespace muster::wire {

// All that daemon/agent/member_environment.cc and the supervisor set, but Slurm's own variables and NCCL's, which say nothing of a member.
inline constexpr const char* kMemberVariables[] = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "TF_CONFIG",
    "MUSTER_CLUSTER_SPEC",
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_SERVER",
    "DMLC_NUM_WORKER",
    "MUSTER_GANG",
    "MUSTER_GENERATION",
    "MUSTER_RANK",
    "MUSTER_ROLE",
    "MUSTER_ROLE_RANK",
    "MUSTER_ROLES",
    "MUSTER_RESTART_CAUSE",
    "MUSTER_TOKEN",
    "MUSTER_SOCKET",
    "MUSTER_FILES",
    "MUSTER_CHECKPOINT_DIR",
    "MUSTER_WARM",
};

}  // namespace muster::wire
