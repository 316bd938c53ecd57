#include "net/preflight/verbs_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/small_files.h"
#include "base/unique_fd.h"
#include "net/preflight/pacer.h"
#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kQueuePairs = 4;
constexpr uint32_t kDepth = 4;            // writes under way on each
constexpr uint32_t kMessage = 64 * 1024;  // bytes
constexpr auto kAnswer = std::chrono::seconds(2);
// An adapter sends again after 67 ms, seven times: a path that is dead is known after half a second.
constexpr uint8_t kTimeout = 14;
constexpr uint8_t kRetries = 7;
constexpr uint8_t kHops = 64;
constexpr uint64_t kPings = 1'000;
// Who waits for a write looks at memory alone, and at all else once in so many looks: a clock may be an exit from a virtual machine.
constexpr uint32_t kLooks = 4'096;
// Behind the memory of the writes: what the other side has written here, and what is to be written there.
constexpr size_t kInbox = kQueuePairs * kMessage;
constexpr size_t kOutbox = kInbox + 64;
constexpr size_t kMemory = kOutbox + 64;

// What one side tells the other. Both are hosts of one cluster, with one byte order.
struct Wire {
  std::array<char, 8> magic{'m', 'u', 's', 't', 'e', 'r', 'v', '1'};
  uint32_t usable = 0;  // 0: `why`
  std::array<uint32_t, kQueuePairs> queue_pairs{};
  uint32_t rkey = 0;
  uint64_t address = 0;
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;  // ibv_mtu
  uint8_t padding = 0;
  std::array<char, 128> why{};
};

Error Failed(const char* what, int error) {
  const Errc code = error == EACCES || error == EPERM || error == ENOMEM ? Errc::kDenied : Errc::kUnavailable;
  return {code, fmt::format("{}: {}", what, std::strerror(error))};
}

Error Unreadable() {
  return {Errc::kUnavailable, "the completion queue cannot be read"};
}

Error Unwritten(const ibv_wc& done) {
  return {Errc::kUnavailable, fmt::format("a write failed: {} ({})", ::ibv_wc_status_str(done.status),
                                          static_cast<int>(done.status))};
}

struct CloseDevice {
  void operator()(ibv_context* context) const { ::ibv_close_device(context); }
};
struct Deallocate {
  void operator()(ibv_pd* domain) const { ::ibv_dealloc_pd(domain); }
};
struct Deregister {
  void operator()(ibv_mr* region) const { ::ibv_dereg_mr(region); }
};
struct DestroyQueue {
  void operator()(ibv_cq* queue) const { ::ibv_destroy_cq(queue); }
};
struct DestroyPair {
  void operator()(ibv_qp* pair) const { ::ibv_destroy_qp(pair); }
};

Status Exchange(int socket, const Wire& own, Wire& theirs) {
  const auto until = Clock::now() + kAnswer;
  if (Status sent = rendezvous::SendAll(socket, std::as_bytes(std::span(&own, 1)), until); !sent) return sent;
  const auto bytes = std::as_writable_bytes(std::span(&theirs, 1));
  for (size_t got = 0; got < bytes.size();) {
    const auto part = rendezvous::ReceiveSome(socket, bytes.subspan(got), until);
    if (!part) return part.error();
    got += *part;
  }
  if (theirs.magic != Wire().magic) return Error{Errc::kInvalid, "the other side speaks of something else"};
  theirs.why.back() = '\0';
  if (theirs.usable == 0)
    return Error{Errc::kUnavailable, fmt::format("the other side: {}", theirs.why.data())};
  return {};
}

// "uverbs0"; "": the kernel has none for it.
std::string DeviceFile(const std::string& device, const std::string& root) {
  const std::string directory = root + "/sys/class/infiniband_verbs";
  for (const std::string& name : ListDirectory(directory)) {
    if (ReadLine(directory + "/" + name + "/ibdev") == device) return name;
  }
  return "";
}

std::string FixOfDeviceFile(const std::string& file, int error) {
  switch (error) {
    case EACCES:
      return fmt::format("chmod a+x /dev/infiniband; chmod a+rw {}", file);
    case EPERM:
      return fmt::format("let the cgroup of the job or the container have the device: --device={}", file);
    case ENOENT:
      return "let the container have /dev/infiniband: --device=/dev/infiniband; on the host: modprobe "
             "ib_uverbs";
    default:
      return "rdma link show";
  }
}

}  // namespace

// In the order in which they are made; they are destroyed in the opposite one.
struct VerbsEndpoint::State {
  VerbsPort port;
  std::unique_ptr<ibv_context, CloseDevice> context;
  ibv_port_attr attributes{};
  ibv_gid gid{};
  std::unique_ptr<ibv_pd, Deallocate> domain;
  std::vector<char> memory;
  std::unique_ptr<ibv_mr, Deregister> region;
  std::unique_ptr<ibv_cq, DestroyQueue> completions;
  std::vector<std::unique_ptr<ibv_qp, DestroyPair>> pairs;
  uint64_t path_mtu = 0;  // bytes
  uint64_t their_address = 0;
  uint32_t their_key = 0;
  bool can_inline = false;
  uint32_t pings_under_way = 0;

