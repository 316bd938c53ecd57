#include "tests/unit/client/fake_musterd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "client/muster.h"

namespace muster {
namespace {

UniqueFd MemoryOf(const std::string& bytes, bool sealed) {
  UniqueFd fd(::memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  if (sealed) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  }
  return fd;
}

}  // namespace

FakeMusterd::FakeMusterd(std::string socket_path) : path_(std::move(socket_path)) {
  Start();
}

FakeMusterd::~FakeMusterd() {
  Stop();
}

void FakeMusterd::Start() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path_.size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, path_.c_str());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener_.get(), 16), 0);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  wake_read_.reset(pipe[0]);
  wake_write_.reset(pipe[1]);
  thread_ = std::thread([this] {
    // As musterd's beats: what libmuster waits for is a second at most. Without the right to it, as the others.
    const sched_param first{.sched_priority = 1};
    ::pthread_setschedparam(::pthread_self(), SCHED_RR, &first);
    Serve();
  });
}

void FakeMusterd::Stop() {
  if (!thread_.joinable()) return;
  wake_write_.reset();
  thread_.join();
  const std::lock_guard lock(mutex_);
  clients_.clear();
  listener_.reset();
  ::unlink(path_.c_str());
}

void FakeMusterd::Change(const std::function<void(Rules&)>& change) {
  const std::lock_guard lock(mutex_);
  change(rules_);
}

void FakeMusterd::PutShard(uint64_t step, const std::string& bytes, bool sealed) {
  const std::lock_guard lock(mutex_);
  shards[step] = bytes;
  unsealed_[step] = !sealed;
}

bool FakeMusterd::Await(const std::function<bool(const FakeMusterd&)>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::seconds(10),
                             [&] { return condition(*this); });
}

void FakeMusterd::Look(const std::function<void(const FakeMusterd&)>& look) {
  const std::lock_guard lock(mutex_);
  look(*this);
}

