#include "spank-plugin/supervisor/links_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank-plugin/supervisor/helper_spawn.h"

namespace muster::supervisor {
namespace {

constexpr char kTree[] = "SLURM_TOPOLOGY_ADDR=";
constexpr size_t kTreeSize = sizeof(kTree) - 1;

// "KEY=VALUE" of the way to this node in Slurm's tree, which musterd is not told; "": unknown.
char tree[1024];

// All of the block, which lives as long as the process that is about to become the program.
char** EnvironmentOfLinks(const EnvironmentBlock* block) {
  size_t count = 1;
  for (const char* entry = block->Next(nullptr); entry != nullptr; entry = block->Next(entry)) ++count;
  auto** environment = static_cast<char**>(calloc(count + 1, sizeof(char*)));
  if (environment == nullptr) return nullptr;
  size_t at = 0;
  for (const char* entry = block->Next(nullptr); entry != nullptr; entry = block->Next(entry))
    environment[at++] = const_cast<char*>(entry);
  if (tree[0] != '\0') environment[at] = tree;
  return environment;
}

}  // namespace

void LinksProcess::Start(const wire::TestLinks& order, int environment, const Host& host, int root_fd) {
  End();
  test_ = order.test;
  wait_status_ = -1;
  answer_due_ = true;  // until it runs
  constexpr uint32_t kMaxEnvironment = 64 * 1024;
  EnvironmentBlock block;
  if (order.environment_bytes > kMaxEnvironment || !block.Read(environment, order.environment_bytes)) return;
  const char* program = block.Find(wire::kLinksVariable);
  int ends[2];
  if (program == nullptr || pipe2(ends, O_CLOEXEC) != 0) return;
  said_.reset(ends[0]);
  const UniqueFd there(ends[1]);
  const char* arguments[8] = {"muster", "net", "test", "--json"};
  int count = 4;
  if (order.full != 0) arguments[count++] = "--full";
  // Below the host's root, which is its working directory.
  if (const char* settings = block.Find(wire::kLinksSettings); settings != nullptr) {
    arguments[count++] = "--settings";
    arguments[count++] = settings + strspn(settings, "/");
  }
  SpawnHelper spawn{
      .root_fd = root_fd, .program = program, .arguments = arguments, .environment = EnvironmentOfLinks};
  spawn.block = &block;
  spawn.descriptors[STDOUT_FILENO] = spawn.descriptors[STDERR_FILENO] = spawn.failed = there.get();
  spawn.before = "cannot start ";
  spawn.with_libraries = true;
  memcpy(tree, kTree, sizeof(kTree));
  tree[kTreeSize - 1] = '\0';
  if (host.get_environment == nullptr ||
      !host.get_environment(host.context, tree, tree + kTreeSize, sizeof(tree) - kTreeSize)) {
    tree[0] = '\0';
  } else {
    tree[kTreeSize - 1] = '=';
  }
  const pid_t pid = spawn.Run();
  if (pid < 0) return;
  pid_ = pid;
  answer_due_ = false;
}

void LinksProcess::End() {
  if (pid_ > 0) kill(pid_, SIGKILL);  // it is reaped as any child is
  pid_ = 0;
  Forget();
}

void LinksProcess::Forget() {
  said_.reset();
  free(text_);
  text_ = nullptr;
  size_ = 0;
  answer_due_ = false;
}

void LinksProcess::Ended(int wait_status) {
  pid_ = 0;
  wait_status_ = wait_status;
  answer_due_ = true;
}

Sent LinksProcess::Answer(int socket) {
  if (text_ == nullptr) text_ = static_cast<char*>(malloc(wire::kMaxLinksText));
  // All of it is in the pipe; what it has left behind is not waited for.
  if (said_.valid()) fcntl(said_.get(), F_SETFL, O_NONBLOCK);
  while (said_.valid() && text_ != nullptr && size_ < wire::kMaxLinksText) {
    const ssize_t got = read(said_.get(), text_ + size_, wire::kMaxLinksText - size_);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size_ += static_cast<size_t>(got);
  }
  said_.reset();
  wire::LinksTested body{};
  body.test = test_;
  body.wait_status = wait_status_;
  body.text_bytes = static_cast<uint32_t>(size_);
  wire::SetHeader(&body, wire::Type::kLinksTested, size_);
  const iovec parts[] = {{&body, sizeof(body)}, {text_, size_}};
  const Sent sent = SendPacket(socket, parts, 2);
  if (sent == Sent::kWhole) Forget();
  return sent;
}

}  // namespace muster::supervisor
