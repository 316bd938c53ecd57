// The gangs that this daemon coordinates, and the links of their agents.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/base/loop.h"
#include "daemon/config/config.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/rpc/link.h"

namespace muster {

// On the loop's thread, but for Accept.
class Coordinators {
 public:
  Coordinators(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store);
  ~Coordinators();

  // For Server: a daemon has opened a link. Any thread.
  LinkEvents Accept(std::shared_ptr<Link> link);

  // The gang with this id, or null.
  [[nodiscard]] std::shared_ptr<Coordinator> Find(const std::string& gang) const;
  [[nodiscard]] const std::map<std::string, std::shared_ptr<Coordinator>>& gangs() const { return gangs_; }

 private:
  struct Attendance {
    std::string gang;
    uint32_t node = 0;
  };
  void OnMessage(const std::shared_ptr<Link>& link, const std::string& payload);
  void OnClosed(const std::shared_ptr<Link>& link);
  std::shared_ptr<Coordinator> For(const v1::Register& registration, std::string* why_not);

  Loop& loop_;
  const Config& config_;
  std::string self_;
  std::shared_ptr<Store> store_;
  std::map<std::string, std::shared_ptr<Coordinator>> gangs_;
  std::map<const Link*, Attendance> attendances_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster
