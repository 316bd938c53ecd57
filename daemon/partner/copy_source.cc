#include "daemon/partner/copy_source.h"

#include <utility>

#include "daemon/partner/copy_io.h"
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

constexpr auto kSourceAnswer = std::chrono::milliseconds(3'000);

}  // namespace

Status CopySource::Want(const std::vector<uint64_t>& runs) {
  v1::PartnerMessage message;
  *message.mutable_wanted() = WantedMessage(runs);
  return stream->Send(message);
}

Result<CopySource> AskForSource(std::unique_ptr<PartnerStream>& stream, const CopyName& name, bool background,
                                uint64_t max_shard_bytes) {
  CopySource source;
  v1::PartnerMessage message;
  v1::CopyRequest* request = message.mutable_request();
  request->set_gang(name.gang);
  request->set_generation(name.generation);
  request->set_step(name.step);
  request->set_rank(name.rank);
  request->set_background(background);
  if (Status sent = stream->Send(message); !sent) return sent.error();
  const auto answer = stream->Receive(kSourceAnswer);
  if (!answer) return answer.error();
  if (!answer->has_found()) return Error{Errc::kInvalid, "it has not said what it has"};
  const v1::CopyFound& found = answer->found();
  source.shard = TakeShard(found.shard());
  if (Status good = CheckShardNumbers(source.shard, max_shard_bytes); !good) return good.error();
  if (source.shard.rank != name.rank) return Error{Errc::kInvalid, "it has another rank's shard"};
  source.present.assign(found.present().begin(), found.present().end());
  source.with.assign(found.with().begin(), found.with().end());
  if (const auto chunks = ChunksOf(WantedMessage(source.present), source.shard); !chunks)
    return chunks.error();
  source.stream = std::move(stream);
  return source;
}

Result<CopySource> OpenSource(const std::string& node, uint16_t port, Urgency urgency, const CopyName& name,
                              uint64_t max_shard_bytes, const std::shared_ptr<const Cancel>& cancel) {
  auto stream = PartnerStream::Connect(node, port, urgency, cancel);
  if (!stream) return stream.error();
  return AskForSource(*stream, name, urgency == Urgency::kBackground, max_shard_bytes);
}

}  // namespace muster
