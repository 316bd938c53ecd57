// A real musterd as a child process, for its memory to be its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace muster {

class MusterdProcess {
 public:
  // `directory` takes its configuration, store, state and log; `name` is its node's. To be made before any other
  // thread: it forks. Ends the program when musterd does not come up.
  MusterdProcess(const std::string& program, const std::string& directory, const std::string& name,
                 uint16_t port);
  ~MusterdProcess();
  MusterdProcess(const MusterdProcess&) = delete;
  MusterdProcess& operator=(const MusterdProcess&) = delete;

  // The most memory that it has had resident so far.
  [[nodiscard]] double PeakRssMb() const;
  [[nodiscard]] double CpuSeconds() const;

 private:
  pid_t pid_ = -1;
  std::string log_;
};

}  // namespace muster
