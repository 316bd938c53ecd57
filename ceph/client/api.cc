// The C functions of muster.h.
#include <new>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ceph/client/bytes.h"
#include "ceph/client/name_table.h"
#include "ceph/client/session.h"
#include "ceph/client/shard_view.h"
#include "ceph/engine/shard_format.h"
#include "ceph/muster.h"

using muster::client::Bytes;
using muster::client::IsEntryName;
using muster::client::kMillisecond;
using muster::client::kNever;
using muster::client::NameTable;
using muster::client::Now;
using muster::client::SaveRecord;
using muster::client::SaveState;
using muster::client::Session;
using muster::client::ShardView;
using muster::client::Staging;

static_assert(MUSTER_LATEST == muster::wire::kNoStep);

struct muster_handle {
  Session session;
  pid_t process = 0;  // which opened it: a forked child must not talk on its parent's connection

  // The save that is being put together.
  Staging* filling = nullptr;
  size_t used = 0;  // bytes of the shard so far
  uint32_t entries = 0;
  Bytes index;
  NameTable names;

  bool saved = false;
  uint64_t last_saved = 0;
  muster_restore* restores = nullptr;  // the open ones
};

struct muster_restore {
  muster_handle* owner = nullptr;  // for its error sentence; nullptr when that handle has been closed
  muster_restore* next = nullptr;
  uint64_t step = 0;
  void* map = nullptr;
  size_t bytes = 0;
  ShardView view;
};

namespace {

// The sentence of this thread's last failed muster_open. A pointer, because a library that may be loaded late
// must not ask for more thread-local memory than that; it is freed by the next muster_open.
__thread char* open_error __attribute__((tls_model("initial-exec")));

void KeepOpenError(const char* text) {
  free(open_error);
  open_error = text != nullptr ? strdup(text) : nullptr;
}

template <typename T>
T* Make() {
  void* memory = calloc(1, sizeof(T));
  return memory != nullptr ? new (memory) T : nullptr;
}

template <typename T>
void Destroy(T* object) {
  if (object == nullptr) return;
  object->~T();
  free(object);
}

// The beginning of every call that may talk to musterd.
int Enter(muster_handle* m) {
  m->session.ClearError();
  if (m->process == getpid()) return MUSTER_OK;
  return m->session.Fail(MUSTER_E_INVALID,
                         "this handle belongs to process %d; a forked process cannot use its parent's handle",
                         static_cast<int>(m->process));
}

int NoMemory(muster_handle* m, size_t bytes, int error) {
  return m->session.Fail(MUSTER_E_NO_MEMORY, "no memory for a shard of %zu bytes: %s", bytes,
                         strerror(error));
}

size_t RoundUp(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

// Room for `bytes` bytes of shard in all; the sentence names musterd's limit.
int MakeRoom(muster_handle* m, size_t bytes) {
  const uint64_t limit = m->session.welcome().max_shard_bytes;
  if (limit != 0 && bytes > limit) {
    return m->session.Fail(MUSTER_E_TOO_LARGE, "a shard of %zu bytes is above musterd's limit of %llu bytes",
                           bytes, static_cast<unsigned long long>(limit));
  }
  const int error = m->filling->Reserve(bytes);
  return error == 0 ? MUSTER_OK : NoMemory(m, bytes, error);
}

int Begin(muster_handle* m, uint64_t step, size_t hint, bool wait) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  const auto number = static_cast<unsigned long long>(step);
  if (m->filling != nullptr) {
    return m->session.Fail(MUSTER_E_INVALID, "the save of step %llu has neither been committed nor aborted",
                           static_cast<unsigned long long>(m->filling->step));
  }
  if (step == MUSTER_LATEST) return m->session.Fail(MUSTER_E_INVALID, "MUSTER_LATEST is no step to save");
  if (m->saved && step <= m->last_saved) {
    return m->session.Fail(MUSTER_E_INVALID, "step %llu is not above step %llu, which this handle has saved",
                           number, static_cast<unsigned long long>(m->last_saved));
  }
  if (const int status = m->session.Advance(); status != MUSTER_OK) return status;
  Staging* staging = m->session.FreeStaging();
  if (staging == nullptr && !wait) {
    return m->session.Fail(MUSTER_E_BUSY, "both staging buffers are still being written");
  }
  if (staging == nullptr) {
    const int status =
        m->session.Until(kNever, [](Session* session) { return session->FreeStaging() != nullptr; });
    if (status != MUSTER_OK) return status;
    staging = m->session.FreeStaging();
  }
  m->filling = staging;
  const size_t most = SIZE_MAX / 8;
  if (const int status = MakeRoom(m, sizeof(muster::ShardHeader) + (hint < most ? hint : most));
      status != MUSTER_OK) {
    m->filling = nullptr;
    return status;
  }
  staging->use = Staging::Use::kFilling;
  staging->holds = false;
  staging->step = step;
  m->used = sizeof(muster::ShardHeader);
  m->entries = 0;
  m->index.Clear();
  m->names.Clear();
  return MUSTER_OK;
}

bool Settled(muster_handle* m, const SaveRecord& record) {
  if (record.state == SaveState::kCommitted || record.state == SaveState::kFailed) return true;
  const uint64_t committed = m->session.committed();
  return record.lost && committed != MUSTER_LATEST && committed > record.step;
}

}  // namespace