void FakeMusterd::Serve() {
  for (;;) {
    std::vector<pollfd> polled{{wake_read_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const UniqueFd& client : clients_) polled.push_back({client.get(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    const std::lock_guard lock(mutex_);
    if (polled[1].revents != 0) {
      clients_.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    for (size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::vector<char> packet(wire::kMaxMessage);
      iovec part{packet.data(), packet.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t n = ::recvmsg(polled[i].fd, &message, MSG_CMSG_CLOEXEC);
      if (n <= 0) {
        std::erase_if(clients_, [&](const UniqueFd& client) { return client.get() == polled[i].fd; });
        changed_.notify_all();
        continue;
      }
      UniqueFd memory;
      if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        memory.reset(fd);
      }
      Take(polled[i].fd, packet.data(), static_cast<size_t>(n), std::move(memory));
      changed_.notify_all();
    }
  }
}

void FakeMusterd::Take(int fd, const char* packet, size_t size, UniqueFd memory) {
  wire::Header header;
  ASSERT_EQ(wire::CheckHeader(packet, size, &header), wire::Check::kOk);
  switch (static_cast<wire::Type>(header.type)) {
    case wire::Type::kClientHello: {
      wire::ClientHello hello;
      ASSERT_TRUE(wire::ReadBody(packet, size, &hello));
      const uint32_t sizes[1] = {hello.gang_bytes};
      const char* pieces[1];
      ASSERT_TRUE(wire::ReadTail<wire::ClientHello>(packet, size, sizes, pieces));
      for (uint8_t i = 0; i < wire::kTokenBytes; ++i) EXPECT_EQ(hello.token[i], 0xa0 + i);
      hellos.push_back(std::string(pieces[0], hello.gang_bytes) + " rank " + std::to_string(hello.rank) +
                       " generation " + std::to_string(hello.generation));
      if (rules_.refusal != wire::Refusal{}) {
        wire::Refused refused{};
        wire::SetHeader(&refused, wire::Type::kRefused, rules_.refusal_text.size());
        refused.reason = static_cast<uint32_t>(rules_.refusal);
        refused.text_bytes = static_cast<uint32_t>(rules_.refusal_text.size());
        std::string bytes(reinterpret_cast<const char*>(&refused), sizeof(refused));
        bytes += rules_.refusal_text;
        return Send(fd, bytes.data(), bytes.size());
      }
      wire::ClientWelcome welcome{};
      wire::SetHeader(&welcome, wire::Type::kClientWelcome);
      welcome.generation = hello.generation;
      welcome.rank = hello.rank;
      welcome.world_size = 4;
      welcome.restore_step = rules_.restore_step;
      welcome.max_shard_bytes = rules_.max_shard_bytes;
      welcome.features = rules_.features;
      welcome.reconnect_ms = rules_.reconnect_ms;
      if (rules_.first_version) welcome.header.size = wire::kFirstClientWelcome;
      Send(fd, &welcome, welcome.header.size);
      for (const uint64_t step : rules_.tells) SendResult(fd, wire::Type::kCommitted, step, 0, "");
      return;
    }
    case wire::Type::kSave: {
      wire::Save save;
      ASSERT_TRUE(wire::ReadBody(packet, size, &save));
      ASSERT_TRUE(memory.valid());
      EXPECT_NE(::fcntl(memory.get(), F_GET_SEALS) & F_SEAL_SHRINK, 0);
      std::string bytes(save.bytes, '\0');
      ASSERT_EQ(::pread(memory.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
      shards[save.step] = bytes;
      saves.push_back(save.step);
      if (rules_.durable) SendResult(fd, wire::Type::kShardDurable, save.step, 0, "");
      if (rules_.committed) {
        SendResult(fd, wire::Type::kCommitted, save.step, rules_.save_status, rules_.save_text);
      }
      return;
    }
    case wire::Type::kGiveUp: {
      wire::GiveUp give_up;
      ASSERT_TRUE(wire::ReadBody(packet, size, &give_up));
      given_up.push_back(give_up.step);
      return SendResult(fd, wire::Type::kShardDurable, give_up.step, MUSTER_E_STORE, "it was given up");
    }
    case wire::Type::kAskOutcome: {
      wire::AskOutcome ask;
      ASSERT_TRUE(wire::ReadBody(packet, size, &ask));
      asked.push_back(ask.step);
      return;
    }
    case wire::Type::kAskMemory: {
      wire::AskMemory ask;
      struct stat info {};
      ASSERT_TRUE(wire::ReadBody(packet, size, &ask));
      ASSERT_EQ(::fstat(memory.get(), &info), 0);
      wanted.push_back(ask.bytes);
      if (!rules_.answers_memory) return;
      if (granted_.size() < rules_.memories) granted_.insert(info.st_ino);
      const bool granted = granted_.contains(info.st_ino) && ask.bytes <= rules_.most_memory;
      static_assert(sizeof(wire::MemoryAnswer) == sizeof(wire::Committed));
      return SendResult(fd, wire::Type::kMemoryAnswer, ask.number, granted ? 0 : MUSTER_E_NO_MEMORY,
                        granted ? "" : "the job's memory limit leaves 3 MiB");
    }
    case wire::Type::kRestore: {
      wire::Restore restore;
      ASSERT_TRUE(wire::ReadBody(packet, size, &restore));
      wire::Restored restored{};
      restored.step = restore.step == wire::kNoStep ? rules_.restore_step : restore.step;
      wire::SetHeader(&restored, wire::Type::kRestored);
      if (restore.rank != wire::kOwnShard && !rules_.first_version) {
        const auto other = others.find({restored.step, restore.rank});
        restored.status = other == others.end() ? -4 : 0;
        if (other == others.end()) return Send(fd, &restored, sizeof(restored));
        restored.bytes = other->second.size();
        return Send(fd, &restored, sizeof(restored), MemoryOf(other->second, true).get());
      }
      const auto found = shards.find(restored.step);
      if (found == shards.end()) {
        restored.status = -5;
        return Send(fd, &restored, sizeof(restored));
      }
      restored.bytes = found->second.size();
      return Send(fd, &restored, sizeof(restored), MemoryOf(found->second, !unsealed_[restored.step]).get());
    }
    case wire::Type::kDescribe:
      return Describe(fd, packet, size);
    case wire::Type::kReadRange:
      return ReadRange(fd, packet, size);
    case wire::Type::kStepPage: {
      EXPECT_NE(::fcntl(memory.get(), F_GET_SEALS) & F_SEAL_SHRINK, 0);
      if (!rules_.takes_page) return;
      void* const at =
          ::mmap(nullptr, wire::kStepPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
      ASSERT_NE(at, MAP_FAILED);
      page = std::shared_ptr<wire::StepPage>(static_cast<wire::StepPage*>(at), [](wire::StepPage* mapped) {
        ::munmap(mapped, wire::kStepPageBytes);
      });
      wire::StepPageHandover taken{};
      wire::SetHeader(&taken, wire::Type::kStepPageTaken);
      return Send(fd, &taken, sizeof(taken));
    }
    default:
      FAIL() << "unexpected message of type " << header.type;
  }
}

void FakeMusterd::Describe(int fd, const char* packet, size_t size) {
  wire::Describe describe;
  ASSERT_TRUE(wire::ReadBody(packet, size, &describe));
  wire::Described described{};
  const std::string& error = rules_.described_error;
  wire::SetHeader(&described, wire::Type::kDescribed, error.size());
  described.step = describe.step == wire::kNoStep ? rules_.restore_step : describe.step;
  described.world_size = rules_.restore_world;
  described.status = error.empty() ? 0 : -6;
  described.text_bytes = static_cast<uint32_t>(error.size());
  const std::string bytes = std::string(reinterpret_cast<const char*>(&described), sizeof(described)) + error;
  Send(fd, bytes.data(), bytes.size());
}

void FakeMusterd::ReadRange(int fd, const char* packet, size_t size) {
  wire::ReadRange asked;
  ASSERT_TRUE(wire::ReadBody(packet, size, &asked));
  ranges.push_back({asked.rank, asked.offset, asked.bytes});
  wire::RangeRead read{};
  wire::SetHeader(&read, wire::Type::kRangeRead);
  read.step = asked.step;
  read.offset = asked.offset;
  read.checkpoint = rules_.checkpoint;
  const auto shard = others.find({asked.step, asked.rank});
  if (shard == others.end() || asked.offset > shard->second.size()) {
    read.status = -5;
    return Send(fd, &read, sizeof(read));
  }
  const std::string part = shard->second.substr(asked.offset, asked.bytes);
  read.bytes = part.size() - std::min<uint64_t>(rules_.range_cut, part.size());
  read.shard_bytes = shard->second.size();
  Send(fd, &read, sizeof(read), MemoryOf(part, rules_.range_sealed).get());
}

void FakeMusterd::Send(int fd, const void* packet, size_t size, int descriptor) {
  iovec part{const_cast<void*>(packet), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  (void)::sendmsg(fd, &message, MSG_NOSIGNAL);  // the client may be gone
}

void FakeMusterd::SendResult(int fd, wire::Type type, uint64_t step, int status, const std::string& text) {
  static_assert(sizeof(wire::ShardDurable) == sizeof(wire::Committed));
  static_assert(sizeof(wire::ShardDelayed) == sizeof(wire::Committed));
  wire::Committed result{};
  wire::SetHeader(&result, type, text.size());
  result.step = step;
  result.status = status;
  result.text_bytes = static_cast<uint32_t>(text.size());
  const std::string bytes = std::string(reinterpret_cast<const char*>(&result), sizeof(result)) + text;
  Send(fd, bytes.data(), bytes.size());
}

void FakeMusterd::SendDurable(uint64_t step, int status, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const UniqueFd& client : clients_)
    SendResult(client.get(), wire::Type::kShardDurable, step, status, text);
}

void FakeMusterd::SendDelayed(uint64_t step, int status, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const UniqueFd& client : clients_)
    SendResult(client.get(), wire::Type::kShardDelayed, step, status, text);
}

void FakeMusterd::SendCommitted(uint64_t step, int status, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const UniqueFd& client : clients_)
    SendResult(client.get(), wire::Type::kCommitted, step, status, text);
}

void FakeMusterd::Order(const wire::StepOrder& order) {
  const std::lock_guard lock(mutex_);
  wire::WriteOrder(page.get(), order);
}

void FakeMusterd::SeeClient() {
  const std::lock_guard lock(mutex_);
  const auto then = std::chrono::steady_clock::now() + std::chrono::hours(1);
  __atomic_store_n(&page->seen_ns, then.time_since_epoch() / std::chrono::nanoseconds(1), __ATOMIC_RELAXED);
}

void FakeMusterd::SendRaw(const std::string& packet) {
  const std::lock_guard lock(mutex_);
  for (const UniqueFd& client : clients_) Send(client.get(), packet.data(), packet.size());
}

}  // namespace muster
