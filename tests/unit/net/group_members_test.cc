#include "net/collectives/group_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "processes.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FreePort;
using test::LoopbackGroup;
using testing::HasSubstr;

rendezvous::Deadline In(milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

std::unique_ptr<Members> Meet(int rank, int size, std::uint16_t port, seconds end_timeout = seconds(20)) {
  GroupOptions options = LoopbackGroup(rank, size, port);
  options.end_timeout = end_timeout;
  Result<std::unique_ptr<Members>> met = Members::Meet(options, In(seconds(20)));
  EXPECT_TRUE(met.ok());
  return std::move(*met);
}

// What comes, when it has come.
std::optional<Failure> Await(Members& members) {
  const rendezvous::Deadline deadline = In(seconds(20));
  std::optional<Failure> heard;
  while (!heard && std::chrono::steady_clock::now() < deadline) heard = members.Heard();
  return heard;
}

TEST(Members, TheFirstToFailIsTheOneForAll) {
  const std::uint16_t port = FreePort();
  const auto zero = Meet(0, 3, port);
  const auto one = Meet(1, 3, port);
  const auto two = Meet(2, 3, port);
  for (Members* each : {zero.get(), one.get()}) ASSERT_TRUE(each->Listen().ok());
  EXPECT_FALSE(zero->Heard().has_value());
  EXPECT_EQ(one->Tell("a cable was pulled").rank, 1);
  const std::optional<Failure> heard = Await(*zero);
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(Describe(*heard), "rank 1 has failed: a cable was pulled");
  EXPECT_EQ(zero->Tell("it was not done").rank, 1);
  EXPECT_EQ(two->Tell("it was not done").why, "a cable was pulled") << "also where nobody has listened";
  EXPECT_EQ(two->Heard()->rank, 1);
}

TEST(Members, OfAGangServeNobodyElse) {
  std::set<std::string> places;
  for (int i = 0; i < 2; ++i) {
    GroupOptions options = LoopbackGroup(0, 2, 1);
    std::string place;
    options.exchange = [&place](const std::string&, const std::string& own, rendezvous::Deadline) {
      place = own;
      return std::vector<std::string>{own, ""};
    };
    const Result<std::unique_ptr<Members>> met = Members::Meet(options, In(seconds(20)));
    ASSERT_TRUE(met.ok()) << met.error().message;
    const std::string secret = place.substr(place.find(' ') + 1);
    EXPECT_EQ(secret.size(), 32U);
    places.insert(secret);
    const auto said = [&](const std::string& round) {
      const auto port = static_cast<std::uint16_t>(std::stoi(place));
      Result<rendezvous::Client> client = rendezvous::Client::Connect(
          {.host = "127.0.0.1", .port = port, .round = round, .deadline = In(seconds(20))});
      EXPECT_TRUE(client.ok());
      return client->Set("failed", "1 a stranger says so").ok();
    };
    EXPECT_FALSE(said(options.round));
    EXPECT_TRUE(said(secret));
  }
  EXPECT_EQ(places.size(), 2U);
}

TEST(Members, AllHearWhereTheOthersAre) {
  const std::uint16_t port = FreePort();
  const auto zero = Meet(0, 3, port);
  const auto one = Meet(1, 3, port);
  auto two = Meet(2, 3, port);
  two.reset();
  std::string said;
  std::thread other([&] {
    (void)one->Tell("it was not done");
    said = one->Compare("barrier 2", In(seconds(20)));
  });
  (void)zero->Tell("it was not done");
  const std::string own = zero->Compare("barrier 1", In(seconds(20)));
  other.join();
  EXPECT_EQ(own, "rank 2 has ended; rank 0 is in barrier 1, but rank 1 in barrier 2");
  EXPECT_EQ(said, own);
  EXPECT_EQ(zero->Compare("barrier 1", In(seconds(20))), "") << "once";
}

TEST(Members, ThoseWhoSayNothingAreCountedWhenTheyAreMany) {
  const auto zero = Meet(0, 12, FreePort(), std::chrono::minutes(8));
  (void)zero->Tell("it was not done");
  EXPECT_EQ(zero->Compare("barrier 1", In(milliseconds(400))),
            "no word from ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more");
}

TEST(Members, WhenRankZeroSaysNothingThatIsSaid) {
  const std::uint16_t port = FreePort();
  auto zero = Meet(0, 2, port);
  const auto one = Meet(1, 2, port);
  (void)one->Tell("it was not done");
  EXPECT_EQ(one->Compare("barrier 1", In(seconds(4))), "no word from rank 0");
}

TEST(Members, AStrangersWordsMakeNoMoreThanALine) {
  const std::uint16_t port = FreePort();
  const auto zero = Meet(0, 2, port);
  ASSERT_TRUE(zero->Listen().ok());
  std::string words;
  for (int i = 0; i < 60'000; ++i) words += static_cast<char>(i % 256);
  {
    Result<rendezvous::Client> stranger = rendezvous::Client::Connect(
        {.host = "127.0.0.1", .port = port, .round = "test.1", .deadline = In(seconds(20))});
    ASSERT_TRUE(stranger.ok());
    ASSERT_TRUE(stranger->Set("failed", words).ok());
    ASSERT_TRUE(stranger->Set("last/1", words).ok());
  }
  const std::optional<Failure> heard = Await(*zero);
  ASSERT_TRUE(heard.has_value());
  const std::string said = Describe(*heard) + zero->Compare("barrier 1", In(seconds(20)));
  EXPECT_THAT(said, HasSubstr("but rank 1 in"));
  EXPECT_LT(said.size(), 1200U);
  EXPECT_TRUE(std::all_of(said.begin(), said.end(), [](char byte) { return byte >= ' ' && byte <= '~'; }))
      << said;
}

}  // namespace
}  // namespace muster
