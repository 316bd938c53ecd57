#include "daemon/partner/partner_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "daemon/partner/background.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/stream.h"
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

constexpr size_t kMostConnections = 256;
constexpr int kMostOfOne = 64;
constexpr auto kIdle = std::chrono::milliseconds(15'000);
constexpr int kReapMs = 1'000;

bool SameHost(BeatAddress a, BeatAddress b) {
  for (BeatAddress* address : {&a, &b}) {
    if (address->get()->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(address->get())->sin_port = 0;
    if (address->get()->sa_family == AF_INET6) address->storage.sin6_port = 0;
  }
  return a == b;
}

CopyName NameOf(const v1::CopyOffer& offer) {
  return {offer.gang(), offer.generation(), offer.step(), offer.shard().rank()};
}

}  // namespace

Result<std::unique_ptr<PartnerServer>> PartnerServer::Start(PartnerServerOptions options,
                                                            PartnerStock stock) {
  const bool six = options.listen_address.find(':') != std::string::npos;
  const auto address = ResolveBeatAddress(options.listen_address, options.port, six ? AF_INET6 : AF_INET);
  if (!address) return address.error();
  UniqueFd socket(::socket(address->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (socket.valid()) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  BeatAddress bound;
  bound.size = sizeof bound.storage;
  if (!socket.valid() || ::bind(socket.get(), address->get(), address->size) != 0 ||
      ::listen(socket.get(), 64) != 0 || ::getsockname(socket.get(), bound.get(), &bound.size) != 0) {
    return Error{Errc::kUnavailable, fmt::format("cannot listen on {} port {} (partner_port): {}",
                                                 options.listen_address, options.port, std::strerror(errno))};
  }
  const uint16_t port = ntohs(bound.storage.sin6_port);  // in the same place for IPv4
  return std::unique_ptr<PartnerServer>(
      new PartnerServer(std::move(options), std::move(stock), std::move(socket), port));
}

PartnerServer::PartnerServer(PartnerServerOptions options, PartnerStock stock, UniqueFd socket, uint16_t port)
    : options_(std::move(options)),
      stock_(std::move(stock)),
      socket_(std::move(socket)),
      port_(port),
      listener_([this] { Listen(); }) {}

PartnerServer::~PartnerServer() {
  cancel_->Now();
  listener_.join();
}

void PartnerServer::Listen() {
  while (!cancel_->now()) {
    std::array<pollfd, 2> fds{{{socket_.get(), POLLIN, 0}, {cancel_->fd(), POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), connections_.empty() ? -1 : kReapMs);
    Reap(false);
    if (fds[0].revents == 0) continue;
    BeatAddress from;
    from.size = sizeof from.storage;
    UniqueFd socket(::accept4(socket_.get(), from.get(), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Out of descriptors: what waits stays in the queue, so not at once again.
    if (!socket.valid() && errno != EAGAIN && errno != ECONNABORTED) ::poll(&fds[1], 1, kReapMs);
    if (!socket.valid() || !MayTake(from)) continue;
    const auto shared = std::make_shared<UniqueFd>(std::move(socket));
    Connection& connection = connections_.emplace_back();
    connection.from = from;
    try {
      connection.thread = std::thread([this, &connection, shared] {
        Serve(std::move(*shared));
        connection.over = true;
      });
    } catch (const std::system_error& error) {
      spdlog::warn("a connection for copies of shards: {}", error.what());
      connections_.pop_back();
    }
  }
  Reap(true);
}

void PartnerServer::Reap(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto next = std::next(at);
    if (all || at->over) {
      at->thread.join();
      connections_.erase(at);
    }
    at = next;
  }
}

bool PartnerServer::MayTake(const BeatAddress& from) const {
  const auto of_one = std::count_if(connections_.begin(), connections_.end(),
                                    [&](const Connection& other) { return SameHost(other.from, from); });
  return connections_.size() < kMostConnections && of_one < kMostOfOne;
}

void PartnerServer::Serve(UniqueFd socket) const {
  auto stream = PartnerStream::Accept(std::move(socket), options_.self, options_.service_uid, cancel_);
  if (!stream) return spdlog::debug("a connection for copies of shards: {}", stream.error().message);
  bool background = false;
  // Behind the trainer; for good, and nobody who is in a hurry asks on such a connection.
  const auto step_back = [&] {
    if (std::exchange(background, true)) return;
    BehindTheTrainer();
    (*stream)->StepBack();
  };
  while (true) {
    const auto message = (*stream)->Receive(kIdle);
    if (!message) return;
    Status done = Error{Errc::kInvalid, "a connection begins with an offer or a request"};
    if (message->has_offer()) {
      step_back();
      done = Take(**stream, message->offer());
    } else if (message->has_request()) {
      if (message->request().background()) step_back();
      done = Give(**stream, message->request());
    }
    if (!done) {
      spdlog::debug("copies of shards: {}", done.error().message);
      if (!(*stream)->Send(PartnerRefusal(done.error()))) return;
      // What the other end is sending would not be understood.
      if (done.error().code == Errc::kInvalid || done.error().code == Errc::kCorrupt ||
          done.error().code == Errc::kUnavailable)
        return;
    }
  }
}

Status PartnerServer::Take(PartnerStream& stream, const v1::CopyOffer& offer) const {
  const CopyName name = NameOf(offer);
  const Shard shard = TakeShard(offer.shard());
  v1::PartnerMessage answer;
  {
    PartnerCopies::Dropped dropped;  // let go before the new ones come
    std::vector<uint64_t> missing;
    if (Status taken = stock_.copies->Offer(name, shard, &missing, &dropped); !taken) return taken;
    *answer.mutable_wanted() = WantedMessage(missing);
  }
  if (Status sent = stream.Send(answer); !sent) return sent;
  const auto chunks = ChunksOf(answer.wanted(), shard);
  if (!chunks) return chunks.error();
  // Once their bytes are on the way a refusal ends the connection.
  const auto end = [&](const Error& error) { return Error{Errc::kUnavailable, error.message}; };
  for (const uint64_t index : *chunks) {
    const auto room = stock_.copies->RoomFor(shard.BytesOf(index));
    if (!room) return end(room.error());
    const auto good = ReceiveChunk(
        stream, shard, index,
        [&](uint64_t offset, std::span<const std::byte> piece) { return (*room)->Write(offset, piece); });
    if (!good) return end(good.error());
    if (!*good) {
      return Error{Errc::kCorrupt, fmt::format("chunk {} of rank {}, step {}, is not what its digest says",
                                               index, name.rank, name.step)};
    }
    if (Status put = stock_.copies->Put(name, index, *room); !put) return end(put.error());
  }
  v1::PartnerMessage held;
  held.mutable_held();
  spdlog::debug("gang {}: rank {}'s shard of step {} is kept here, {} of its {} chunks are new", name.gang,
                name.rank, name.step, chunks->size(), shard.chunks.size());
  return stream.Send(held);
}

Status PartnerServer::Give(PartnerStream& stream, const v1::CopyRequest& request) const {
  const auto supply = stock_.Find({request.gang(), request.generation(), request.step(), request.rank()});
  if (!supply) return supply.error();
  v1::PartnerMessage message;
  v1::CopyFound* found = message.mutable_found();
  PutShard(supply->shard, found->mutable_shard());
  found->mutable_present()->Add(supply->present.begin(), supply->present.end());
  found->mutable_with()->Add(supply->with.begin(), supply->with.end());
  if (Status sent = stream.Send(message); !sent) return sent;
  const auto answer = stream.Receive(kIdle);
  if (!answer) return answer.error();
  if (!answer->has_wanted()) return Error{Errc::kInvalid, "chunks are to be named now"};
  const auto chunks = ChunksOf(answer->wanted(), supply->shard);
  if (!chunks) return chunks.error();
  for (const uint64_t chunk : *chunks) {
    stream.SetDeadline(kChunkTime);
    // Where bytes are due no message would be understood: the connection ends.
    if (Status sent = supply->send(stream, chunk); !sent)
      return Error{Errc::kUnavailable, sent.error().message};
  }
  return {};
}

}  // namespace muster
