// A step's directory as it is on disk: what is in it, one file's bytes, and taking it away. No symbolic link is
// followed.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::files {

inline constexpr size_t kMaxEntries = 65'536;  // files and directories of a step, in one member

inline constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
struct CloseDirectory {
  void operator()(DIR* list) const { closedir(list); }
};

// By which it is seen that something has been changed since.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  uint64_t bytes = 0;
  timespec modified{};

  static Identity Of(const struct stat& info);
  bool operator==(const Identity& other) const;
};

struct TreeEntry {
  std::string path;  // below the directory; CheckPath has passed it
  bool directory = false;
  mode_t mode = 0;
  Identity identity;
};

struct Tree {
  Identity root;
  mode_t mode = 0;
  bool marked = false;
  std::vector<TreeEntry> entries;  // each directory before what is in it; equal trees in equal order
  uint64_t bytes = 0;              // of all files
};

// An empty file that closes a step which is written in place. In the checkpoint it is not.
inline constexpr char kCommitMark[] = "commit";

// kInvalid names what cannot be in a checkpoint: something that is neither file nor directory, a name, too much of it.
// `marked`: the mark has closed it. What is called so and has content would be lost, and is refused; in a step that was closed
// by renaming it is a name like any other.
Result<Tree> ListTree(int directory, bool marked);
// Reads the file into `to`, which has room for its bytes. kConflict: it is not what was listed, or was changed meanwhile.
Status ReadFile(int directory, const TreeEntry& entry, void* to);
// Whether every directory of the tree is as it was when it was listed, and the mark still has no content.
Status CheckUnchanged(int directory, const Tree& tree);

// Removes what is called `name` in `parent`, with all that is in it. Nothing there is success.
Status RemoveTree(int parent, const std::string& name);
// Removes all that is in `directory`.
Status Empty(int directory);

// An Error of errno: "cannot WHAT PATH: why".
Error SystemError(const char* what, const std::string& path);

}  // namespace muster::files
