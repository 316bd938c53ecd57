// NCCL itself on a machine without a GPU: it is loaded, has all functions, and says in words why it cannot begin.
// Usage: nccl_load LIBRARY DRIVER; the driver is a stand-in, of which NCCL itself takes no notice.
#include <cstdio>

#include "net/collectives/collectives.h"
#include "net/collectives/nccl_library.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const muster::Result<muster::nccl::Library> library = muster::nccl::Load(argv[1]);
  if (!library) {
    std::fprintf(stderr, "%s\n", library.error().message.c_str());
    return 1;
  }
  std::printf("%s has every function\n", library->name.c_str());
  const auto group = muster::MakeCollectives("nccl", {.nccl_library = argv[1], .cuda_library = argv[2]});
  if (group) {
    std::fprintf(stderr, "it began without a GPU\n");
    return 1;
  }
  std::printf("%s\n", group.error().message.c_str());
  return group.error().message.find(library->name) == std::string::npos ? 1 : 0;
}
