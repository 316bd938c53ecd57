// Links and questions between daemons: real gRPC on the loopback, a real munged.
#include "daemon/rpc/grpc_link.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/agent/port_lease.h"
#include "daemon/auth/auth_session.h"
#include "daemon/proto/muster.grpc.pb.h"
#include "daemon/rpc/ask_daemon.h"
#include "tests/unit/daemon/private_munge.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

void RunHere(const std::function<void()>& work) {
  work();
}

// What one end of a link heard.
class End {
 public:
  LinkEvents Events() {
    return {[this](std::string message) {
              const std::lock_guard lock(mutex_);
              if (closed_ > 0) late_ = true;
              messages_.push_back(std::move(message));
              changed_.notify_all();
            },
            [this](const std::string& why) {
              const std::lock_guard lock(mutex_);
              ++closed_;
              why_ = why;
              changed_.notify_all();
            }};
  }
  bool WaitForMessages(size_t count) {
    return WaitFor([&] { return messages_.size() >= count; });
  }
  bool WaitForClose() {
    return WaitFor([&] { return closed_ > 0; });
  }
  template <typename Condition>
  bool WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }
  std::vector<std::string> messages() {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  int closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  bool late() {
    const std::lock_guard lock(mutex_);
    return late_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> messages_;
  int closed_ = 0;
  bool late_ = false;
  std::string why_;
};

constexpr std::chrono::milliseconds kDead{77'000};

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PrivateMunge& munge = PrivateMunge::Get();
    if (!munge.problem().empty()) GTEST_SKIP() << munge.problem();
    auto lease = PortLease::Take(18'000, 18'999, 1);
    ASSERT_TRUE(lease) << lease.error().message;
    lease_ = *std::move(lease);
    address_ = fmt::format("127.0.0.1:{}", lease_->port());
    StartServer();
  }
  void StartServer() {
    auto server = Server::Start(
        {address_, "n1", ::geteuid(), kDead},
        [this](std::shared_ptr<Link> link) {
          const std::lock_guard lock(mutex_);
          accepted_ = std::move(link);
          changed_.notify_all();
          return server_end_.Events();
        },
        [this](AskedBy who, std::string question, std::function<void(std::string)> reply) {
          ask_(who, std::move(question), std::move(reply));
        });
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  void TearDown() override { accepted_.reset(); }

  std::shared_ptr<Link> Open(const std::string& node = "n1") {
    return OpenLink(node, address_, client_end_.Events(), RunHere);
  }
  std::shared_ptr<Link> Accepted() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return accepted_ != nullptr; });
    return accepted_;
  }
  void ExpectBothClosedOnce() {
    EXPECT_TRUE(client_end_.WaitForClose());
    EXPECT_TRUE(server_end_.WaitForClose());
    server_.reset();  // nothing comes after this
    EXPECT_EQ(client_end_.closed(), 1);
    EXPECT_EQ(server_end_.closed(), 1);
    EXPECT_FALSE(client_end_.late());
    EXPECT_FALSE(server_end_.late());
  }

  std::optional<PortLease> lease_;
  std::string address_;
  End client_end_;
  End server_end_;
  std::function<void(AskedBy, std::string, std::function<void(std::string)>)> ask_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Link> accepted_;
  std::unique_ptr<Server> server_;
};

TEST_F(LinkTest, MessagesGoBothWaysInOrder) {
  const auto client = Open();
  client->Send("");
  ASSERT_TRUE(server_end_.WaitForMessages(1)) << client_end_.why();
  const auto server = Accepted();
  constexpr int kMessages = 2'000;
  std::thread other([&] {
    for (int i = 0; i < kMessages; ++i) server->Send(std::to_string(i));
  });
  for (int i = 0; i < kMessages; ++i) client->Send(std::to_string(i));
  other.join();
  ASSERT_TRUE(server_end_.WaitForMessages(kMessages + 1));
  ASSERT_TRUE(client_end_.WaitForMessages(kMessages));
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(server_end_.messages()[static_cast<size_t>(i) + 1], std::to_string(i));
    ASSERT_EQ(client_end_.messages()[static_cast<size_t>(i)], std::to_string(i));
  }
  client->Close("done");
  ExpectBothClosedOnce();
}

