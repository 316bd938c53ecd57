// A connection between two nodes about copies of shards: authenticated messages, and between them runs of plain bytes,
// which are worth what the digests in a message say. docs/formats.md has it to the byte.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/auth/auth_session.h"
#include "daemon/partner/cancel.h"
#include "daemon/proto/partner.pb.h"

namespace muster {

// Whether the network should carry it behind everything else.
enum class Urgency { kBackground, kNow };

// One thread at a time; whoever cancels may be another. Every call ends by its deadline, kUnavailable then, and after an
// error the stream is of no use any more.
class PartnerStream {
 public:
  using Clock = std::chrono::steady_clock;

  // Opens a connection to the daemon of `node`, and proves who it is. May block longer where the resolver or munged does.
  static Result<std::unique_ptr<PartnerStream>> Connect(const std::string& node, uint16_t port,
                                                        Urgency urgency,
                                                        std::shared_ptr<const Cancel> cancel);
  // The other end. kDenied: it is none of a node's daemon that means `self`.
  static Result<std::unique_ptr<PartnerStream>> Accept(UniqueFd socket, const std::string& self,
                                                       uint32_t service_uid,
                                                       std::shared_ptr<const Cancel> cancel);

  Status Send(const v1::PartnerMessage& message);
  // A refusal is the error that it names.
  Result<v1::PartnerMessage> Receive(std::chrono::milliseconds within);
  Status SendBytes(std::span<const std::byte> data);
  // From a file, without a copy.
  Status SendFile(int file, uint64_t at, uint64_t bytes);
  Status ReceiveBytes(std::span<std::byte> into);
  // From here on the network should carry what is sent behind everything else.
  void StepBack();
  // For bytes, from here on: so many within so long.
  void SetDeadline(std::chrono::milliseconds within) { deadline_ = Clock::now() + within; }

 private:
  PartnerStream(UniqueFd socket, std::shared_ptr<const Cancel> cancel, Direction out, Direction in)
      : socket_(std::move(socket)), cancel_(std::move(cancel)), out_(out), in_(in) {}
  Status SendEnvelope(std::string payload, const std::string& credential);
  Result<std::string> ReceiveEnvelope(size_t most, const std::string* self, uint32_t service_uid);
  Status Wait(short events);

  const UniqueFd socket_;
  const std::shared_ptr<const Cancel> cancel_;
  const Direction out_;
  const Direction in_;
  std::string key_;
  uint64_t next_out_ = 0;
  uint64_t next_in_ = 0;
  Clock::time_point deadline_;
};

v1::PartnerMessage PartnerRefusal(const Error& error);

}  // namespace muster
