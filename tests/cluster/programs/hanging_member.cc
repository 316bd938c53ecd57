// A member whose rank stands still while the others wait for it: hanging_member DIRECTORY RANK.
//
// All members step together. In generation 1 that rank stops at step 20, in a function of a known name; later
// generations go on until DIRECTORY/go is there. Each member writes DIRECTORY/gG.rR.json as programs/member.py does.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "client/muster.h"

// Not optimised away, and with names of their own.
extern "C" __attribute__((noinline, visibility("default"))) void hanging_member_never_arrives() {
  for (;;) {
    ::pause();
    asm volatile("" : : : "memory");
  }
}

namespace {

constexpr uint64_t kHangsAt = 20;
constexpr uint64_t kGone = UINT64_MAX;

class Meeting {
 public:
  Meeting(std::string directory, uint64_t generation, uint32_t rank, uint32_t world)
      : prefix_(std::move(directory) + "/at." + std::to_string(generation) + "."),
        rank_(rank),
        world_(world) {}

  void Enter(uint64_t step) const {
    const std::string name = prefix_ + std::to_string(rank_);
    std::ofstream(name + ".part") << step;
    if (std::rename((name + ".part").c_str(), name.c_str()) != 0) std::exit(1);
  }
  void WaitForOthers(uint64_t step) const {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      while (StepOf(rank) < step) ::usleep(5000);
    }
  }

 private:
  [[nodiscard]] uint64_t StepOf(uint32_t rank) const {
    uint64_t step = 0;
    std::ifstream(prefix_ + std::to_string(rank)) >> step;
    return step;
  }

  std::string prefix_;
  uint32_t rank_;
  uint32_t world_;
};

void Record(const std::string& directory, uint64_t generation, uint32_t rank) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::string name =
      directory + "/g" + std::to_string(generation) + ".r" + std::to_string(rank) + ".json";
  std::ofstream(name + ".part") << "{\"rank\": " << rank << ", \"generation\": " << generation
                                << ", \"host\": \"" << host << "\", \"pid\": " << ::getpid()
                                << ", \"env\": {}}";
  if (std::rename((name + ".part").c_str(), name.c_str()) != 0) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string directory = argv[1];
  const auto hangs = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  muster_handle* gang = nullptr;
  if (muster_open(&gang) != MUSTER_OK) {
    std::fprintf(stderr, "%s\n", muster_last_error(nullptr));
    return 1;
  }
  const uint32_t rank = muster_rank(gang);
  const uint64_t generation = muster_generation(gang);
  const Meeting meeting(directory, generation, rank, muster_world_size(gang));
  Record(directory, generation, rank);
  struct stat status {};
  for (uint64_t step = 1; ::stat((directory + "/go").c_str(), &status) != 0; ++step) {
    if (generation == 1 && rank == hangs && step == kHangsAt) hanging_member_never_arrives();
    muster_step(gang, step, nullptr);
    meeting.Enter(step);
    meeting.WaitForOthers(step);
    ::usleep(20'000);
  }
  meeting.Enter(kGone);  // the others need not see `go` at the same step
  muster_close(gang);
  return 0;
}