TEST_F(LinkTest, AMessageOfManyMegabytesArrivesWhole) {
  const auto client = Open();
  const std::string large = RandomBytes(12 << 20);
  client->Send(large);
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  EXPECT_EQ(server_end_.messages()[0], large);
  Accepted()->Send(large);
  ASSERT_TRUE(client_end_.WaitForMessages(1));
  EXPECT_EQ(client_end_.messages()[0], large);
  client->Close("done");
}

TEST_F(LinkTest, AMessageAboveTheLimitClosesTheLinkAndSaysSo) {
  const auto client = Open();
  client->Send(std::string(17 << 20, 'x'));
  ExpectBothClosedOnce();
  EXPECT_THAT(client_end_.why(), HasSubstr("n1 at 127.0.0.1"));
}

TEST_F(LinkTest, WhenTheServerClosesTheClientLearnsWhy) {
  const auto client = Open();
  client->Send("hello");
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  Accepted()->Close("the same node has connected again");
  ExpectBothClosedOnce();
  EXPECT_THAT(client_end_.why(), HasSubstr("the same node has connected again"));
}

TEST_F(LinkTest, BothSidesMayCloseAtOnce) {
  for (int i = 0; i < 20; ++i) {
    End client_end;
    const auto client = OpenLink("n1", address_, client_end.Events(), RunHere);
    client->Send("hello");
    ASSERT_TRUE(server_end_.WaitForMessages(static_cast<size_t>(i) + 1));
    std::thread other([server = Accepted()] { server->Close("server"); });
    client->Close("client");
    client->Close("again");
    other.join();
    ASSERT_TRUE(client_end.WaitForClose());
    EXPECT_EQ(client_end.closed(), 1);
  }
}

TEST_F(LinkTest, WhatIsSentOnAClosedLinkIsDropped) {
  const auto client = Open();
  client->Send("hello");
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  const auto server = Accepted();
  client->Close("done");
  client->Send("late");
  server->Send("late");
  ExpectBothClosedOnce();
  client->Send("late");
  server->Send("late");
  server->Close("late");
  EXPECT_EQ(server_end_.messages().size(), 1U);
}

TEST_F(LinkTest, ClosingWhenSentLosesNothing) {
  const auto client = Open();
  for (int i = 0; i < 500; ++i) client->Send(std::string(10'000, 'x'));
  client->CloseWhenSent("the gang is over on this node");
  ASSERT_TRUE(server_end_.WaitForMessages(500));
  ExpectBothClosedOnce();
}

TEST_F(LinkTest, TheServerClosingWhenSentLosesNothing) {
  const auto client = Open();
  client->Send("hello");
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  const auto server = Accepted();
  for (int i = 0; i < 500; ++i) server->Send(std::string(10'000, 'x'));
  server->CloseWhenSent("done");
  ASSERT_TRUE(client_end_.WaitForMessages(500));
  ExpectBothClosedOnce();
}

TEST_F(LinkTest, WhatIsSentBeforeTheLinkIsOpenWaits) {
  std::function<void()> open;
  const auto client = OpenLink("n1", address_, client_end_.Events(),
                               [&](std::function<void()> work) { open = std::move(work); });
  client->Send("first");
  client->Send("second");
  open();
  ASSERT_TRUE(server_end_.WaitForMessages(2)) << client_end_.why();
  EXPECT_THAT(server_end_.messages(), ::testing::ElementsAre("first", "second"));
  client->Close("done");
}

TEST_F(LinkTest, ALinkThatIsClosedBeforeItIsOpenIsClosedOnce) {
  for (const bool when_sent : {false, true}) {
    End end;
    std::function<void()> open;
    auto client =
        OpenLink("n1", address_, end.Events(), [&](std::function<void()> work) { open = std::move(work); });
    when_sent ? client->CloseWhenSent("no need") : client->Close("no need");
    client.reset();
    open();
    open = nullptr;
    ASSERT_TRUE(end.WaitForClose()) << when_sent;
    EXPECT_EQ(end.why(), "no need");
    EXPECT_EQ(end.closed(), 1);
  }
}

TEST_F(LinkTest, AnotherReceiverRefusesTheLink) {
  const auto client = Open("n2");
  client->Send("hello");
  ASSERT_TRUE(client_end_.WaitForClose());
  EXPECT_THAT(client_end_.why(), HasSubstr("the credential is not for n1"));
  EXPECT_TRUE(server_end_.messages().empty());
}

TEST_F(LinkTest, WhereNobodyListensTheLinkClosesAndNamesTheNode) {
  server_.reset();
  const auto client = Open();
  ASSERT_TRUE(client_end_.WaitForClose());
  EXPECT_THAT(client_end_.why(), HasSubstr("n1 at 127.0.0.1"));
}

TEST_F(LinkTest, WithoutMungedTheLinkClosesAndNamesTheUnit) {
  PrivateMunge::Get().Stop();
  const auto client = Open();
  PrivateMunge::Get().Start();
  ASSERT_TRUE(client_end_.WaitForClose());
  EXPECT_THAT(client_end_.why(), HasSubstr("munge.service"));
  client->Send("late");
  client->Close("late");
  EXPECT_EQ(client_end_.closed(), 1);
}

TEST_F(LinkTest, TheServersEndClosesItsLinks) {
  const auto client = Open();
  client->Send("hello");
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  server_.reset();
  ExpectBothClosedOnce();
}

// A link of a dead host must not end, as if only its daemon had, before the beats have found that out.
TEST_F(LinkTest, TheKernelGivesADeadHostUpWhenTheServerWantsThat) {
  const auto client = Open();
  client->Send("hello");
  ASSERT_TRUE(server_end_.WaitForMessages(1));
  std::vector<std::chrono::milliseconds> found;
  for (int fd = 0; fd < 1'024; ++fd) {
    sockaddr_in own{};
    sockaddr_in other{};
    socklen_t size = sizeof own;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
        own.sin_port != htons(lease_->port()))
      continue;
    size = sizeof other;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &size) != 0) continue;
    unsigned milliseconds = 0;
    size = sizeof milliseconds;
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size), 0);
    found.emplace_back(milliseconds);
  }
  EXPECT_EQ(found, std::vector{kDead});
}

