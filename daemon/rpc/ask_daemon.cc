#include "daemon/rpc/ask_daemon.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <chrono>

#include "daemon/auth/auth_session.h"
#include "daemon/auth/munge.h"
#include "daemon/proto/muster.grpc.pb.h"
#include "daemon/rpc/channel.h"

namespace muster {

std::string QuestionCredentialPayload(const std::string& receiver, const std::string& question) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(question.data()), question.size(), digest.data());
  return fmt::format("muster-query-1\n{}\n{}", receiver,
                     HexEncode({reinterpret_cast<const char*>(digest.data()), digest.size()}));
}

Result<std::string> AskDaemon(const std::string& node, const std::string& address,
                              const std::string& question, int timeout_seconds) {
  v1::Question parsed;
  if (!parsed.ParseFromString(question)) return Error{Errc::kInternal, "malformed question"};
  auto credential = MungeEncode(QuestionCredentialPayload(node, question));
  if (!credential) return credential.error();
  const auto stub = v1::Query::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(timeout_seconds));
  context.AddMetadata(kCredentialKey, *credential);
  v1::Answer answer;
  const grpc::Status status = stub->Ask(&context, parsed, &answer);
  if (!status.ok()) {
    const bool denied = status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    return Error{denied ? Errc::kDenied : Errc::kUnavailable,
                 fmt::format("musterd of {} at {}: {}", node, address, status.error_message())};
  }
  return answer.SerializeAsString();
}

}  // namespace muster
