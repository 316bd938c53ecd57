#include "daemon/rpc/grpc_link.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "daemon/auth/auth_session.h"
#include "daemon/proto/muster.grpc.pb.h"
#include "daemon/rpc/channel.h"

namespace muster {
namespace {

using v1::Envelope;

constexpr size_t kMaxCredential = 64 * 1024;

// What both ends share: numbering, codes, and one write at a time.
class Codec {
 public:
  Codec(Direction out, Direction in) : out_(out), in_(in) {}

  void SetKey(std::string key) { key_ = std::move(key); }
  [[nodiscard]] const std::string& key() const { return key_; }

  Envelope Seal(std::string payload) {
    Envelope envelope;
    envelope.set_sequence(next_out_);
    envelope.set_mac(Mac(key_, out_, next_out_, payload));
    envelope.set_payload(std::move(payload));
    ++next_out_;
    return envelope;
  }

  Status Check(const Envelope& envelope) {
    if (envelope.sequence() != next_in_ ||
        !SameMac(envelope.mac(), Mac(key_, in_, envelope.sequence(), envelope.payload()))) {
      return Error{Errc::kDenied, "a message did not authenticate"};
    }
    ++next_in_;
    return {};
  }

 private:
  Direction out_;
  Direction in_;
  std::string key_;
  uint64_t next_out_ = 0;
  uint64_t next_in_ = 0;
};

// Messages wait here while one is being written. Guarded by the link's mutex.
struct Outbox {
  std::deque<Envelope> waiting;
  Envelope current;
  bool writing = false;
  bool close_when_empty = false;

  // True: it is taken up for writing. Else it waits.
  bool Put(Envelope envelope) {
    waiting.push_back(std::move(envelope));
    return !writing && Next();
  }
  // Takes the next one up for writing; false when there is none: then no memory is held for the last one either.
  bool Next() {
    writing = !waiting.empty();
    current = writing ? std::move(waiting.front()) : Envelope();
    if (!writing) return false;
    waiting.pop_front();
    return true;
  }
};

class ClientLink final : public Link,
                         public grpc::ClientBidiReactor<Envelope, Envelope>,
                         public std::enable_shared_from_this<ClientLink> {
 public:
  ClientLink(std::string node, const std::string& address, LinkEvents events)
      : node_(std::move(node)),
        address_(address),
        events_(std::move(events)),
        channel_(MakeChannel(address)),
        stub_(v1::Node::NewStub(channel_)),
        codec_(Direction::kToCoordinator, Direction::kToAgent) {}

  void Begin() {
    self_ = shared_from_this();
    auto opening = OpenSession(node_);
    if (!opening) {
      events_.closed(opening.error().message);
      self_.reset();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      codec_.SetKey(opening->key);
    }
    stub_->async()->Attend(&context_, this);
    AddHold();  // until Close or the stream's end, so that Send may start writes
    bool end = false;
    {
      const std::lock_guard lock(mutex_);
      outbox_.current = codec_.Seal("");
      outbox_.current.set_credential(opening->credential);
      outbox_.writing = true;
      for (std::string& payload : early_) outbox_.waiting.push_back(codec_.Seal(std::move(payload)));
      early_.clear();
      begun_ = true;
      end = closing_;  // closed before it was open
      StartWrite(&outbox_.current);
    }
    StartRead(&incoming_);
    StartCall();
    if (end) RemoveHold();
  }

  void Send(std::string payload) override {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    if (!begun_) {
      early_.push_back(std::move(payload));
      return;
    }
    if (outbox_.Put(codec_.Seal(std::move(payload)))) StartWrite(&outbox_.current);
  }

  std::string key() const override {
    const std::lock_guard lock(mutex_);
    return codec_.key();
  }

  void Close(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (why_.empty()) why_ = why;
    }
    context_.TryCancel();
    Release();
  }

  void CloseWhenSent(const std::string& why) override {
    bool now = false;
    {
      const std::lock_guard lock(mutex_);
      if (why_.empty()) why_ = why;
      outbox_.close_when_empty = true;
      now = begun_ && !outbox_.writing;
    }
    if (now) EndWrites();
  }

