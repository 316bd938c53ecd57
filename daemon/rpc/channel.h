// gRPC settings that the daemon and the command share.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace muster {

inline constexpr int kMaxRpcMessage = 16 << 20;  // bytes: a shard with all its chunks (kMaxShardMessage)
// What may be on its way unread. In place of gRPC's own estimate, which costs a ping and its timers for each message.
inline constexpr int kLookahead = 1 << 20;
inline constexpr int kConnectMs = 5'000;  // TCP asks twice again by then
inline constexpr char kCredentialKey[] = "muster-credential";

// To be called before gRPC is used; more than once is fine. Its locks (Abseil's) may have been built to look for
// deadlocks, as Debian's are: each then goes through one lock and one graph for the whole process, which takes a third
// of the time of many connections that come at once.
void PrepareGrpc();

// A channel of its own, so that one connection's back-off never delays another's; no proxy from the
// environment.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Checks a question's credential; gives the asker's uid.
Result<uint32_t> AcceptQuestion(const std::string& credential, const std::string& self,
                                const std::string& question);

}  // namespace muster
