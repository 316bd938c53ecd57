#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "net/rendezvous/client.h"
#include "net/rendezvous/rendezvous_server.h"

namespace muster::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

Deadline In(milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class RendezvousServer : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Server>> started =
        Server::Start({.port = 0, .round = "gang.7", .max_entries = 3, .max_connections = 8});
    ASSERT_TRUE(started.ok());
    server_ = std::move(*started);
  }

  Client Connect(milliseconds patience = seconds(20), const std::string& round = "gang.7") {
    Result<Client> client = Client::Connect(
        {.host = "127.0.0.1", .port = server_->port(), .round = round, .deadline = In(patience)});
    EXPECT_TRUE(client.ok());
    return std::move(*client);
  }

  // A connection that speaks bytes, and what the server answers before it closes.
  std::string Answer(std::span<const std::byte> bytes) {
    Result<UniqueFd> fd = ConnectUntil("127.0.0.1", server_->port(), In(seconds(20)));
    EXPECT_TRUE(fd.ok() && SendAll(fd->get(), bytes, In(seconds(20))).ok());
    std::vector<std::byte> answer;
    std::array<std::byte, 512> chunk;
    for (;;) {
      Result<std::size_t> got = ReceiveSome(fd->get(), chunk, In(seconds(20)));
      if (!got) {
        EXPECT_THAT(got.error().message, HasSubstr("closed the connection"));
        break;
      }
      answer.insert(answer.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(*got));
    }
    Result<std::optional<Decoded>> decoded = Decode(answer);
    return decoded && decoded->has_value() ? (*decoded)->message.value : "";
  }

  void ExpectStillServing() {
    Client client = Connect();
    EXPECT_TRUE(client.Set("alive", "yes").ok());
    EXPECT_EQ(*client.Get("alive"), "yes");
  }

  std::unique_ptr<Server> server_;
};

TEST_F(RendezvousServer, AGetWaitsForItsSet) {
  Client reader = Connect();
  std::thread writer([this] {
    Client client = Connect();
    EXPECT_TRUE(client.Set("k", "v").ok());
  });
  Result<std::string> value = reader.Get("k");
  writer.join();
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ(*value, "v");
}

TEST_F(RendezvousServer, AGetThatNobodyAnswersEndsAtItsDeadlineAndNamesTheKey) {
  Client reader = Connect();
  reader.SetDeadline(In(milliseconds(100)), seconds(20));
  Result<std::string> value = reader.Get("missing");
  ASSERT_FALSE(value.ok());
  EXPECT_THAT(value.error().message, HasSubstr("nobody wrote key 'missing' in time"));
}

TEST_F(RendezvousServer, AKeyIsWrittenOnce) {
  Client client = Connect();
  EXPECT_TRUE(client.Set("k", "v").ok());
  EXPECT_TRUE(client.Set("k", "v").ok());
  const Status other = client.Set("k", "w");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("same RANK"));
  EXPECT_EQ(*client.Get("k"), "v");
}

TEST_F(RendezvousServer, AMemberOfAnotherGenerationIsRefused) {
  Client old = Connect(seconds(20), "gang.6");
  const Status written = old.Set("k", "v");
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, HasSubstr("serves another round than key 'gang.6/k' is of"));
  EXPECT_THAT(written.error().message, Not(HasSubstr("gang.7"))) << "that is known to its members only";
  EXPECT_FALSE(old.Get("k").ok());
}

TEST_F(RendezvousServer, MoreEntriesThanItHoldsAreRefused) {
  Client client = Connect();
  for (const char* key : {"a", "b", "c"}) EXPECT_TRUE(client.Set(key, "").ok());
  const Status fourth = client.Set("d", "");
  ASSERT_FALSE(fourth.ok());
  EXPECT_THAT(fourth.error().message, HasSubstr("full (3 entries)"));
}

TEST_F(RendezvousServer, ManyWaitForOneKey) {
  std::vector<std::thread> readers;
  for (int i = 0; i < 5; ++i) {
    readers.emplace_back([this] { EXPECT_EQ(*Connect().Get("k"), "v"); });
  }
  EXPECT_TRUE(Connect().Set("k", "v").ok());
  for (std::thread& reader : readers) reader.join();
}

TEST_F(RendezvousServer, BytesThatAreNoMessageAreRefusedAndItGoesOn) {
  const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_THAT(Answer(std::as_bytes(std::span(text))), HasSubstr("bad magic"));
  ExpectStillServing();
}

TEST_F(RendezvousServer, AnOversizedMessageIsRefusedBeforeItsBytesCome) {
  std::vector<std::byte> bytes = *Encode({MessageType::kSet, "gang.7/k", "v", {}});
  bytes[8] = std::byte{0x7f};  // two gigabytes of value
  EXPECT_THAT(Answer(bytes), HasSubstr("the limit is 65536"));
  ExpectStillServing();
}

TEST_F(RendezvousServer, AReplyInPlaceOfARequestIsRefused) {
  EXPECT_THAT(Answer(*Encode({MessageType::kValue, "", "v", {}})),
              HasSubstr("a reply where a request belongs"));
  ExpectStillServing();
}

TEST_F(RendezvousServer, ATruncatedMessageEndsItsConnectionOnly) {
  const std::vector<std::byte> bytes = *Encode({MessageType::kSet, "gang.7/k", "v", {}});
  {
    Result<UniqueFd> fd = ConnectUntil("127.0.0.1", server_->port(), In(seconds(20)));
    ASSERT_TRUE(fd.ok());
    EXPECT_TRUE(SendAll(fd->get(), std::span(bytes).first(bytes.size() - 1), In(seconds(20))).ok());
  }
  ExpectStillServing();
}

