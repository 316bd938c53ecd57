// What the supervisors of a gang with warm=yes say of its members' starts and standbys, for the events and for `muster
// status`. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace muster {

class WarmStarts {
 public:
  enum class State : uint32_t {
    kReady = 1,
    kUnfit = 2,
    kWarm = 3,
    kCold = 4
  };  // the numbers of wire::WarmState
  struct News {
    uint32_t rank = 0;
    uint64_t generation = 0;
    State state = State::kReady;
    std::string text;
  };
  // `members`: how many of the generation may be started warm. What is to be written as an event: once all of them have been
  // started; "": nothing.
  std::string Take(const News& news, size_t members);
  // "2 of 2 standbys are ready; generation 3: 2 of 2 members were started warm"; "": nothing is known.
  [[nodiscard]] std::string Text(size_t members) const;

 private:
  struct Member {
    bool ready = false;
    std::string unfit;
    bool started = false;
    std::string cold;  // why; "": it was started warm
  };
  [[nodiscard]] std::string Starts(size_t members) const;

  uint64_t generation_ = 0;
  std::map<uint32_t, Member> members_;  // by rank
  std::string reasons_;                 // of the last event about cold starts
};

}  // namespace muster
