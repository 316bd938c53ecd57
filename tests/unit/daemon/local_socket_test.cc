#include "daemon/agent/local_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/door_processes.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "wire/wire.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

int Connect(int fd, const std::string& path) {
  const sockaddr_un address = Address(path);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

UniqueFd NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval deadline{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  return fd;
}

bool SendFds(int socket, std::string_view packet, const std::vector<int>& fds) {
  iovec io{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

// "" for the end, also one that leaves what this side has said unread; "?" for nothing within the deadline.
std::string Receive(const UniqueFd& socket) {
  std::string packet(wire::kMaxMessage, '\0');
  const ssize_t n = ::recv(socket.get(), packet.data(), packet.size(), 0);
  if (n < 0) return errno == ECONNRESET ? "" : "?";
  packet.resize(static_cast<size_t>(n));
  return packet;
}

UniqueFd Memory() {
  UniqueFd memory(::memfd_create("shard", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(memory.get(), 4096), 0);
  return memory;
}

pid_t ParentOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return std::stoi(stat.substr(stat.rfind(')') + 4));
}

size_t OpenFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// A listening socket on a loop of its own thread, and what it heard.
class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() {
    auto listening = LocalSocket::Listen(
        loop_, path_, MUSTER_DOOR, chores_,
        {[this](LocalConnection& connection, Packet& packet) { OnPacket(connection, std::move(packet)); },
         [this](LocalConnection& /*connection*/) {
           const std::lock_guard lock(mutex_);
           ++closed_;
           changed_.notify_all();
         }});
    EXPECT_TRUE(listening) << listening.error().message;
    socket_ = *std::move(listening);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~LocalSocketTest() override {
    loop_.Post([this] { socket_.reset(); });
    loop_.Stop();
    thread_.join();
  }

  void OnPacket(LocalConnection& connection, Packet packet) {
    const std::lock_guard lock(mutex_);
    last_ = &connection;
    peer_ = connection.peer();
    const std::string text(packet.bytes.data(), packet.bytes.size());
    if (text.starts_with("hello")) {
      connection.TakeMemory();
      greeted_[text] = &connection;
    }
    packets_.push_back(std::move(packet));
    changed_.notify_all();
  }

  template <typename Condition>
  bool WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }
  size_t Packets() {
    const std::lock_guard lock(mutex_);
    return packets_.size();
  }
  bool WaitForPackets(size_t count) {
    return WaitFor([&] { return packets_.size() >= count; });
  }
  bool LastHasDescriptor() {
    const std::lock_guard lock(mutex_);
    return packets_.back().fd.valid();
  }
  bool WaitForDoors(size_t count) { return WaitForDoorProcesses(path_, count) == count; }
  // Runs `work` on the loop's thread.
  template <typename Work>
  auto OnLoop(Work work) {
    std::promise<decltype(work())> result;
    loop_.Post([&] { result.set_value(work()); });
    return result.get_future().get();
  }
  UniqueFd Client() {
    UniqueFd fd = NewSocket();
    EXPECT_EQ(Connect(fd.get(), path_), 0);
    return fd;
  }
  // A client whose connection the server knows, and whose memory it takes.
  UniqueFd Greeted() {
    UniqueFd fd = Client();
    const std::string hello = "hello " + std::to_string(++clients_);
    EXPECT_EQ(::send(fd.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
    EXPECT_TRUE(WaitFor([&] { return greeted_.contains(hello); }));
    OnLoop([&] { return greeted_.at(hello)->Send("welcome", 7); });
    EXPECT_EQ(Receive(fd), "welcome");
    return fd;
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path() + "/musterd.sock";
  Loop loop_;
  const std::shared_ptr<Worker> chores_ = std::make_shared<Worker>();
  std::unique_ptr<LocalSocket> socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Packet> packets_;
  LocalConnection* last_ = nullptr;
  std::map<std::string, LocalConnection*> greeted_;  // by what they have said, which begins with hello
  int clients_ = 0;
  PeerCredentials peer_;
  int closed_ = 0;
  std::thread thread_;
};

TEST_F(LocalSocketTest, APacketComesWithWhoSentIt) {
  const UniqueFd client = Client();
  ASSERT_EQ(::send(client.get(), "hello", 5, 0), 5);
  ASSERT_TRUE(WaitForPackets(1));
  EXPECT_EQ(std::string(packets_[0].bytes.begin(), packets_[0].bytes.end()), "hello");
  EXPECT_FALSE(packets_[0].fd.valid());
  EXPECT_EQ(peer_.uid, ::geteuid());
  EXPECT_EQ(peer_.pid, ::getpid());
}

TEST_F(LocalSocketTest, EveryUserMayConnect) {
  struct stat facts {};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0666U);
}

TEST_F(LocalSocketTest, AnOversizedPacketIsSeenAsTooLongAndTheNextOneIsWhole) {
  const UniqueFd client = Client();
  const std::string large(100'000, 'x');
  ASSERT_EQ(::send(client.get(), large.data(), large.size(), 0), 100'000);
  ASSERT_EQ(::send(client.get(), "next", 4, 0), 4);
  ASSERT_TRUE(WaitForPackets(2));
  EXPECT_EQ(packets_[0].bytes.size(), wire::kMaxMessage + 1);
  wire::Header header{};
  EXPECT_EQ(wire::CheckHeader(packets_[0].bytes.data(), packets_[0].bytes.size(), &header),
            wire::Check::kSize);
  EXPECT_EQ(packets_[1].bytes.size(), 4U);
}

TEST_F(LocalSocketTest, AnEmptyPacketEndsTheConnection) {
  const UniqueFd client = Client();
  ASSERT_EQ(::send(client.get(), "", 0, 0), 0);
  EXPECT_TRUE(WaitFor([&] { return closed_ == 1; }));
  EXPECT_EQ(Receive(client), "");
}

TEST_F(LocalSocketTest, MemoryComesWithItsPacket) {
  const UniqueFd client = Greeted();
  const UniqueFd memory = Memory();
  ASSERT_TRUE(SendFds(client.get(), "save", {memory.get()}));
  ASSERT_TRUE(WaitForPackets(2));
  ASSERT_TRUE(packets_[1].fd.valid());
  EXPECT_EQ(::fcntl(packets_[1].fd.get(), F_GETFD), FD_CLOEXEC);
  struct stat sent {};
  struct stat got {};
  ::fstat(memory.get(), &sent);
  ::fstat(packets_[1].fd.get(), &got);
  EXPECT_EQ(got.st_ino, sent.st_ino);
}

TEST_F(LocalSocketTest, WhoHasNotBeenLetInAndPassesSomethingIsClosed) {
  const UniqueFd client = Client();
  const UniqueFd memory = Memory();
  ASSERT_EQ(::send(client.get(), "a", 1, 0), 1);
  ASSERT_TRUE(SendFds(client.get(), "b", {memory.get()}));
  EXPECT_TRUE(WaitFor([&] { return closed_ == 1; }));
  EXPECT_EQ(packets_.size(), 1U);
  EXPECT_EQ(Receive(client), "");
}

TEST_F(LocalSocketTest, WhatIsNotMemoryStaysOutsideAndItsPacketComes) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const UniqueFd path(::open("/", O_PATH | O_CLOEXEC));
  for (const int fd : {writer.get(), path.get()}) {
    const UniqueFd client = Greeted();
    const size_t before = Packets();
    ASSERT_TRUE(SendFds(client.get(), "save", {fd}));
    ASSERT_TRUE(WaitForPackets(before + 1));
    EXPECT_FALSE(LastHasDescriptor());
  }
}

// What takes an hour to close: a connection with bytes that nobody takes, and SO_LINGER.
class Lingering {
 public:
  Lingering() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address_;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &size);
  }

  // Another process passes it, and others with it, and ends: an end does not linger.
  void PassTo(const UniqueFd& client, std::vector<int> with = {}) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(Pass(client, std::move(with)) ? 0 : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }

 private:
  [[nodiscard]] bool Pass(const UniqueFd& client, std::vector<int> with) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const linger hour{1, 3'600};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0) return false;
    const std::vector<char> bytes(1'000'000);
    while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    with.push_back(fd);
    return SendFds(client.get(), "save", with);
  }

  UniqueFd listener_;
  sockaddr_in address_{};
};

TEST_F(LocalSocketTest, WhoPassesWhatTakesAnHourToCloseHoldsNobodyUp) {
  Lingering lingering;
  const UniqueFd memory = Memory();
  const UniqueFd stranger = Client();
  lingering.PassTo(stranger);
  EXPECT_EQ(Receive(stranger), "");
  for (const bool with_memory : {false, true}) {
    const UniqueFd member = Greeted();
    lingering.PassTo(member, with_memory ? std::vector<int>{memory.get()} : std::vector<int>{});
    ASSERT_TRUE(SendFds(member.get(), "more", {memory.get()}));  // it has no trust left
    EXPECT_EQ(Receive(member), "");
  }
  UniqueFd hasty = Greeted();
  lingering.PassTo(hasty);
  hasty.reset();
  EXPECT_TRUE(WaitFor([&] { return closed_ == 4; }));
  Greeted();
  for (const Packet& packet : packets_) EXPECT_FALSE(packet.fd.valid());
}

TEST_F(LocalSocketTest, AfterTheEndOfMusterdNothingOfTheDoorIsLeft) {
  const UniqueFd stranger = Client();
  const UniqueFd member = Greeted();
  Lingering lingering;
  lingering.PassTo(member);
  EXPECT_TRUE(WaitForPackets(2));
  EXPECT_GE(DoorProcesses(path_).size(), 3U);
  OnLoop([&] {
    socket_.reset();
    return 0;
  });
  EXPECT_EQ(Receive(stranger), "");
  EXPECT_EQ(Receive(member), "");
  EXPECT_TRUE(WaitForDoors(0));
}

TEST_F(LocalSocketTest, ADoorThatIsKilledIsReplacedAndConnectionsGoOn) {
  const UniqueFd client = Greeted();
  const std::vector<pid_t> doors = DoorProcesses(path_);
  const auto door =
      std::find_if(doors.begin(), doors.end(), [](pid_t pid) { return ParentOf(pid) == ::getpid(); });
  ASSERT_NE(door, doors.end());
  ASSERT_EQ(::kill(*door, SIGKILL), 0);
  ASSERT_EQ(::send(client.get(), "a", 1, 0), 1);
  ASSERT_TRUE(WaitForPackets(2));
  // The old one's listener may still take a connection, and then drops it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  UniqueFd next;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    next = NewSocket();
    if (Connect(next.get(), path_) == 0) ::send(next.get(), "b", 1, MSG_NOSIGNAL);
  } while (Packets() < 3 && std::chrono::steady_clock::now() < deadline);
  EXPECT_GE(Packets(), 3U);
}

TEST_F(LocalSocketTest, OfSeveralDescriptorsNoneComesAndNoneLeaks) {
  const UniqueFd client = Greeted();
  const UniqueFd file = Memory();
  const size_t before = OnLoop(OpenFds);
  ASSERT_TRUE(SendFds(client.get(), "save", std::vector<int>(100, file.get())));
  ASSERT_TRUE(WaitForPackets(2));
  EXPECT_FALSE(packets_[1].fd.valid());
  EXPECT_EQ(OnLoop(OpenFds), before);
}

TEST_F(LocalSocketTest, DescriptorsThatWereNeverReadAreFreedWithTheConnection) {
  const size_t before = OnLoop(OpenFds);
  {
    const UniqueFd client = Greeted();
    const UniqueFd file = Memory();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(SendFds(client.get(), "save", {file.get()}));
  }
  ASSERT_TRUE(WaitFor([&] { return closed_ == 1; }));
  {
    const std::lock_guard lock(mutex_);
    packets_.clear();
  }
  OnLoop([] { return 0; });
  EXPECT_EQ(OnLoop(OpenFds), before);
}

TEST_F(LocalSocketTest, ASlowReaderGetsAllInOrderWithItsDescriptors) {
  const UniqueFd client = Greeted();
  const UniqueFd file = Memory();
  constexpr int kPackets = 1'000;
  const size_t before = OnLoop(OpenFds);
  OnLoop([&] {
    for (int i = 0; i < kPackets; ++i) {
      const std::string packet = std::to_string(i) + std::string(1'000, '.');
      EXPECT_TRUE(last_->Send(packet.data(), packet.size(), i % 100 == 0 ? file.get() : -1)) << i;
    }
    return 0;
  });
  for (int i = 0; i < kPackets; ++i) {
    ASSERT_EQ(Receive(client).substr(0, std::to_string(i).size()), std::to_string(i));
  }
  OnLoop([] { return 0; });
  EXPECT_EQ(OnLoop(OpenFds), before) << "the copies that waited are closed";
}

TEST_F(LocalSocketTest, AReaderThatIsTooFarBehindIsClosed) {
  const UniqueFd client = Greeted();
  const bool all_taken = OnLoop([&] {
    const std::string packet(10'000, 'x');
    for (size_t i = 0; i < LocalConnection::kMaxQueued + 200; ++i) {
      if (!last_->Send(packet.data(), packet.size())) return false;
    }
    return true;
  });
  EXPECT_FALSE(all_taken);
  EXPECT_TRUE(WaitFor([&] { return closed_ == 1; }));
}

TEST_F(LocalSocketTest, ClosingLetsWhatIsQueuedOutFirst) {
  const UniqueFd client = Greeted();
  OnLoop([&] {
    const std::string packet(10'000, 'x');
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(last_->Send(packet.data(), packet.size()));
    last_->CloseWhenSent();
    EXPECT_FALSE(last_->Send("more", 4));
    return 0;
  });
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Receive(client).size(), 10'000U) << i;
  EXPECT_EQ(Receive(client), "");
  EXPECT_TRUE(WaitFor([&] { return closed_ == 1; }));
}

TEST_F(LocalSocketTest, WhatAPeerSaysAfterTheCloseIsNotHeardAndDoesNotLoseTheLastWord) {
  const UniqueFd client = Greeted();
  ASSERT_EQ(::send(client.get(), "a", 1, 0), 1);
  ASSERT_TRUE(WaitForPackets(2));
  OnLoop([&] {
    ::send(client.get(), "b", 1, MSG_NOSIGNAL);
    last_->Send("why", 3);
    last_->CloseWhenSent();
    return 0;
  });
  EXPECT_EQ(Receive(client), "why");
  EXPECT_EQ(Receive(client), "");
  ASSERT_TRUE(WaitFor([&] { return closed_ == 1; }));
  EXPECT_EQ(packets_.size(), 2U);
}

TEST_F(LocalSocketTest, TheLastWordOfAPeerIsHeardThoughItHasNotReadAll) {
  const UniqueFd client = Greeted();
  ASSERT_TRUE(WaitForDoors(kDoorWithoutConnections + 1));
  const bool handed_over = OnLoop([&] {
    const std::string packet(10'000, 'x');
    for (int i = 0; i < 100; ++i) last_->Send(packet.data(), packet.size());
    EXPECT_EQ(::send(client.get(), "last", 4, 0), 4);
    ::shutdown(client.get(), SHUT_WR);
    return WaitForDoors(kDoorWithoutConnections);
  });
  EXPECT_TRUE(handed_over);
  ASSERT_TRUE(WaitForPackets(2));
  EXPECT_EQ(std::string(packets_[1].bytes.begin(), packets_[1].bytes.end()), "last");
}

TEST_F(LocalSocketTest, APeerThatGoesWithPacketsQueuedIsToldOfOnce) {
  {
    const UniqueFd client = Greeted();
    OnLoop([&] {
      const std::string packet(10'000, 'x');
      for (int i = 0; i < 100; ++i) last_->Send(packet.data(), packet.size());
      return 0;
    });
  }
  ASSERT_TRUE(WaitFor([&] { return closed_ >= 1; }));
  OnLoop([] { return 0; });
  EXPECT_EQ(closed_, 1);
}

TEST_F(LocalSocketTest, ThisSideMayCloseAtOnce) {
  const UniqueFd client = Greeted();
  OnLoop([&] {
    socket_->Close(*last_);
    return 0;
  });
  EXPECT_EQ(closed_, 1);
  EXPECT_EQ(Receive(client), "");
}

TEST_F(LocalSocketTest, ConnectionsComeAndGoWithoutLeaks) {
  Greeted().reset();
  ASSERT_TRUE(WaitFor([&] { return closed_ == 1; }));
  OnLoop([] { return 0; });  // the descriptor is closed after it is said
  const size_t before = OnLoop(OpenFds);
  for (int i = 0; i < 500; ++i) Greeted().reset();
  ASSERT_TRUE(WaitFor([&] { return closed_ == 501; }));
  OnLoop([] { return 0; });
  EXPECT_EQ(OnLoop(OpenFds), before);
}

TEST_F(LocalSocketTest, ItsEndClosesItsConnectionsAndRemovesItsFile) {
  const UniqueFd client = Greeted();
  OnLoop([&] {
    socket_.reset();
    return 0;
  });
  EXPECT_EQ(Receive(client), "");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LocalSocketTest, ASecondListenerIsRefusedAndTheFirstGoesOn) {
  Loop other;
  const auto second = LocalSocket::Listen(other, path_, MUSTER_DOOR, chores_, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kConflict);
  EXPECT_THAT(second.error().message, HasSubstr("another musterd"));
  Greeted();
}

TEST_F(LocalSocketTest, WithoutDescriptorsLeftConnectionsWaitAndAreTakenLater) {
  const UniqueFd first = Greeted();
  OnLoop([] { return 0; });  // the sanitizers, too, need descriptors where they come for the first time
  const UniqueFd client = NewSocket();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(Connect(client.get(), path_), 0);
  EXPECT_EQ(::send(client.get(), "hello", 5, 0), 5);
  OnLoop([] { return 0; });
  OnLoop([] { return 0; });
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(WaitForPackets(2));
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  const auto spent = [](const rusage& use) { return use.ru_utime.tv_sec + use.ru_stime.tv_sec; };
  EXPECT_LE(spent(after) - spent(before), 1) << "the loop was kept busy";
}

class ListenTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string path_ = directory_.path() + "/musterd.sock";
  Loop loop_;
};

TEST_F(ListenTest, ASocketFileThatAKilledDaemonLeftIsTakenOver) {
  {
    const UniqueFd killed = NewSocket();
    const sockaddr_un address = Address(path_);
    ASSERT_EQ(::bind(killed.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(killed.get(), 1), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  const auto listening = LocalSocket::Listen(loop_, path_, MUSTER_DOOR, nullptr, {});
  ASSERT_TRUE(listening) << listening.error().message;
}

TEST_F(ListenTest, AFileThatIsNoSocketIsLeftAlone) {
  std::ofstream(path_) << "precious";
  const auto listening = LocalSocket::Listen(loop_, path_, MUSTER_DOOR, nullptr, {});
  ASSERT_FALSE(listening);
  EXPECT_THAT(listening.error().message, HasSubstr(path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 8U);
}

TEST_F(ListenTest, APathThatCannotBeASocketsIsRefused) {
  for (const std::string& path :
       {std::string(), "/" + std::string(200, 'x'), directory_.path() + "/none/musterd.sock"}) {
    const auto listening = LocalSocket::Listen(loop_, path, MUSTER_DOOR, nullptr, {});
    ASSERT_FALSE(listening);
    EXPECT_THAT(listening.error().message, HasSubstr("socket"));
  }
}

}  // namespace
}  // namespace muster
