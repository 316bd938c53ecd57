// Copies of shards between two nodes: real sockets on the loopback, a real munged, and peers that misbehave.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "ceph/catalog/digest.h"
#include "ceph/engine/shard_memory.h"
#include "daemon/partner/copy_fetch.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/copy_sender.h"
#include "daemon/partner/partner_server.h"
#include "daemon/partner/stream.h"
#include "daemon/proto/shard_message.h"
#include "tests/unit/daemon/partner_peers.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = kTestChunk;
constexpr uint64_t kLimit = 64 << 20;
const std::string kNode = "127.0.0.1";  // its name is its address

// A connection without the protocol.
UniqueFd Raw(uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

// Whether the other end closes within so long.
bool Closes(const UniqueFd& socket) {
  const timeval limit{20, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 0;
  ssize_t n = 0;
  do n = ::recv(socket.get(), &byte, 1, 0);
  while (n > 0);
  return n == 0 || errno == ECONNRESET;
}

class PartnerSession : public PartnerPeers {
 protected:
  void SetUp() override {
    PartnerPeers::SetUp();
    if (IsSkipped()) return;
    stock_ = MakeStock(kLimit);
    auto server = PartnerServer::Start({kNode, 0, kNode, ::geteuid()}, stock_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
    EXPECT_TRUE(stock_.copies->Begin("g", 1, {0, 1}, 0, 0).empty());
  }
  [[nodiscard]] Result<std::unique_ptr<PartnerStream>> Open() const {
    return PartnerStream::Connect(kNode, server_->port(), Urgency::kNow, std::make_shared<Cancel>());
  }
  [[nodiscard]] Result<FetchedCopy> Fetch(uint64_t step, uint32_t rank = 0) const {
    return FetchCopy(kNode, server_->port(), {"g", 1, step, rank}, kLimit, std::make_shared<Cancel>());
  }
  // Waits until these chunks of a copy are here, or, without them, all.
  bool Kept(uint64_t step, uint32_t rank = 0, const std::vector<uint64_t>& runs = {}) {
    return Eventually([&] {
      const ShardCopy copy = stock_.copies->Find({"g", 1, step, rank});
      if (!copy.shard) return false;
      return runs.empty() ? ChunkRuns(copy.chunks, false).empty() : ChunkRuns(copy.chunks, true) == runs;
    });
  }
  static v1::PartnerMessage Offer(uint64_t step, const Shard& shard) {
    v1::PartnerMessage message;
    message.mutable_offer()->set_gang("g");
    message.mutable_offer()->set_generation(1);
    message.mutable_offer()->set_step(step);
    PutShard(shard, message.mutable_offer()->mutable_shard());
    return message;
  }
  // That what others do has harmed nobody.
  void StillServes() {
    const std::string content = Content(kChunk + 1, 99);
    CopySender sender("g", kNode, server_->port());
    sender.Push({1, 1'000, ShardOf(1, content), Staged(content)});
    ASSERT_TRUE(Kept(1'000, 1));
    const auto copy = Fetch(1'000, 1);
    ASSERT_TRUE(copy) << copy.error().message;
    EXPECT_EQ(Read(copy->memory, content.size()), content);
  }

  PartnerStock stock_;
  std::unique_ptr<PartnerServer> server_;
};

TEST_F(PartnerSession, AShardComesBackAsItWas) {
  const std::string content = Content(5 * kChunk + 17, 1);
  CopySender sender("g", kNode, server_->port());
  sender.Push({1, 10, ShardOf(0, content), Staged(content)});
  ASSERT_TRUE(Kept(10));
  const auto copy = Fetch(10);
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_TRUE(copy->Whole());
  EXPECT_EQ(copy->problem, "");
  EXPECT_EQ(Read(copy->memory, content.size()), content);
  EXPECT_EQ(::fcntl(copy->memory.get(), F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE);
  EXPECT_EQ(copy->shard.prefix, "data/k/1.1.1/0");
}

TEST_F(PartnerSession, TheNextCheckpointSendsWhatHasChanged) {
  std::string content = Content(8 * kChunk, 1);
  CopySender sender("g", kNode, server_->port());
  sender.Push({1, 10, ShardOf(0, content), Staged(content)});
  ASSERT_TRUE(Kept(10));
  content[3 * kChunk] ^= 1;
  PartnerCopies::Dropped dropped;
  auto stream = Open();
  ASSERT_TRUE(stream) << stream.error().message;
  ASSERT_TRUE((*stream)->Send(Offer(20, ShardOf(0, content))));
  const auto wanted = (*stream)->Receive(milliseconds(20'000));
  ASSERT_TRUE(wanted && wanted->has_wanted());
  EXPECT_THAT(wanted->wanted().runs(), ::testing::ElementsAre(3, 1));
  // Another connection offers the same: that one is as good.
  sender.Push({1, 20, ShardOf(0, content), Staged(content)});
  ASSERT_TRUE(Kept(20));
  EXPECT_EQ(Read(Fetch(20)->memory, content.size()), content);
}

TEST_F(PartnerSession, WhatTheProgramHasWrittenOverIsNotSentAndTheNextOneIs) {
  const std::string content = Content(4 * kChunk, 1);
  std::string torn = content;
  torn[2 * kChunk + 5] ^= 1;
  CopySender sender("g", kNode, server_->port());
  sender.Push({1, 10, ShardOf(0, content), Staged(torn)});
  sender.Push({1, 10, ShardOf(1, content), Staged(content)});
  ASSERT_TRUE(Kept(10, 1));
  ASSERT_TRUE(Kept(10, 0, {0, 2}));
  const auto part = Fetch(10, 0);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->have, (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(part->bytes, 2 * kChunk);
  EXPECT_THAT(part->problem, HasSubstr("not all"));
}

TEST_F(PartnerSession, ADamagedChunkIsLeftOut) {
  const std::string content = Content(4 * kChunk, 1);
  CopySender sender("g", kNode, server_->port());
  sender.Push({1, 10, ShardOf(0, content), Staged(content)});
  ASSERT_TRUE(Kept(10));
  const ShardCopy copy = stock_.copies->Find({"g", 1, 10, 0});
  const char bad = static_cast<char>(content[kChunk + 9] ^ 1);
  ASSERT_EQ(::pwrite(copy.chunks[1]->fd(), &bad, 1, static_cast<off_t>(copy.chunks[1]->at() + 9)), 1);
  const auto got = Fetch(10);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->have, (std::vector<bool>{true, false, true, true}));
  EXPECT_THAT(got->problem, HasSubstr("damaged"));
}

TEST_F(PartnerSession, WhatIsNotKeptIsNotFound) {
  const auto none = Fetch(10);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kNotFound);
}

TEST_F(PartnerSession, AChunkThatIsNotWhatItsDigestSaysIsRefused) {
  const std::string content = Content(2 * kChunk, 1);
  auto stream = Open();
  ASSERT_TRUE(stream) << stream.error().message;
  ASSERT_TRUE((*stream)->Send(Offer(10, ShardOf(0, content))));
  ASSERT_TRUE((*stream)->Receive(milliseconds(20'000)));
  const std::string other = Content(2 * kChunk, 2);
  (*stream)->SetDeadline(milliseconds(20'000));
  ASSERT_TRUE((*stream)->SendBytes(std::as_bytes(std::span(other))));
  const auto answer = (*stream)->Receive(milliseconds(20'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kCorrupt);
  EXPECT_EQ(Fetch(10).error().code, Errc::kNotFound);
  StillServes();
}

TEST_F(PartnerSession, ASenderThatEndsInTheMiddleLeavesWhatItHasSent) {
  const std::string content = Content(3 * kChunk, 1);
  {
    auto stream = Open();
    ASSERT_TRUE(stream) << stream.error().message;
    ASSERT_TRUE((*stream)->Send(Offer(10, ShardOf(0, content))));
    ASSERT_TRUE((*stream)->Receive(milliseconds(20'000)));
    (*stream)->SetDeadline(milliseconds(20'000));
    ASSERT_TRUE((*stream)->SendBytes(std::as_bytes(std::span(content)).first(kChunk + 100)));
  }
  StillServes();
  ASSERT_TRUE(Kept(10, 0, {0, 1}));
  const auto part = Fetch(10);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->bytes, kChunk);
}

TEST_F(PartnerSession, NumbersOfAStrangeShardAreRefused) {
  Shard shard = ShardOf(0, Content(2 * kChunk, 1));
  for (const uint64_t bytes : {uint64_t{0}, kLimit + 1, UINT64_MAX}) {
    shard.bytes = bytes;
    auto stream = Open();
    ASSERT_TRUE(stream) << stream.error().message;
    ASSERT_TRUE((*stream)->Send(Offer(10, shard)));
    const auto answer = (*stream)->Receive(milliseconds(20'000));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Errc::kInvalid);
  }
  StillServes();
}

TEST_F(PartnerSession, WhoCannotProveWhoItIsIsClosedOut) {
  // Nothing; another protocol; a length that is too long; a message without a credential; one that is cut off.
  v1::Envelope envelope;
  envelope.set_payload("x");
  std::string empty(4, '\0');
  envelope.AppendToString(&empty);
  empty[0] = static_cast<char>(empty.size() - 4);
  for (const std::string& bytes :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\xff\xff\xff\xff"), empty,
        std::string("\x40\0\0\0half", 8)}) {
    const UniqueFd socket = Raw(server_->port());
    ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_TRUE(Closes(socket)) << bytes;
  }
  StillServes();
}

TEST_F(PartnerSession, ACredentialForAnotherNodeIsRefused) {
  // The address is the server's, the name that it is meant for is not.
  server_.reset();
  auto server = PartnerServer::Start({kNode, 0, "another", ::geteuid()}, stock_);
  ASSERT_TRUE(server);
  server_ = *std::move(server);
  auto stream = Open();
  ASSERT_TRUE(stream) << stream.error().message;
  ASSERT_TRUE((*stream)->Send(Offer(10, ShardOf(0, Content(kChunk, 1)))));
  const auto answer = (*stream)->Receive(milliseconds(20'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kUnavailable);
  EXPECT_FALSE(stock_.copies->Find({"g", 1, 10, 0}).shard);
}

TEST_F(PartnerSession, SilentConnectionsCostNobodyElse) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(Raw(server_->port()));
  StillServes();
}

TEST_F(PartnerSession, AFetchFromOneThatDoesNotAnswerEnds) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto cancel = std::make_shared<Cancel>();
  const auto got = FetchCopy(kNode, ntohs(address.sin_port), {"g", 1, 10, 0}, kLimit, cancel);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Errc::kUnavailable);
  cancel->Now();
  EXPECT_FALSE(FetchCopy(kNode, ntohs(address.sin_port), {"g", 1, 10, 0}, kLimit, cancel));
}

// A partner that says it has a shard, and then does something else.
class FalsePartner {
 public:
  explicit FalsePartner(std::function<void(PartnerStream&)> behave)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, behave = std::move(behave)] {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      auto stream = PartnerStream::Accept(std::move(socket), kNode, ::geteuid(), std::make_shared<Cancel>());
      if (stream && (*stream)->Receive(milliseconds(20'000))) behave(**stream);
    });
  }
  ~FalsePartner() { thread_.join(); }
  [[nodiscard]] Result<FetchedCopy> Fetch() const {
    return FetchCopy(kNode, port_, {"g", 1, 10, 0}, kLimit, std::make_shared<Cancel>());
  }

 private:
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

v1::PartnerMessage FoundMessage(const Shard& shard) {
  v1::PartnerMessage found;
  PutShard(shard, found.mutable_found()->mutable_shard());
  found.mutable_found()->add_present(0);
  found.mutable_found()->add_present(shard.chunks.size());
  return found;
}

TEST_F(PartnerSession, APartnerThatStopsInTheMiddleHasGivenWhatItGave) {
  const std::string content = Content(3 * kChunk, 1);
  const FalsePartner partner([&](PartnerStream& stream) {
    EXPECT_TRUE(stream.Send(FoundMessage(ShardOf(0, content))));
    EXPECT_TRUE(stream.Receive(milliseconds(20'000)));
    EXPECT_TRUE(stream.SendBytes(std::as_bytes(std::span(content)).first(2 * kChunk + 1)));
  });
  const auto got = partner.Fetch();
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->have, (std::vector<bool>{true, true, false}));
  EXPECT_THAT(got->problem, HasSubstr("closed"));
}

TEST_F(PartnerSession, APartnerThatSendsSomethingElseHasGivenNothing) {
  const std::string content = Content(2 * kChunk, 1);
  const FalsePartner partner([&](PartnerStream& stream) {
    EXPECT_TRUE(stream.Send(FoundMessage(ShardOf(0, content))));
    EXPECT_TRUE(stream.Receive(milliseconds(20'000)));
    const std::string other = Content(2 * kChunk, 2);
    EXPECT_TRUE(stream.SendBytes(std::as_bytes(std::span(other))));
  });
  const auto got = partner.Fetch();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Errc::kCorrupt);
}

TEST_F(PartnerSession, APartnersStrangeNumbersAreNotBelieved) {
  const Shard good = ShardOf(0, Content(2 * kChunk, 1));
  Shard large = good;
  large.bytes = kLimit + 1;
  Shard others = good;
  others.rank = 1;
  v1::PartnerMessage beyond = FoundMessage(good);
  beyond.mutable_found()->set_present(1, 3);
  v1::PartnerMessage odd = FoundMessage(good);
  odd.mutable_found()->add_present(1);
  v1::PartnerMessage none;
  none.mutable_held();
  for (const v1::PartnerMessage& message : {FoundMessage(large), FoundMessage(others), beyond, odd, none}) {
    const FalsePartner partner([&](PartnerStream& stream) { EXPECT_TRUE(stream.Send(message)); });
    const auto got = partner.Fetch();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Errc::kInvalid);
  }
}

TEST_F(PartnerSession, AMessageThatWasChangedOnTheWayEndsTheConnection) {
  // Signed with another key: who has read a credential does not have it.
  const UniqueFd socket = Raw(server_->port());
  const auto opening = OpenSession(kNode);
  ASSERT_TRUE(opening);
  v1::Envelope envelope;
  envelope.set_credential(opening->credential);
  envelope.set_mac(Mac("another key", Direction::kToPartner, 0, ""));
  std::string frame(4, '\0');
  envelope.AppendToString(&frame);
  for (size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>((frame.size() - 4) >> (8 * i));
  ASSERT_EQ(::send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(frame.size()));
  EXPECT_TRUE(Closes(socket));
}

}  // namespace
}  // namespace muster
