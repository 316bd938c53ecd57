#include "daemon/coordinator/node_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Keeps what is sent, and why the link was closed.
class KeepingLink final : public Link {
 public:
  void Send(std::string payload) override { sent.push_back(std::move(payload)); }
  void Close(const std::string& why) override { closed = why; }
  void CloseWhenSent(const std::string& why) override { closed = why; }
  [[nodiscard]] std::string key() const override { return "key"; }

  std::vector<std::string> sent;
  std::string closed;
};

class NodeLinksTest : public ::testing::Test {
 protected:
  NodeLinksTest() {
    job_.job_id = 12;
    core_.Take({3, 0}, {}, std::nullopt);
    nodes_.Attach(0, first_);
    nodes_.Attach(1, second_);
  }

  GangJob job_;
  Ordered orders_;
  CoordinatorCore core_{{orders_, orders_, orders_, orders_, orders_}, Terms(0, {0, 1}, {}), true};
  std::shared_ptr<KeepingLink> first_ = std::make_shared<KeepingLink>();
  std::shared_ptr<KeepingLink> second_ = std::make_shared<KeepingLink>();
  NodeLinks nodes_{job_, core_};
};

TEST_F(NodeLinksTest, ANewLinkTakesThePlaceOfTheNodesLinkBefore) {
  const auto newer = std::make_shared<KeepingLink>();
  nodes_.Attach(0, newer);
  EXPECT_EQ(first_->closed, "the same node has connected again");
  nodes_.Attach(0, newer);
  EXPECT_EQ(newer->closed, "") << "a node that registers again keeps its link";
  EXPECT_FALSE(nodes_.Detach(0, first_.get())) << "the end of the old link is no news";
  EXPECT_EQ(nodes_.Of(0), newer);
  EXPECT_TRUE(nodes_.Detach(0, newer.get()));
  EXPECT_FALSE(nodes_.Detach(0, newer.get()));
  EXPECT_THAT(nodes_.Here(), UnorderedElementsAre(1U));
}

TEST_F(NodeLinksTest, AMessageIsOfTheGangAndItsTermAndReachesWhoHasALink) {
  auto message = nodes_.NewMessage();
  EXPECT_EQ(message.gang(), job_.Id());
  EXPECT_EQ(message.term(), 3U);
  nodes_.Send(7, message);
  nodes_.Close(0, "silent");
  EXPECT_EQ(first_->closed, "silent");
  nodes_.Broadcast(message);
  EXPECT_THAT(first_->sent, IsEmpty());
  EXPECT_THAT(second_->sent, ElementsAre(message.SerializeAsString()));
  EXPECT_FALSE(nodes_.Detach(0, first_.get())) << "that link is not the node's any more";
}

TEST_F(NodeLinksTest, ANodeKeepsItsNameWhenItsLinkEnds) {
  EXPECT_EQ(nodes_.NameOf(0), "");
  nodes_.SetName(0, "n0");
  nodes_.Close(0, "silent");
  EXPECT_EQ(nodes_.NameOf(0), "n0");
  nodes_.CloseAll("the end");
  EXPECT_EQ(first_->closed, "silent");
  EXPECT_EQ(second_->closed, "the end");
}

}  // namespace
}  // namespace muster