  void OnWriteDone(bool ok) override {
    bool end = false;
    {
      const std::lock_guard lock(mutex_);
      outbox_.writing = false;
      if (ok && !closing_ && outbox_.Next()) {
        StartWrite(&outbox_.current);
        return;
      }
      end = ok && outbox_.close_when_empty;
    }
    if (end) EndWrites();
    if (!ok) Release();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Release();
      return;
    }
    if (const Status good = codec_in_check(); !good) {
      Close(fmt::format("{} at {}: {}", node_, address_, good.error().message));
      return;
    }
    events_.message(std::move(*incoming_.mutable_payload()));
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      why = why_;
    }
    if (why.empty()) {
      why = status.ok() ? fmt::format("{} at {} closed the connection", node_, address_)
                        : fmt::format("{} at {}: {}", node_, address_, status.error_message());
    }
    events_.closed(why);
    Discard(std::move(self_));
  }

 private:
  // The last reference to a channel must not go on a gRPC thread: the library would take its own queue apart under
  // itself.
  static void Discard(std::shared_ptr<ClientLink> link) {
    static Worker elsewhere;  // ends, after what it was given, before the library's own globals do
    elsewhere.Do([link = std::move(link)] {});
  }
  Status codec_in_check() {
    const std::lock_guard lock(mutex_);
    return codec_.Check(incoming_);
  }
  // The server sees the end of the stream after the last message, and ends it. Not on a call that has ended
  // already: gRPC has freed it by then.
  void EndWrites() {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(closing_, true)) return;
    }
    StartWritesDone();
    RemoveHold();
  }
  void Release() {
    bool mine = false;
    {
      const std::lock_guard lock(mutex_);
      mine = !std::exchange(closing_, true) && begun_;
    }
    if (mine) RemoveHold();
  }

  std::string node_;
  std::string address_;
  LinkEvents events_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Node::Stub> stub_;
  grpc::ClientContext context_;
  mutable std::mutex mutex_;
  Codec codec_;
  Outbox outbox_;
  Envelope incoming_;
  std::vector<std::string> early_;  // sent before the call could begin
  bool begun_ = false;
  bool closing_ = false;
  std::string why_;
  std::shared_ptr<ClientLink> self_;  // until OnDone
};

class ServerLink final : public Link,
                         public grpc::ServerBidiReactor<Envelope, Envelope>,
                         public std::enable_shared_from_this<ServerLink> {
 public:
  ServerLink(const ServerOptions& options, const AcceptLink& accept)
      : options_(options), accept_(accept), codec_(Direction::kToAgent, Direction::kToCoordinator) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  void Send(std::string payload) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (outbox_.Put(codec_.Seal(std::move(payload)))) StartWrite(&outbox_.current);
  }

  std::string key() const override {
    const std::lock_guard lock(mutex_);
    return codec_.key();
  }

  void Close(const std::string& why) override { FinishWith(grpc::Status(grpc::StatusCode::ABORTED, why)); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      FinishWith(grpc::Status::OK);
      return;
    }
    if (!open_) {
      auto key = Open();
      if (!key) {
        FinishWith(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, key.error().message));
        return;
      }
    } else {
      Status good;
      {
        const std::lock_guard lock(mutex_);
        good = codec_.Check(incoming_);
      }
      if (!good) {
        FinishWith(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, good.error().message));
        return;
      }
      events_.message(std::move(*incoming_.mutable_payload()));
    }
    StartRead(&incoming_);
  }

  void CloseWhenSent(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      outbox_.close_when_empty = true;
      if (outbox_.writing) return;
    }
    Close(why);
  }

  void OnWriteDone(bool ok) override {
    bool close = false;
    {
      const std::lock_guard lock(mutex_);
      outbox_.writing = false;
      if (!ok || finished_) return;
      if (outbox_.Next()) {
        StartWrite(&outbox_.current);
        return;
      }
      close = outbox_.close_when_empty;
    }
    if (close) Close("closed");
  }

  void OnCancel() override { FinishWith(grpc::Status::CANCELLED); }

  void OnDone() override {
    if (events_.closed) events_.closed("the agent closed the connection");
    self_.reset();
  }

 private:
  Status Open() {
    if (incoming_.credential().empty() || incoming_.credential().size() > kMaxCredential) {
      return Error{Errc::kDenied, "the first message carries no MUNGE credential"};
    }
    auto key = AcceptSession(incoming_.credential(), options_.self, options_.service_uid);
    if (!key) return key.error();
    {
      const std::lock_guard lock(mutex_);
      codec_.SetKey(*key);
      if (Status good = codec_.Check(incoming_); !good) return good;
    }
    open_ = true;
    events_ = accept_(self_);
    return {};
  }

  void FinishWith(const grpc::Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(finished_, true)) return;
    }
    Finish(status);
  }

  const ServerOptions& options_;
  const AcceptLink& accept_;
  LinkEvents events_;
  mutable std::mutex mutex_;
  Codec codec_;
  Outbox outbox_;
  Envelope incoming_;
  bool open_ = false;
  bool finished_ = false;
  std::shared_ptr<ServerLink> self_;  // until OnDone
};

