#include "net/preflight/line_stream.h"

#include <array>
#include <span>

#include "net/rendezvous/socket.h"

namespace muster::preflight {

using nlohmann::json;

Status LineStream::Send(const json& message, Deadline deadline) const {
  const std::string line = message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  return rendezvous::SendAll(fd_.get(), std::as_bytes(std::span(line)), deadline);
}

Result<json> LineStream::Receive(Deadline deadline) {
  for (;;) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      json message = json::parse(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(end),
                                 nullptr, false);
      received_.erase(0, end + 1);
      if (!message.is_object()) return Error{Errc::kInvalid, "a message is no JSON object"};
      return message;
    }
    if (received_.size() > kMaxLine) return Error{Errc::kInvalid, "a message is too long"};
    std::array<std::byte, 4096> buffer{};
    const auto got = rendezvous::ReceiveSome(fd_.get(), buffer, deadline);
    if (!got) return got.error();
    received_.append(reinterpret_cast<const char*>(buffer.data()), *got);
  }
}

}  // namespace muster::preflight
