#include "net/roce/ways.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/small_files.h"

namespace muster::roce {
namespace {

constexpr const char* kNotForced = "not forced";

}  // namespace

Way Cma(const Host& host, const RdmaPort& port, const std::string& file, const std::string& should,
        const std::string& at_first) {
  const std::string all = host.root + "/sys/kernel/config/rdma_cm";
  const std::string device = all + "/" + port.device;
  const std::string path = device + "/ports/" + port.port + "/" + file;
  return {"configfs", should,
          [=]() -> Result<std::string> {
            if (::access(all.c_str(), F_OK) != 0)
              return Error{Errc::kUnavailable, fmt::format("{} is missing: rdma_cm is not loaded", all)};
            const auto text = ReadSmallFile(path);
            if (!text) return at_first;
            return ReadLine(path);
          },
          fmt::format("mkdir -p {} && echo '{}' >{}", device, should, path),
          [=]() -> Status {
            if (::mkdir(device.c_str(), 0755) != 0 && errno != EEXIST)
              return Error{Errc::kDenied, fmt::format("{}: {}", device, std::strerror(errno))};
            return WriteValue(path, should);
          }};
}

std::string ForcedClassFile(const Host& host, const RdmaPort& port) {
  return fmt::format("{}/sys/class/infiniband/{}/tc/{}/traffic_class", host.root, port.device, port.port);
}

Way ForcedClass(const Host& host, const Settings& settings, const RdmaPort& port) {
  const std::string path = ForcedClassFile(host, port);
  const auto read = [path]() -> Result<std::string> {
    if (!ReadSmallFile(path)) return Error{Errc::kUnavailable, fmt::format("{} cannot be read", path)};
    const std::string line = ReadLine(path);  // "Global tclass=106"
    return line.empty() ? std::string(kNotForced) : line.substr(line.find('=') + 1);
  };
  const std::string value = std::to_string(settings.TrafficClass());
  const auto now = read();
  return {"sysfs", now && *now == kNotForced ? kNotForced : value, read,
          fmt::format("echo {} >{}", value, path), [path, value] { return WriteValue(path, value); }};
}

Way NcclClass(const std::string& is, const Settings& settings) {
  const int64_t should = settings.TrafficClass();
  // As NCCL reads it: decimal, hexadecimal or octal.
  char* end = nullptr;
  const int64_t value = std::strtoll(is.c_str(), &end, 0);
  const bool same = !is.empty() && *end == '\0' && value == should;
  return {"nccl.conf", same ? is : std::to_string(should), [is]() -> Result<std::string> { return is; },
          fmt::format("sed -i 's/^ *NCCL_IB_TC *=.*/NCCL_IB_TC={}/' /etc/nccl.conf", should)};
}

}  // namespace muster::roce