TEST_F(LinkTest, ASecondServerOnTheSamePortIsRefused) {
  const auto second = Server::Start({address_, "n1", 0}, {}, {});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("cannot listen on " + address_));
}

TEST_F(LinkTest, BytesThatAreNoGrpcDoNotDisturbOthers) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(lease_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string garbage = RandomBytes(100'000);
  ::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  const auto client = Open();
  client->Send("hello");
  EXPECT_TRUE(server_end_.WaitForMessages(1));
  client->Close("done");
}

// A peer that speaks gRPC, but not as a daemon does.
class Impostor {
 public:
  explicit Impostor(const std::string& address)
      : stub_(v1::Node::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Attend(&context_)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  bool Write(const v1::Envelope& envelope) { return stream_->Write(envelope); }
  // Reads to the end, and gives the reason.
  grpc::Status End() {
    v1::Envelope ignored;
    while (stream_->Read(&ignored)) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Node::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Envelope, v1::Envelope>> stream_;
};

class LinkImpostor : public LinkTest {
 protected:
  // The first envelope of a good daemon.
  v1::Envelope First() {
    const auto opening = OpenSession("n1");
    EXPECT_TRUE(opening) << opening.error().message;
    key_ = opening->key;
    v1::Envelope first = Sealed(0, "");
    first.set_credential(opening->credential);
    return first;
  }
  v1::Envelope Sealed(uint64_t sequence, const std::string& payload,
                      Direction direction = Direction::kToCoordinator) {
    v1::Envelope envelope;
    envelope.set_sequence(sequence);
    envelope.set_payload(payload);
    envelope.set_mac(Mac(key_, direction, sequence, payload));
    return envelope;
  }
  void ExpectRefused(const std::vector<v1::Envelope>& envelopes, const std::string& why) {
    Impostor impostor(address_);
    for (const v1::Envelope& envelope : envelopes) impostor.Write(envelope);
    const grpc::Status status = impostor.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  std::string key_ = std::string(32, 'k');
};

TEST_F(LinkImpostor, ThatSpeaksAsADaemonDoesIsHeard) {
  Impostor daemon(address_);
  ASSERT_TRUE(daemon.Write(First()));
  ASSERT_TRUE(daemon.Write(Sealed(1, "hello")));
  EXPECT_TRUE(server_end_.WaitForMessages(1));
}

TEST_F(LinkImpostor, WithoutACredentialIsRefused) {
  ExpectRefused({Sealed(0, "hello")}, "no MUNGE credential");
}

TEST_F(LinkImpostor, WithAnEndlessCredentialIsRefused) {
  v1::Envelope first = Sealed(0, "");
  first.set_credential(std::string(1 << 20, 'A'));
  ExpectRefused({first}, "no MUNGE credential");
}

TEST_F(LinkImpostor, ThatReplaysAnOpeningIsRefused) {
  const v1::Envelope first = First();
  {
    Impostor daemon(address_);
    daemon.Write(first);
    daemon.Write(Sealed(1, "hello"));
    ASSERT_TRUE(server_end_.WaitForMessages(1));
  }
  ExpectRefused({first}, "eplay");
}

TEST_F(LinkImpostor, ThatSkipsRepeatsOrReordersIsRefused) {
  ExpectRefused({First(), Sealed(2, "skipped")}, "did not authenticate");
  ExpectRefused({First(), Sealed(1, "a"), Sealed(1, "a")}, "did not authenticate");
  ExpectRefused({First(), Sealed(1, "a"), Sealed(0, "")}, "did not authenticate");
}

TEST_F(LinkImpostor, ThatReflectsTheServersMessagesIsRefused) {
  const v1::Envelope first = First();
  ExpectRefused({first, Sealed(1, "stop", Direction::kToAgent)}, "did not authenticate");
}

TEST_F(LinkImpostor, ThatTampersIsRefused) {
  const v1::Envelope first = First();
  v1::Envelope tampered = Sealed(1, "stop generation 1");
  tampered.set_payload("stop generation 2");
  ExpectRefused({first, tampered}, "did not authenticate");
  EXPECT_TRUE(server_end_.messages().empty());
}

class QuestionTest : public LinkTest {};

TEST_F(QuestionTest, IsAnsweredToTheUserThatAsked) {
  ask_ = [](AskedBy who, const std::string& question, const std::function<void(std::string)>& reply) {
    v1::Question parsed;
    EXPECT_TRUE(parsed.ParseFromString(question));
    v1::Answer answer;
    answer.set_json(fmt::format("{} asks for {}", who.uid, parsed.gang()));
    std::thread([reply, text = answer.SerializeAsString()] { reply(text); }).detach();
  };
  v1::Question question;
  question.set_gang("12.0");
  const auto text = AskDaemon("n1", address_, question.SerializeAsString(), 20);
  ASSERT_TRUE(text) << text.error().message;
  v1::Answer answer;
  ASSERT_TRUE(answer.ParseFromString(*text));
  EXPECT_EQ(answer.json(), fmt::format("{} asks for 12.0", ::geteuid()));
}

TEST_F(QuestionTest, ToAnotherNodeIsRefused) {
  const auto text = AskDaemon("n2", address_, "", 20);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Errc::kDenied);
  EXPECT_THAT(text.error().message, HasSubstr("not for this question to n1"));
}

TEST_F(QuestionTest, WithoutACredentialIsRefused) {
  const auto stub = v1::Query::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::Answer answer;
  EXPECT_EQ(stub->Ask(&context, v1::Question(), &answer).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(QuestionTest, ThatNobodyWillAnswerFailsAndTheServerCanStop) {
  ask_ = [](AskedBy, const std::string&, const std::function<void(std::string)>&) {};
  const auto text = AskDaemon("n1", address_, "", 20);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Errc::kUnavailable);
  EXPECT_THAT(text.error().message, HasSubstr("stopping"));
  server_.reset();
}

TEST_F(QuestionTest, ThatIsAnsweredTooLateIsAnErrorAndNothingWorse) {
  std::mutex mutex;
  std::function<void(std::string)> late;
  ask_ = [&](AskedBy, const std::string&, std::function<void(std::string)> reply) {
    const std::lock_guard lock(mutex);
    late = std::move(reply);
  };
  const auto came_in = [&] {
    const std::lock_guard lock(mutex);
    return late != nullptr;
  };
  // On a busy machine the question itself may take longer than a second.
  for (int seconds = 1; !came_in() && seconds <= 64; seconds *= 2)
    ASSERT_FALSE(AskDaemon("n1", address_, "", seconds));
  const std::lock_guard lock(mutex);
  ASSERT_TRUE(late);
  late("");
  late("");
  late = nullptr;
  server_.reset();
}

}  // namespace
}  // namespace muster
