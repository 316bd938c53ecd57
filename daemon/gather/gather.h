// muster_exchange: each member of a world gives a value under a key and gets those of all, in the order of ranks. A node collects
// what its members give, one message of each node goes to the coordinator, and one comes back. Pure: messages in, messages out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "daemon/proto/muster.pb.h"
#include "wire/wire.h"

namespace muster::gather {

inline constexpr uint64_t kMaxValues = 8 << 20;  // bytes of all members' values under one key
inline constexpr size_t kMaxOpen = 16;      // keys of a world that not all members have given a value under
inline constexpr size_t kMaxKeys = 65'536;  // of a world in a generation
inline constexpr uint64_t kMaxOnTheWay = 64 << 20;  // bytes of values that nodes have not said to have

// Bytes that each of so many members may give.
uint32_t LargestValue(uint32_t members);
// 1 to wire::kMaxExchangeKey visible characters.
bool IsKey(std::string_view key);

// All members' values, as their program gets them: for each rank where its value ends among the bytes that follow, 32 bits,
// little-endian.
std::string Pack(const std::vector<std::string>& values);

// What the members of one node give, in one generation.
class NodeSide {
 public:
  struct Answer {
    uint32_t rank = 0;
    uint64_t number = 0;
    std::shared_ptr<const std::string> values;  // packed; null: see `text`
    wire::StatusCode status = wire::kStatusOk;  // with an error
    std::string text;                           // of the error; of none, who is missing
  };
  struct World {
    std::string name;
    uint32_t members = 0;
    std::set<uint32_t> ranks;  // those of this node
  };
  // `up` takes what goes to the coordinator; what it cannot send is sent again by Again.
  NodeSide(uint64_t generation, World world, std::function<void(const Answer&)> answer,
           std::function<void(v1::Gather)> up);

  // A member's call. `number` is its own, and comes back with the answer.
  void Give(uint32_t rank, uint64_t number, const std::string& key, std::string value, wire::Heard heard);
  // Who has not given a value under `key` yet.
  void AskMissing(uint32_t rank, uint64_t number, const std::string& key);
  void Take(const v1::Gathered& gathered);
  // There is a link, to this coordinator or to another.
  void Again();

 private:
  struct Given {
    std::string value;
    uint64_t number = 0;    // of the call that waits
    bool answered = false;  // it has been sent the values, and says so if they have not come
  };
  using Values = std::map<uint32_t, Given>;  // by rank

  void Refuse(uint32_t rank, uint64_t number, wire::StatusCode status, std::string text) const;
  void Send(const std::string& key, const Values& given, bool again) const;

  uint64_t generation_;
  World world_;
  std::function<void(const Answer&)> answer_;
  std::function<void(v1::Gather)> up_;
  std::map<std::string, Values> open_;
  std::map<std::string, std::map<uint32_t, uint64_t>> asking_;  // who is missing: numbers by rank
  // The newest key that was answered here. Unless a member goes on without its answer, none waits for an older one then. What
  // members have given under older ones, and were answered, is forgotten: all nodes together would complete such a key anew.
  std::string last_;
  std::unordered_set<std::string> used_;  // with that one
  Values last_given_;
  std::shared_ptr<const std::string> last_values_;
};

// What all nodes give, in one generation.
class GangSide {
 public:
  // `members`: of all worlds together. `send` takes what goes to a node.
  GangSide(uint64_t generation, uint32_t members,
           std::function<void(uint32_t node, const v1::Gathered&)> send)
      : generation_(generation), members_(members), send_(std::move(send)) {}

  [[nodiscard]] uint64_t generation() const { return generation_; }
  // kInvalid: it is no message of this generation that a node sends.
  Status Take(uint32_t node, const v1::Gather& gather);
  // There is no link to that node any more, or another one: it says again what it waits for.
  void Left(uint32_t node);

 private:
  struct Key {
    std::vector<std::optional<std::string>> values;  // by rank
    uint32_t given = 0;
    std::set<uint32_t> answered;  // ranks that another coordinator's values have been sent to
    std::set<uint32_t> nodes;     // with a link, and a member that waits
    std::string missing;          // what was answered last, and
    uint32_t missing_of = 0;      // how many had given then
  };
  struct World {
    std::map<std::string, Key> open;
    std::unordered_set<std::string> used;
    v1::Gathered last;
    // Who is still to have that, and who has not said yet that it has come: of many nodes not all get it at once.
    std::deque<uint32_t> due;
    std::set<uint32_t> on_the_way;
  };

  void Refuse(uint32_t node, const v1::Gather& gather, const std::vector<uint32_t>& ranks,
              std::string text) const;
  void TellMissing(uint32_t node, const v1::Gather& gather, World& world) const;
  void Complete(World& world, const v1::Gather& gather);
  void SendDue(World& world) const;

  uint64_t generation_;
  uint32_t members_;
  std::function<void(uint32_t node, const v1::Gathered&)> send_;
  std::map<std::string, World> worlds_;  // by name
};

}  // namespace muster::gather