extern "C" {

int muster_open(muster_handle** out) {
  if (out == nullptr) return MUSTER_E_INVALID;
  *out = nullptr;
  KeepOpenError(nullptr);
  auto* m = Make<muster_handle>();
  if (m == nullptr) {
    KeepOpenError("no memory for a handle");
    return MUSTER_E_NO_MEMORY;
  }
  m->process = getpid();
  if (const int status = m->session.Open(); status != MUSTER_OK) {
    KeepOpenError(m->session.error());
    Destroy(m);
    return status;
  }
  *out = m;
  return MUSTER_OK;
}

void muster_close(muster_handle* m) {
  if (m == nullptr) return;
  for (muster_restore* r = m->restores; r != nullptr; r = r->next) r->owner = nullptr;
  if (m->process == getpid()) m->session.End();
  Destroy(m);
}

const char* muster_last_error(const muster_handle* m) {
  if (m != nullptr) return m->session.error();
  return open_error != nullptr ? open_error : "";
}

const char* muster_version(void) {
  return MUSTER_VERSION;
}

uint32_t muster_rank(const muster_handle* m) {
  return m->session.welcome().rank;
}
uint32_t muster_world_size(const muster_handle* m) {
  return m->session.welcome().world_size;
}
uint64_t muster_generation(const muster_handle* m) {
  return m->session.welcome().generation;
}
uint64_t muster_restore_step(const muster_handle* m) {
  return m->session.welcome().restore_step;
}

int muster_progress(muster_handle* m, uint64_t step) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  m->session.ReportProgress(step);
  return m->session.Advance();
}

int muster_should_checkpoint(muster_handle* m) {
  if (Enter(m) == MUSTER_OK) (void)m->session.Advance();
  return (m->session.flags() & muster::wire::kShouldCheckpoint) != 0 ? 1 : 0;
}

int muster_should_exit(muster_handle* m) {
  if (Enter(m) == MUSTER_OK) (void)m->session.Advance();
  return (m->session.flags() & muster::wire::kShouldExit) != 0 ? 1 : 0;
}

int muster_save_begin(muster_handle* m, uint64_t step, size_t bytes_hint) {
  return Begin(m, step, bytes_hint, true);
}

int muster_save_begin_nowait(muster_handle* m, uint64_t step, size_t bytes_hint) {
  return Begin(m, step, bytes_hint, false);
}

int muster_save_add(muster_handle* m, const char* name, const char* meta, const void* data, size_t bytes) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  if (m->filling == nullptr) return m->session.Fail(MUSTER_E_INVALID, "no save has been begun");
  const size_t name_bytes = name != nullptr ? strnlen(name, MUSTER_NAME_MAX + 1) : 0;
  const size_t meta_bytes = meta != nullptr ? strnlen(meta, MUSTER_META_MAX + 1) : 0;
  if (!IsEntryName(name, name_bytes)) {
    return m->session.Fail(MUSTER_E_INVALID, "an entry's name has 1 to %d bytes and no control characters",
                           MUSTER_NAME_MAX);
  }
  if (meta_bytes > MUSTER_META_MAX) {
    return m->session.Fail(MUSTER_E_INVALID, "the metadata of '%s' is above %d bytes", name, MUSTER_META_MAX);
  }
  if (data == nullptr && bytes != 0)
    return m->session.Fail(MUSTER_E_INVALID, "the data of '%s' is NULL", name);
  size_t known = 0;
  if (m->names.Find(name, name_bytes, &known)) {
    return m->session.Fail(MUSTER_E_INVALID, "'%s' is in this save already", name);
  }
  if (bytes > SIZE_MAX / 8 || m->entries == UINT32_MAX) {
    return m->session.Fail(MUSTER_E_TOO_LARGE, "'%s' does not fit into a shard", name);
  }
  const size_t begin = RoundUp(m->used, muster::kShardAlignment);
  if (const int status = MakeRoom(m, begin + bytes); status != MUSTER_OK) return status;

  const muster::ShardEntry entry{begin, bytes, static_cast<uint32_t>(name_bytes),
                                 static_cast<uint32_t>(meta_bytes)};
  const size_t before = m->index.size();
  const size_t size = sizeof(entry) + name_bytes + meta_bytes;
  if (!m->index.Append(&entry, sizeof(entry)) || !m->index.Append(name, name_bytes) ||
      !m->index.Append(meta, meta_bytes) || !m->index.AppendZeros(RoundUp(size, 8) - size) ||
      m->names.Add(name, name_bytes) != NameTable::Insert::kDone) {
    m->index.Truncate(before);
    return NoMemory(m, begin + bytes, ENOMEM);
  }
  // The gap too: the memory may hold an older save, and equal states shall give equal bytes.
  memset(m->filling->data() + m->used, 0, begin - m->used);
  if (bytes > 0) memcpy(m->filling->data() + begin, data, bytes);
  m->used = begin + bytes;
  ++m->entries;
  return MUSTER_OK;
}

int muster_save_commit(muster_handle* m) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  Staging* staging = m->filling;
  if (staging == nullptr) return m->session.Fail(MUSTER_E_INVALID, "no save has been begun");
  const size_t index_at = RoundUp(m->used, muster::kShardAlignment);
  if (const int status = MakeRoom(m, index_at + m->index.size()); status != MUSTER_OK) {
    muster_save_abort(m);
    return status;
  }
  memset(staging->data() + m->used, 0, index_at - m->used);
  if (m->index.size() > 0) memcpy(staging->data() + index_at, m->index.data(), m->index.size());
  muster::ShardHeader header{};
  memcpy(header.magic, muster::kShardMagic, sizeof(header.magic));
  header.version = muster::kShardVersion;
  header.entries = m->entries;
  header.index_offset = index_at;
  header.index_bytes = m->index.size();
  memcpy(staging->data(), &header, sizeof(header));
  staging->bytes = index_at + m->index.size();

  m->filling = nullptr;
  m->saved = true;
  m->last_saved = staging->step;
  m->session.ClearFlag(muster::wire::kShouldCheckpoint);
  m->session.Commit(staging);
  return m->session.Advance();
}

void muster_save_abort(muster_handle* m) {
  if (m == nullptr || m->filling == nullptr) return;
  m->filling->use = Staging::Use::kFree;
  m->filling = nullptr;
}

int muster_wait(muster_handle* m, uint64_t step, int timeout_ms) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  const SaveRecord* newest = m->session.saves().newest();
  if (newest == nullptr) return m->session.Fail(MUSTER_E_NOT_FOUND, "this handle has saved nothing");
  if (step == MUSTER_LATEST) step = newest->step;
  const auto number = static_cast<unsigned long long>(step);
  const SaveRecord* record = m->session.saves().Find(step);
  if (record == nullptr) {
    return m->session.Fail(MUSTER_E_NOT_FOUND, "step %llu is none of the latest saves of this handle",
                           number);
  }
  const int64_t deadline = timeout_ms < 0 ? kNever : Now() + timeout_ms * kMillisecond;
  const int status = m->session.Until(deadline, [m, record](Session*) { return Settled(m, *record); });
  if (status == MUSTER_E_TIMEOUT) {
    return m->session.Fail(status, "the checkpoint of step %llu is not committed yet: %s", number,
                           record->state == SaveState::kDurable ? "other members' shards are missing"
                                                                : "this member's shard is not durable yet");
  }
  if (status != MUSTER_OK || record->state == SaveState::kCommitted) return status;
  if (record->state == SaveState::kFailed) {
    return m->session.Fail(record->status, "the checkpoint of step %llu has failed: %s", number,
                           record->text);
  }
  return m->session.Fail(MUSTER_E_STORE,
                         "how the checkpoint of step %llu ended was lost in a restart of musterd; step "
                         "%llu has been committed since",
                         number, static_cast<unsigned long long>(m->session.committed()));
}