  [[nodiscard]] bool Ethernet() const { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
  Status OpenDevice();
  Status MakePairs();
  Status ToReady(const Wire& theirs);
  Status Post(size_t pair);
  [[nodiscard]] uint64_t Inbox();
  Status PostPing(uint64_t number);
  Status ReapPings();
};

VerbsEndpoint::VerbsEndpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
VerbsEndpoint::VerbsEndpoint(VerbsEndpoint&&) noexcept = default;
VerbsEndpoint& VerbsEndpoint::operator=(VerbsEndpoint&&) noexcept = default;
VerbsEndpoint::~VerbsEndpoint() = default;

Status VerbsEndpoint::State::OpenDevice() {
  int count = 0;
  const std::unique_ptr<ibv_device*, decltype(&::ibv_free_device_list)> list(::ibv_get_device_list(&count),
                                                                             &::ibv_free_device_list);
  const std::span devices(list.get(), list == nullptr ? 0 : static_cast<size_t>(count));
  const auto found = std::ranges::find_if(
      devices, [&](ibv_device* one) { return port.device == ::ibv_get_device_name(one); });
  if (found == devices.end())
    return Error{Errc::kNotFound, fmt::format("libibverbs has no provider for {}", port.device)};
  context.reset(::ibv_open_device(*found));
  if (context == nullptr) return Failed("opening the device", errno);
  if (const int error = ::ibv_query_port(context.get(), port.port, &attributes); error != 0)
    return Failed("asking the port", error);
  if (attributes.state != IBV_PORT_ACTIVE)
    return Error{Errc::kUnavailable, fmt::format("port {} of {} is {}", port.port, port.device,
                                                 ::ibv_port_state_str(attributes.state))};
  if (::ibv_query_gid(context.get(), port.port, port.gid_index, &gid) != 0)
    return Failed("asking for the GID", errno);
  return {};
}

Status VerbsEndpoint::State::MakePairs() {
  domain.reset(::ibv_alloc_pd(context.get()));
  if (domain == nullptr) return Failed("a protection domain", errno);
  memory.resize(kMemory);
  region.reset(::ibv_reg_mr(domain.get(), memory.data(), memory.size(),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  if (region == nullptr) return Failed("registering memory, which needs LimitMEMLOCK=infinity", errno);
  completions.reset(::ibv_create_cq(context.get(), kQueuePairs * kDepth, nullptr, nullptr, 0));
  if (completions == nullptr) return Failed("a completion queue", errno);
  for (size_t i = 0; i < kQueuePairs; ++i) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions.get();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = kDepth;
    wanted.cap.max_recv_wr = 1;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = sizeof(uint64_t);
    pairs.emplace_back(::ibv_create_qp(domain.get(), &wanted));
    can_inline = pairs.back() != nullptr;
    if (!can_inline) {
      wanted.cap.max_inline_data = 0;
      pairs.back().reset(::ibv_create_qp(domain.get(), &wanted));
    }
    if (pairs.back() == nullptr) return Failed("a queue pair", errno);
    ibv_qp_attr initial{};
    initial.qp_state = IBV_QPS_INIT;
    initial.port_num = port.port;
    initial.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    const int error = ::ibv_modify_qp(pairs.back().get(), &initial,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) return Failed("preparing a queue pair", error);
  }
  return {};
}

Status VerbsEndpoint::State::ToReady(const Wire& theirs) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    ibv_qp_attr ready{};
    ready.qp_state = IBV_QPS_RTR;
    ready.path_mtu = std::min(attributes.active_mtu, static_cast<ibv_mtu>(theirs.mtu));
    ready.dest_qp_num = theirs.queue_pairs[i];
    ready.max_dest_rd_atomic = 1;
    ready.min_rnr_timer = 12;
    ready.ah_attr.port_num = port.port;
    ready.ah_attr.dlid = theirs.lid;
    if (Ethernet()) {
      ready.ah_attr.is_global = 1;
      std::memcpy(ready.ah_attr.grh.dgid.raw, theirs.gid.data(), theirs.gid.size());
      ready.ah_attr.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
      ready.ah_attr.grh.hop_limit = kHops;
      ready.ah_attr.grh.traffic_class = port.traffic_class;
    }
    int error = ::ibv_modify_qp(pairs[i].get(), &ready,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error != 0) return Failed("a way to the other side's GID", error);
    ibv_qp_attr sends{};
    sends.qp_state = IBV_QPS_RTS;
    sends.timeout = kTimeout;
    sends.retry_cnt = kRetries;
    sends.rnr_retry = kRetries;
    sends.max_rd_atomic = 1;
    error = ::ibv_modify_qp(pairs[i].get(), &sends,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0) return Failed("making a queue pair send", error);
  }
  path_mtu = 128ULL << std::min<int>(attributes.active_mtu, theirs.mtu);
  their_address = theirs.address;
  their_key = theirs.rkey;
  return {};
}

