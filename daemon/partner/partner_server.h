// Takes copies of other nodes' shards, and gives out what a node has of shards.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/beat/address.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/stock.h"

namespace muster {

namespace v1 {
class CopyOffer;
class CopyRequest;
}  // namespace v1
class PartnerStream;

struct PartnerServerOptions {
  std::string listen_address = "0.0.0.0";
  uint16_t port = 0;  // 0: a free one
  std::string self;   // this node's name
  uint32_t service_uid = 0;
};

// A thread for each connection: one that is slow or dead costs only itself. Connections are few (a node is one node's
// partner in each gang, or one of a group) and bounded all the same, in all and for each address.
class PartnerServer {
 public:
  static Result<std::unique_ptr<PartnerServer>> Start(PartnerServerOptions options, PartnerStock stock);
  // Ends all connections.
  ~PartnerServer();
  PartnerServer(const PartnerServer&) = delete;
  PartnerServer& operator=(const PartnerServer&) = delete;

  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  struct Connection {
    BeatAddress from;
    std::thread thread;
    std::atomic<bool> over{false};
  };

  PartnerServer(PartnerServerOptions options, PartnerStock stock, UniqueFd socket, uint16_t port);
  void Listen();
  void Reap(bool all);
  [[nodiscard]] bool MayTake(const BeatAddress& from) const;
  void Serve(UniqueFd socket) const;
  Status Take(PartnerStream& stream, const v1::CopyOffer& offer) const;
  Status Give(PartnerStream& stream, const v1::CopyRequest& request) const;

  const PartnerServerOptions options_;
  const PartnerStock stock_;
  const UniqueFd socket_;
  const uint16_t port_;
  const std::shared_ptr<Cancel> cancel_ = std::make_shared<Cancel>();
  std::list<Connection> connections_;  // the listening thread's
  std::thread listener_;
};

}  // namespace muster