uint64_t muster_committed(muster_handle* m) {
  if (Enter(m) == MUSTER_OK) (void)m->session.Advance();
  return m->session.committed();
}

int muster_restore_open(muster_handle* m, uint64_t step, muster_restore** out) {
  if (const int status = Enter(m); status != MUSTER_OK) return status;
  if (out == nullptr) return m->session.Fail(MUSTER_E_INVALID, "there is nowhere to put the restore");
  *out = nullptr;
  if (step == MUSTER_LATEST && muster_restore_step(m) == MUSTER_LATEST) {
    return m->session.Fail(MUSTER_E_NOT_FOUND, "this gang has no checkpoint yet");
  }
  muster::UniqueFd memory;
  uint64_t bytes = 0;
  uint64_t actual = 0;
  if (const int status = m->session.Fetch(step, &memory, &bytes, &actual); status != MUSTER_OK) return status;

  struct stat info {};
  if (fstat(memory.get(), &info) != 0 || bytes == 0 || static_cast<uint64_t>(info.st_size) < bytes ||
      (fcntl(memory.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return m->session.Fail(MUSTER_E_PROTOCOL, "musterd sent memory that does not hold the shard");
  }
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, memory.get(), 0);
  if (map == MAP_FAILED) return NoMemory(m, bytes, errno);
  auto* r = Make<muster_restore>();
  if (r == nullptr) {
    munmap(map, bytes);
    return NoMemory(m, sizeof(*r), ENOMEM);
  }
  r->map = map;
  r->bytes = bytes;
  r->step = actual;
  if (const char* wrong = r->view.Parse(map, bytes); wrong != nullptr) {
    munmap(map, bytes);
    Destroy(r);
    return m->session.Fail(MUSTER_E_CORRUPT, "the shard of step %llu cannot be read: %s",
                           static_cast<unsigned long long>(actual), wrong);
  }
  r->owner = m;
  r->next = m->restores;
  m->restores = r;
  *out = r;
  return MUSTER_OK;
}

uint64_t muster_restore_open_step(const muster_restore* r) {
  return r->step;
}

size_t muster_restore_count(const muster_restore* r) {
  return r->view.count();
}

int muster_restore_entry(const muster_restore* r, size_t i, const char** name, const char** meta,
                         const void** data, size_t* bytes) {
  if (i >= r->view.count()) {
    if (r->owner == nullptr) return MUSTER_E_INVALID;
    return r->owner->session.Fail(MUSTER_E_INVALID, "there is no entry %zu: the shard has %zu", i,
                                  r->view.count());
  }
  const ShardView::Entry& entry = r->view.entry(i);
  if (name != nullptr) *name = entry.name;
  if (meta != nullptr) *meta = entry.meta;
  if (data != nullptr) *data = entry.data;
  if (bytes != nullptr) *bytes = entry.bytes;
  return MUSTER_OK;
}

int muster_restore_get(muster_restore* r, const char* name, void* data, size_t bytes) {
  const ShardView::Entry* entry = name != nullptr ? r->view.Find(name) : nullptr;
  if (entry == nullptr) {
    if (r->owner == nullptr) return MUSTER_E_NOT_FOUND;
    return r->owner->session.Fail(MUSTER_E_NOT_FOUND, "the shard of step %llu has no entry '%.255s'",
                                  static_cast<unsigned long long>(r->step), name != nullptr ? name : "");
  }
  if (entry->bytes != bytes || (data == nullptr && bytes != 0)) {
    if (r->owner == nullptr) return MUSTER_E_INVALID;
    return r->owner->session.Fail(MUSTER_E_INVALID, "'%s' has %zu bytes, not %zu", entry->name, entry->bytes,
                                  bytes);
  }
  if (bytes > 0) memcpy(data, entry->data, bytes);
  return MUSTER_OK;
}

void muster_restore_close(muster_restore* r) {
  if (r == nullptr) return;
  if (r->owner != nullptr) {
    muster_restore** at = &r->owner->restores;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
  }
  munmap(r->map, r->bytes);
  Destroy(r);
}

}  // extern "C"