Status VerbsEndpoint::State::Post(size_t pair) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uint64_t>(memory.data() + pair * kMessage);
  piece.length = kMessage;
  piece.lkey = region->lkey;
  ibv_send_wr write{};
  write.wr_id = pair;
  write.sg_list = &piece;
  write.num_sge = 1;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = IBV_SEND_SIGNALED;
  write.wr.rdma.remote_addr = their_address + pair * kMessage;
  write.wr.rdma.rkey = their_key;
  ibv_send_wr* bad = nullptr;
  const int error = ::ibv_post_send(pairs[pair].get(), &write, &bad);
  return error == 0 ? Status() : Failed("a write", error);
}

// The adapter writes it.
uint64_t VerbsEndpoint::State::Inbox() {
  auto& number = *reinterpret_cast<uint64_t*>(memory.data() + kInbox);
  return std::atomic_ref(number).load(std::memory_order_acquire);
}

Status VerbsEndpoint::State::PostPing(uint64_t number) {
  std::memcpy(memory.data() + kOutbox, &number, sizeof(number));
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uint64_t>(memory.data() + kOutbox);
  piece.length = sizeof(number);
  piece.lkey = region->lkey;
  ibv_send_wr write{};
  write.sg_list = &piece;
  write.num_sge = 1;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = IBV_SEND_SIGNALED;
  if (can_inline) write.send_flags |= IBV_SEND_INLINE;
  write.wr.rdma.remote_addr = their_address + kInbox;
  write.wr.rdma.rkey = their_key;
  ibv_send_wr* bad = nullptr;
  const int error = ::ibv_post_send(pairs.front().get(), &write, &bad);
  if (error != 0) return Failed("a write", error);
  ++pings_under_way;
  return {};
}

Status VerbsEndpoint::State::ReapPings() {
  ibv_wc done{};
  const int count = ::ibv_poll_cq(completions.get(), 1, &done);
  if (count < 0) return Unreadable();
  if (count == 0) return {};
  --pings_under_way;
  return done.status == IBV_WC_SUCCESS ? Status() : Unwritten(done);
}

Result<VerbsEndpoint> VerbsEndpoint::Open(const VerbsPort& port) {
  auto state = std::make_unique<State>();
  state->port = port;
  if (Status opened = state->OpenDevice(); !opened) return opened.error();
  if (Status made = state->MakePairs(); !made) return made.error();
  return VerbsEndpoint(std::move(state));
}

Status VerbsEndpoint::Connect(int socket) {
  Wire own;
  own.usable = 1;
  for (size_t i = 0; i < kQueuePairs; ++i) own.queue_pairs[i] = state_->pairs[i]->qp_num;
  own.rkey = state_->region->rkey;
  own.address = reinterpret_cast<uint64_t>(state_->memory.data());
  std::memcpy(own.gid.data(), state_->gid.raw, own.gid.size());
  own.lid = state_->attributes.lid;
  own.mtu = static_cast<uint8_t>(state_->attributes.active_mtu);
  Wire theirs;
  if (Status exchanged = Exchange(socket, own, theirs); !exchanged) return exchanged;
  if (Status ready = state_->ToReady(theirs); !ready) {
    RefuseEndpoint(socket, ready.error().message);
    return ready;
  }
  // Nobody writes before both are ready.
  Wire again;
  return Exchange(socket, own, again);
}

Result<double> VerbsEndpoint::Ping(std::chrono::milliseconds time) {
  auto shortest = Clock::duration::max();
  const auto end = Clock::now() + time;
  auto began = Clock::now();
  for (uint64_t number = 1; number <= kPings && began < end; ++number) {
    if (Status posted = state_->PostPing(number); !posted) return posted.error();
    const auto late = began + kAnswer;
    for (uint32_t looks = 1; state_->Inbox() != number; ++looks) {
      if (looks % kLooks != 0) continue;
      if (Status reaped = state_->ReapPings(); !reaped) return reaped.error();
      if (Clock::now() > late) return Error{Errc::kUnavailable, "no write of the other side comes"};
      std::this_thread::yield();
    }
    shortest = std::min(shortest, Clock::now() - began);
    // A ping's time ends when the answer is here. The adapter is asked for the completion of the write before the next ping's time begins.
    for (began = Clock::now(); state_->pings_under_way > 0; began = Clock::now()) {
      if (Status reaped = state_->ReapPings(); !reaped) return reaped.error();
      if (began > late) return Error{Errc::kUnavailable, "a write is not done in time"};
    }
  }
  if (shortest == Clock::duration::max()) return 0.0;
  return std::chrono::duration<double, std::micro>(shortest).count() / 2;
}

