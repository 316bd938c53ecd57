// Between a supervisor and its muster-files: how that is called, and what they say to each other. libc only.
//
//   muster-files serve BASE PREFIX SUFFIX   makes BASE/PREFIXSUFFIX, lays the checkpoint out there, watches it
//   muster-files remove BASE NAME           takes it away
//
// PREFIX is the same for all tasks of a user on a node: what is below BASE by such a name, and locked by nobody, was left
// behind. The environment has what libmuster needs.
#pragma once

#include <stddef.h>

namespace muster::wire {

inline constexpr char kFilesVariable[] = "MUSTER_FILES";  // its path, in a Start's environment
inline constexpr char kFilesBaseVariable[] = "MUSTER_FILES_DIR";
inline constexpr char kCheckpointVariable[] = "MUSTER_CHECKPOINT_DIR";

// A SOCK_SEQPACKET socket. To the supervisor: sentences for the job's stderr, one a packet. From it: kFilesDrain, when the
// program has ended with 0; the watcher ends when what was closed is a checkpoint. Its end is the watcher's.
inline constexpr int kFilesControl = 3;
inline constexpr size_t kMaxFilesSentence = 1024;
inline constexpr char kFilesDrain = 'D';

// A pipe to the process that waits to become the program: kFilesReady and the directory's path, or kFilesFailed and a
// sentence; then its end.
inline constexpr int kFilesReadyPipe = 4;
inline constexpr size_t kMaxFilesAnswer = 4096;
inline constexpr char kFilesReady = 'R';
inline constexpr char kFilesFailed = 'E';

}  // namespace muster::wire
