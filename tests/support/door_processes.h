// The processes of a local socket's door.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace muster {

// The door, and four that wait in accept. With one less for a moment, where one of these has just accepted.
inline constexpr size_t kDoorWithoutConnections = 5;

// The door's of this socket, those that wait in accept, and one for each connection.
inline std::vector<pid_t> DoorProcesses(const std::string& socket) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line;
    std::getline(file, line);  // nothing of one that has ended meanwhile
    if (line.find(std::string("muster-door") + '\0' + socket) != std::string::npos)
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

// Waits until there are as many as that; gives how many there are.
inline size_t WaitForDoorProcesses(const std::string& socket, size_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  size_t found = DoorProcesses(socket).size();
  while (found != expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = DoorProcesses(socket).size();
  }
  return found;
}

}  // namespace muster