TEST_F(RendezvousServer, ARequestEndsTheWaitOfTheOneBeforeIt) {
  Client client = Connect();
  ASSERT_TRUE(client.Watch("never").ok());
  EXPECT_TRUE(client.Set("k", "v").ok());
  EXPECT_TRUE(Connect().Set("never", "x").ok());
  EXPECT_EQ(*client.Get("k"), "v") << "not the answer to the first request";
}

TEST_F(RendezvousServer, RequestsInOneBreathAreAnsweredButForThoseThatWait) {
  std::vector<std::byte> bytes = *Encode({MessageType::kGet, "gang.7/k", "", seconds(20)});
  const std::vector<std::byte> once = bytes;
  for (int i = 0; i < 1000; ++i) bytes.insert(bytes.end(), once.begin(), once.end());
  const std::vector<std::byte> last = *Encode({MessageType::kValue, "", "v", {}});
  bytes.insert(bytes.end(), last.begin(), last.end());
  EXPECT_THAT(Answer(bytes), HasSubstr("a reply where a request belongs"));
  ExpectStillServing();
}

TEST_F(RendezvousServer, AWatchedKeyIsSeenWhenItHasCome) {
  Client client = Connect();
  ASSERT_TRUE(client.Watch("k").ok());
  Result<std::optional<std::string>> watched = client.Watched();
  ASSERT_TRUE(watched.ok());
  EXPECT_FALSE(watched->has_value());
  EXPECT_TRUE(Connect().Set("k", "v").ok());
  const Deadline deadline = In(seconds(20));
  while (watched && !watched->has_value() && std::chrono::steady_clock::now() < deadline)
    watched = client.Watched();
  ASSERT_TRUE(watched.ok());
  EXPECT_EQ(*watched, "v");
  EXPECT_EQ(*client.Get("k"), "v");
}

TEST_F(RendezvousServer, AValueThatWasOnItsWayIsNotTakenForAnotherAnswer) {
  Client client = Connect();
  ASSERT_TRUE(client.Watch("k").ok());
  EXPECT_TRUE(Connect().Set("k", "v").ok());
  const Status other = client.Set("k", "w");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("already written"));
  EXPECT_TRUE(client.good());
  EXPECT_EQ(*client.Get("k"), "v");
}

TEST_F(RendezvousServer, AWillIsWrittenWhenTheConnectionEnds) {
  Client heir = Connect();
  {
    Client client = Connect();
    EXPECT_TRUE(client.Will("a", "first").ok());
    EXPECT_TRUE(client.Will("k", "gone").ok());
    heir.SetDeadline(In(milliseconds(0)), seconds(20));
    EXPECT_FALSE(heir.Get("k").ok());
  }
  heir.SetDeadline(In(seconds(20)), seconds(20));
  EXPECT_EQ(*heir.Get("k"), "gone");
  heir.SetDeadline(In(milliseconds(0)), seconds(20));
  EXPECT_FALSE(heir.Get("a").ok()) << "the last will counts";
}

TEST_F(RendezvousServer, AWillDoesNotReplaceWhatIsWritten) {
  Client heir = Connect();
  {
    Client client = Connect();
    EXPECT_TRUE(client.Will("k", "gone").ok());
    EXPECT_TRUE(client.Set("k", "v").ok());
    EXPECT_TRUE(client.Set("other", "").ok());
  }
  EXPECT_TRUE(Connect().Will("last", "").ok());
  EXPECT_EQ(*heir.Get("last"), "") << "both connections have ended by now";
  EXPECT_EQ(*heir.Get("k"), "v");
}

TEST_F(RendezvousServer, AWillBeyondWhatTheStoreHoldsIsLost) {
  Client client = Connect();
  for (const char* key : {"a", "b", "c"}) EXPECT_TRUE(client.Set(key, "").ok());
  EXPECT_TRUE(Connect().Will("k", "gone").ok());
  client.SetDeadline(In(milliseconds(0)), seconds(20));
  EXPECT_FALSE(client.Get("k").ok());
}

TEST_F(RendezvousServer, AWillForAnotherRoundIsRefused) {
  Client old = Connect(seconds(20), "gang.6");
  EXPECT_FALSE(old.Will("k", "v").ok());
  EXPECT_TRUE(old.good()) << "it was answered";
}

TEST_F(RendezvousServer, ItKnowsWhenEverybodyHasLeft) {
  {
    Client client = Connect();
    EXPECT_TRUE(client.Set("k", "v").ok());
    EXPECT_FALSE(server_->LeftBy(In(milliseconds(0))));
  }
  EXPECT_TRUE(server_->LeftBy(In(seconds(20))));
}

TEST_F(RendezvousServer, AClientWhoseServerHasEndedIsNotGood) {
  Client client = Connect();
  EXPECT_TRUE(client.good());
  ASSERT_TRUE(client.Watch("k").ok());
  server_.reset();
  Result<std::optional<std::string>> watched = client.Watched();
  const Deadline deadline = In(seconds(20));
  while (watched && std::chrono::steady_clock::now() < deadline) watched = client.Watched();
  ASSERT_FALSE(watched.ok());
  EXPECT_FALSE(client.good());
  EXPECT_FALSE(client.Set("k", "v").ok());
}

TEST(RendezvousClient, ConnectingToNobodyFailsAtTheDeadlineAndNamesTheEndpoint) {
  std::uint16_t port = 0;
  {
    Result<UniqueFd> listener = Listen(0);
    ASSERT_TRUE(listener.ok());
    port = *LocalPort(listener->get());
  }
  Result<Client> client =
      Client::Connect({.host = "127.0.0.1", .port = port, .round = "", .deadline = In(milliseconds(100))});
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(client.error().message, HasSubstr("127.0.0.1 port " + std::to_string(port)));
}

}  // namespace
}  // namespace muster::rendezvous
