// What members are told of this node's RoCE fabric: NCCL's variables, as net/fabric finds them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster {

// Looks at the settings and the adapters on a thread of its own, for a driver may let a reader of its files wait, and now and then
// anew: interfaces come and go. Thread-safe.
class FabricEnvironment {
 public:
  explicit FabricEnvironment(std::string settings_path);
  ~FabricEnvironment();
  FabricEnvironment(const FabricEnvironment&) = delete;
  FabricEnvironment& operator=(const FabricEnvironment&) = delete;

  // "KEY=VALUE". Empty without settings, without a fabric, and until it was looked at first.
  [[nodiscard]] std::vector<std::string> Variables();

 private:
  void Run();

  const std::string settings_path_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> variables_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster
