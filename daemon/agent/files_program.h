// Where muster-files is, which makes checkpoints of directories (ceph/files/main.cc).
#pragma once

#include <string>

namespace muster {

// Its path: beside this program, else where it is installed.
std::string FilesProgram();

}  // namespace muster
