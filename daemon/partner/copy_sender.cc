#include "daemon/partner/copy_sender.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ceph/catalog/digest.h"
#include "daemon/partner/background.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/stream.h"
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

constexpr auto kAnswer = std::chrono::milliseconds(15'000);

// By reading, not through a mapping: the memory can be sealed then at any time, and needs no sealing now.
Status ReadStaged(int memory, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(memory, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Error{Errc::kInternal, fmt::format("the staged shard cannot be read at byte {}: {}", offset,
                                                n == 0 ? "it ends there" : std::strerror(errno))};
    }
    offset += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
  return {};
}

// kConflict: it holds something else by now.
Status ReadChunk(const CommittedShard& from, uint64_t chunk, std::span<std::byte> into) {
  Digester digester;
  for (size_t at = 0; at < into.size(); at += kPiece) {
    const auto piece = into.subspan(at, std::min(kPiece, into.size() - at));
    Status read = ReadStaged(from.memory->fd(), chunk * from.shard.chunk_bytes + at, piece);
    if (!read) return read;
    digester.Add(piece);
  }
  if (digester.Get() == from.shard.chunks[chunk]) return {};
  return Error{Errc::kConflict, "the program has written over it meanwhile"};
}

}  // namespace

CopySender::CopySender(std::string gang, std::string partner, uint16_t port)
    : gang_(std::move(gang)), partner_(std::move(partner)), port_(port), thread_([this] { Run(); }) {}

CopySender::~CopySender() {
  {
    const std::lock_guard lock(mutex_);
    cancel_->Now();
  }
  wake_.notify_one();
  thread_.join();
}

std::optional<CommittedShard> CopySender::Push(CommittedShard shard) {
  std::optional<CommittedShard> overtaken;
  {
    const std::lock_guard lock(mutex_);
    const auto older = std::find_if(waiting_.begin(), waiting_.end(), [&](const CommittedShard& one) {
      return one.shard.rank == shard.shard.rank;
    });
    if (older != waiting_.end()) {
      overtaken = std::move(*older);
      waiting_.erase(older);
    }
    waiting_.push_back(std::move(shard));
  }
  wake_.notify_one();
  return overtaken;
}

void CopySender::Run() {
  BehindTheTrainer();
  std::unique_ptr<PartnerStream> stream;
  std::unique_lock lock(mutex_);
  while (true) {
    // A connection lasts while there is something to send: saves are seconds apart, and it costs milliseconds.
    if (waiting_.empty()) stream.reset();
    wake_.wait(lock, [this] { return cancel_->now() || !waiting_.empty(); });
    if (cancel_->now()) return;
    std::optional<CommittedShard> shard = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    lock.unlock();
    if (!stream) {
      auto opened = PartnerStream::Connect(partner_, port_, Urgency::kBackground, cancel_);
      if (opened) {
        stream = *std::move(opened);
      } else {
        Complain(opened.error());
      }
    }
    if (stream) {
      uint64_t sent = 0;
      const Status copied = Copy(*stream, *shard, &sent);
      if (!copied) {
        Complain(copied.error());
        stream.reset();
      } else {
        complaint_.reset();
        spdlog::debug("gang {}: rank {}'s shard of step {} is kept by {} too, {} of its {} bytes were sent",
                      gang_, shard->shard.rank, shard->step, partner_, sent, shard->shard.bytes);
      }
    }
    shard.reset();
    lock.lock();
  }
}

Status CopySender::Copy(PartnerStream& stream, const CommittedShard& shard, uint64_t* sent) const {
  v1::PartnerMessage message;
  v1::CopyOffer* offer = message.mutable_offer();
  offer->set_gang(gang_);
  offer->set_generation(shard.generation);
  offer->set_step(shard.step);
  PutShard(shard.shard, offer->mutable_shard());
  if (Status offered = stream.Send(message); !offered) return offered;
  const auto answer = stream.Receive(kAnswer);
  if (!answer) return answer.error();
  if (!answer->has_wanted()) return Error{Errc::kInvalid, "it has not said what it wants"};
  const auto chunks = ChunksOf(answer->wanted(), shard.shard);
  if (!chunks) return chunks.error();
  std::vector<std::byte> buffer;
  for (const uint64_t chunk : *chunks) {
    if (Status wanted = cancel_->Check(); !wanted) return wanted;
    buffer.resize(shard.shard.BytesOf(chunk));
    if (Status read = ReadChunk(shard, chunk, buffer); !read) return read;
    stream.SetDeadline(kChunkTime);
    if (Status written = stream.SendBytes(buffer); !written) {
      // It may have said why it does not take more.
      const auto refusal = stream.Receive(std::chrono::milliseconds(100));
      return refusal ? written : Status(refusal.error());
    }
    *sent += buffer.size();
  }
  const auto held = stream.Receive(kAnswer);
  if (!held) return held.error();
  if (!held->has_held()) return Error{Errc::kInvalid, "it has not said that it has it"};
  return {};
}

// Once for one kind of reason: the next checkpoint may meet the same.
void CopySender::Complain(const Error& why) {
  if (cancel_->now() || why.code == complaint_) return;
  complaint_ = why.code;
  spdlog::info("gang {}: no second copy on {}: {}", gang_, partner_, why.message);
}

}  // namespace muster
