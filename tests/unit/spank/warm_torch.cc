// How long a member of PyTorch takes from the order to start until its first step, cold and warm; on a GPU where there is one.
//   spank_warm_torch PYTHON [STARTS]: a Python that has PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/spank/warm_rig.h"

namespace muster::supervisor {
namespace {

constexpr char kProgram[] = R"(
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

begun = time.monotonic()
device = "cuda" if torch.cuda.is_available() else "cpu"
store = "file://" + os.environ["DIRECTORY"] + "/" + os.environ["MUSTER_GENERATION"]
dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=store, rank=0, world_size=1)
torch.manual_seed(1)
plain = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).to(device)
model = DistributedDataParallel(plain)
optimizer = torch.optim.AdamW(model.parameters())
loss = model(torch.ones(64, 1024, device=device)).square().mean()
loss.backward()
optimizer.step()
print(f"step {loss.item()} on {device}, of it {(time.monotonic() - begun) * 1000:.0f} ms behind the imports", flush=True)
time.sleep(600)
)";

std::string Output(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen(command.c_str(), "r");
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  if (pipe == nullptr || ::pclose(pipe) != 0) ADD_FAILURE() << "failed: " << command;
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string python;
int starts = 5;

class WarmTorch : public Warm {
 protected:
  WarmTorch() : Warm(Output(python + " -c 'import os, sys; print(os.path.realpath(sys._base_executable))'")) {
    environment.Has(
        Output(python + " -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))'"));
  }
  // In milliseconds, from the order until the step.
  double TimeOf(uint64_t generation, const std::function<void()>& start) {
    const auto begun = std::chrono::steady_clock::now();
    start();
    const std::string said = rig.ReadStdout("imports\n");
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    fmt::print("generation {}: {:.0f} ms; {}", generation, took.count(), said);
    EXPECT_THAT(said, testing::HasSubstr("step "));
    if (loss_.empty()) loss_ = said.substr(0, said.find(','));
    EXPECT_EQ(said.substr(0, said.find(',')), loss_) << "other bits";
    return took.count();
  }
  std::vector<std::string> Told(uint64_t generation) {
    return {fmt::format("MUSTER_GENERATION={}", generation), "DIRECTORY=" + environment.directory().string()};
  }

  std::string loss_;
};

TEST_F(WarmTorch, TheFirstStep) {
  Launch();
  const double cold = TimeOf(1, [&] { StartCold(1, kProgram, Told(1)); });
  std::vector<double> warm;
  for (uint64_t generation = 1; generation <= static_cast<uint64_t>(starts); ++generation) {
    GetsOn(generation);
    Expect(WarmState::kReady, generation);
    Stop(generation);
    warm.push_back(TimeOf(generation + 1, [&] {
      Start(generation + 1, Told(generation + 1));
      Expect(WarmState::kWarm, generation + 1);
      rig.ExpectExecuted(generation + 1);
    }));
  }
  std::sort(warm.begin(), warm.end());
  fmt::print("cold {:.0f} ms, n = 1; warm {:.0f} ms, median of {}; {:.0f} times as fast\n", cold,
             warm[warm.size() / 2], warm.size(), cold / warm[warm.size() / 2]);
}

}  // namespace
}  // namespace muster::supervisor

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc < 2) return 2;
  muster::supervisor::python = argv[1];
  if (argc > 2) muster::supervisor::starts = std::atoi(argv[2]);
  return RUN_ALL_TESTS();
}
