// gRPC settings that the daemon and the command share.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "daemon/base/result.h"

namespace muster {

inline constexpr int kMaxRpcMessage = 16 << 20;  // bytes: the digests of a 4 TiB shard
inline constexpr char kCredentialKey[] = "muster-credential";

// A channel of its own, so that one connection's back-off never delays another's; no proxy from the
// environment.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Checks a question's credential; gives the asker's uid.
Result<uint32_t> AcceptQuestion(const std::string& credential, const std::string& self,
                                const std::string& question);

}  // namespace muster
