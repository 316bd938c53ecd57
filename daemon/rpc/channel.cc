#include "daemon/rpc/channel.h"

#include <absl/synchronization/mutex.h>

#include "daemon/auth/munge.h"
#include "daemon/proto/shard_message.h"
#include "daemon/rpc/ask_daemon.h"

namespace muster {

// With what is around a shard in its messages: a few numbers, and sentences.
static_assert(kMaxShardMessage + (1 << 20) <= kMaxRpcMessage);

void PrepareGrpc() {
  static const bool once = [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return true;
  }();
  (void)once;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  PrepareGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // How long one attempt to connect may take. A host without power says nothing, and gRPC would wait for 20 s.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookahead);
  arguments.SetMaxReceiveMessageSize(kMaxRpcMessage);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

Result<uint32_t> AcceptQuestion(const std::string& credential, const std::string& self,
                                const std::string& question) {
  auto decoded = MungeDecode(credential);
  if (!decoded) return decoded.error();
  if (decoded->payload != QuestionCredentialPayload(self, question)) {
    return Error{Errc::kDenied, "the credential is not for this question to " + self};
  }
  return decoded->uid;
}

}  // namespace muster