class NodeService final : public v1::Node::CallbackService {
 public:
  NodeService(const ServerOptions& options, AcceptLink accept)
      : options_(options), accept_(std::move(accept)) {}

  grpc::ServerBidiReactor<Envelope, Envelope>* Attend(grpc::CallbackServerContext* /*context*/) override {
    const auto link = std::make_shared<ServerLink>(options_, accept_);
    link->Begin();
    return link.get();
  }

 private:
  const ServerOptions& options_;
  AcceptLink accept_;
};

// A question that waits for its answer. When nobody will give one any more, because the daemon is stopping, the
// call fails: else the server would wait for it for ever.
class OpenCall {
 public:
  OpenCall(grpc::ServerUnaryReactor* reactor, v1::Answer* answer) : reactor_(reactor), answer_(answer) {}
  ~OpenCall() {
    if (reactor_ != nullptr) reactor_->Finish({grpc::StatusCode::UNAVAILABLE, "musterd is stopping"});
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;
  void Answer(const std::string& reply) {
    if (reactor_ == nullptr) return;
    answer_->ParseFromString(reply);
    std::exchange(reactor_, nullptr)->Finish(grpc::Status::OK);
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  v1::Answer* answer_;
};

class QueryService final : public v1::Query::CallbackService {
 public:
  QueryService(const ServerOptions& options, AnswerQuestion ask) : options_(options), ask_(std::move(ask)) {}

  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const v1::Question* question,
                                v1::Answer* answer) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto& metadata = context->client_metadata();
    const auto found = metadata.find(kCredentialKey);
    if (found == metadata.end() || found->second.size() > kMaxCredential) {
      reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, "the call carries no MUNGE credential"});
      return reactor;
    }
    const std::string serialized = question->SerializeAsString();
    auto uid = AcceptQuestion({found->second.data(), found->second.size()}, options_.self, serialized);
    if (!uid) {
      reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, uid.error().message});
      return reactor;
    }
    ask_({*uid}, serialized, [call = std::make_shared<OpenCall>(reactor, answer)](const std::string& reply) {
      call->Answer(reply);
    });
    return reactor;
  }

 private:
  const ServerOptions& options_;
  AnswerQuestion ask_;
};

class GrpcServer final : public Server {
 public:
  GrpcServer(ServerOptions options, AcceptLink accept, AnswerQuestion ask)
      : options_(std::move(options)), node_(options_, std::move(accept)), query_(options_, std::move(ask)) {}
  ~GrpcServer() override {
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  Status Listen() {
    PrepareGrpc();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookahead);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(options_.dead.count()));
    builder.SetMaxReceiveMessageSize(kMaxRpcMessage);
    builder.RegisterService(&node_);
    builder.RegisterService(&query_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return Error{
          Errc::kUnavailable,
          fmt::format("cannot listen on {} (is another musterd running? see listen_address and port)",
                      options_.address)};
    }
    return {};
  }

 private:
  ServerOptions options_;
  NodeService node_;
  QueryService query_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::shared_ptr<Link> OpenLink(const std::string& node, const std::string& address, LinkEvents events,
                               const RunElsewhere& elsewhere) {
  auto link = std::make_shared<ClientLink>(node, address, std::move(events));
  elsewhere([link] { link->Begin(); });
  return link;
}

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, AcceptLink accept,
                                              AnswerQuestion ask) {
  auto server = std::make_unique<GrpcServer>(options, std::move(accept), std::move(ask));
  if (Status listening = server->Listen(); !listening) return listening.error();
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace muster
