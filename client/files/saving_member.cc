#include "client/files/saving_member.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "client/files/directory_layout.h"
#include "client/files/entry_meta.h"

namespace muster::files {
namespace {

struct CloseRestore {
  void operator()(muster_restore* r) const { muster_restore_close(r); }
};
using Shard = std::unique_ptr<muster_restore, CloseRestore>;

Saved Failed(std::string why) {
  return {Saved::State::kFailed, std::move(why), {}};
}

// Adds all entries to the save that has been begun.
Status Fill(muster_handle* m, int directory, const std::string& name, const Tree& tree) {
  const auto failed = [&] { return Error{Errc::kUnavailable, muster_last_error(m)}; };
  if (muster_save_add(m, kStepEntry, Encode({Kind::kStep, tree.mode, name}).c_str(), nullptr, 0) != MUSTER_OK)
    return failed();
  for (const TreeEntry& entry : tree.entries) {
    const EntryMeta meta{entry.directory ? Kind::kDirectory : Kind::kFile, entry.mode, ""};
    const uint64_t bytes = entry.directory ? 0 : entry.identity.bytes;
    void* to = nullptr;
    if (muster_save_reserve(m, entry.path.c_str(), Encode(meta).c_str(), bytes, &to) != MUSTER_OK)
      return failed();
    if (entry.directory) continue;
    if (Status status = ReadFile(directory, entry, to); !status) return status;
  }
  return CheckUnchanged(directory, tree);
}

Result<Shard> OpenShard(muster_handle* m, uint32_t saved_by, int* status) {
  // muster_restore_open for what is one's own: a musterd of the first version knows no other.
  muster_restore* opened = nullptr;
  *status = saved_by == muster_world_size(m)
                ? muster_restore_open(m, MUSTER_LATEST, &opened)
                : muster_restore_open_shard(m, MUSTER_LATEST, muster_rank(m), &opened);
  // A member of a role that does not train has no shard of its own; it may see what the trainer of its rank has.
  if (*status == MUSTER_E_INVALID)
    *status = muster_restore_open_shard(m, MUSTER_LATEST, muster_rank(m), &opened);
  if (*status != MUSTER_OK) return Error{Errc::kUnavailable, muster_last_error(m)};
  return Shard(opened);
}

}  // namespace

bool IsAway(int status) {
  return status == MUSTER_E_TIMEOUT || status == MUSTER_E_UNREACHABLE || status == MUSTER_E_NO_GANG;
}

Saved SaveDirectory(muster_handle* m, int top, const std::string& name, uint64_t step, bool marked) {
  const UniqueFd directory(openat(top, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid()) {
    if (errno == ENOENT) return Failed("it was removed or renamed before it could be read");
    if (errno == ENOTDIR || errno == ELOOP) return Failed("it is not a directory");
    return Failed(SystemError("open", name).message);
  }
  const auto tree = ListTree(directory.get(), marked);
  if (!tree) return Failed(tree.error().message);
  const int begun = muster_save_begin_nowait(m, step, tree->bytes);
  if (begun == MUSTER_E_BUSY || IsAway(begun)) return {Saved::State::kBusy, "", {}};
  if (begun != MUSTER_OK) return Failed(muster_last_error(m));
  if (Status status = Fill(m, directory.get(), name, *tree); !status) {
    muster_save_abort(m);
    return Failed(status.error().message);
  }
  const int committed = muster_save_commit(m);
  if (committed == MUSTER_E_TOO_LARGE || committed == MUSTER_E_NO_MEMORY || committed == MUSTER_E_DEVICE)
    return Failed(muster_last_error(m));  // it has been aborted
  // Else it is handed over, whatever musterd's state is: the library goes on with it.
  return {Saved::State::kHanded, "", tree->root};
}

Result<Restored> RestoreDirectory(muster_handle* m, int top, int* status) {
  *status = MUSTER_OK;
  Restored restored;
  restored.step = muster_restore_step(m);
  if (restored.step == MUSTER_LATEST) return restored;
  uint32_t saved_by = 0;
  *status = muster_restore_info(m, MUSTER_LATEST, &restored.step, &saved_by);
  if (*status != MUSTER_OK) return Error{Errc::kUnavailable, muster_last_error(m)};
  if (muster_rank(m) >= saved_by) return restored;  // the gang has grown: nobody has saved for this rank
  const Result<Shard> shard = OpenShard(m, saved_by, status);
  if (!shard) return shard.error();
  std::vector<ShardEntry> entries(muster_restore_count(shard->get()));
  for (size_t i = 0; i < entries.size(); ++i) {
    const char* name = nullptr;
    const char* meta = nullptr;
    *status = muster_restore_entry(shard->get(), i, &name, &meta, &entries[i].data, &entries[i].bytes);
    if (*status != MUSTER_OK) return Error{Errc::kInvalid, muster_last_error(m)};
    entries[i].name = name;
    entries[i].meta = meta != nullptr ? meta : "";
  }
  auto name = LayOut(top, restored.step, entries);
  if (!name) return name.error();
  restored.name = *std::move(name);
  return restored;
}

}  // namespace muster::files