void VerbsEndpoint::AnswerPings(int socket, std::chrono::milliseconds time) {
  uint64_t answered = 0;
  const auto end = Clock::now() + time + kAnswer;
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t number = state_->Inbox();
    if (number != answered) {
      // The last answer's completion is due.
      if (state_->pings_under_way < kDepth) {
        if (!state_->PostPing(number)) return;
        answered = number;
      }
      if (!state_->ReapPings()) return;
    }
    if (looks % kLooks != 0) continue;
    if (!state_->ReapPings()) return;
    pollfd entry{socket, POLLIN, 0};
    if (::poll(&entry, 1, 0) > 0 || Clock::now() > end) return;
    std::this_thread::yield();
  }
}

Result<double> VerbsEndpoint::Write(std::chrono::milliseconds duration, uint64_t pace) {
  const auto began = Clock::now();
  const auto counts = began + duration / 5;
  const auto end = began + duration;
  Pacer pacer(began, kMessage, pace, state_->path_mtu);
  uint32_t under_way = 0;
  std::array<uint32_t, kQueuePairs> of_pair{};
  size_t pair = 0;
  const auto post = [&](Clock::time_point now) -> Status {
    while (pacer.Due(now) && under_way < kDepth * kQueuePairs) {
      pair = NextPair(of_pair, pair);
      if (Status posted = state_->Post(pair); !posted) return posted;
      ++of_pair[pair];
      ++under_way;
      pacer.Posted(now);
    }
    return {};
  };
  uint64_t all = 0;  // bytes
  uint64_t counted = 0;
  auto first = began;
  auto last = began;
  std::array<ibv_wc, 16> done{};
  // What is under way at the end is waited for: it goes as fast, and its memory is let go then.
  for (auto now = began; now < end || (under_way > 0 && now < end + kAnswer); now = Clock::now()) {
    if (now < end) {
      if (Status posted = post(now); !posted) return posted.error();
    }
    const int count = ::ibv_poll_cq(state_->completions.get(), done.size(), done.data());
    if (count < 0) return Unreadable();
    if (count == 0) {
      std::this_thread::yield();
      continue;
    }
    now = Clock::now();
    for (const ibv_wc& one : std::span(done).first(static_cast<size_t>(count))) {
      --under_way;
      --of_pair[one.wr_id];
      if (one.status != IBV_WC_SUCCESS) return Unwritten(one);
    }
    const uint64_t written = static_cast<uint64_t>(count) * kMessage;
    all += written;
    last = now;
    if (first != began) {
      counted += written;
    } else if (now >= counts) {
      first = now;  // what was written so far belongs to the time before
    }
  }
  if (under_way > 0 || all == 0) return Error{Errc::kUnavailable, "writes are not done in time"};
  const bool few = counted == 0;
  // The last write has its gap too.
  const std::chrono::duration<double> took = last - (few ? began - pacer.gap() : first);
  return static_cast<double>(few ? all : counted) * 8 / took.count() / 1e6;
}

NoVerbs TryVerbs(const VerbsPort& port, const std::string& root) {
  const std::string name = DeviceFile(port.device, root);
  if (name.empty()) return {fmt::format("the kernel has no uverbs of {}", port.device), "modprobe ib_uverbs"};
  const std::string directory = "/dev/infiniband";
  const std::string file = directory + "/" + name;
  if (!UniqueFd(::open((root + file).c_str(), O_RDWR | O_CLOEXEC)).valid()) {
    const int error = errno;
    const bool all = error == ENOENT && ::access((root + directory).c_str(), F_OK) != 0;
    return {fmt::format("{}: {}", all ? directory : file, std::strerror(error)),
            FixOfDeviceFile(file, error)};
  }
  const auto endpoint = VerbsEndpoint::Open(port);
  if (endpoint) return {};
  switch (endpoint.error().code) {
    case Errc::kNotFound:
      return {endpoint.error().message, "apt-get install ibverbs-providers"};
    case Errc::kDenied:
      return {endpoint.error().message, "LimitMEMLOCK=infinity in the unit of slurmd"};
    default:
      return {endpoint.error().message, fmt::format("rdma link show {}/{}", port.device, port.port)};
  }
}

void RefuseEndpoint(int socket, const std::string& why) {
  Wire own;
  own.why.fill('\0');
  std::copy_n(why.begin(), std::min(why.size(), own.why.size() - 1), own.why.begin());
  (void)rendezvous::SendAll(socket, std::as_bytes(std::span(&own, 1)), Clock::now() + kAnswer);
}

}  // namespace muster::preflight
