// The C functions of muster.h that put a save together.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ceph/engine/shard_format.h"
#include "client/libmuster/handle.h"
#include "client/libmuster/large_copy.h"
#include "client/libmuster/slice.h"
#include "client/muster.h"

using muster::client::Call;
using muster::client::CheckSlice;
using muster::client::DeviceCopies;
using muster::client::FormatSlice;
using muster::client::IsEntryName;
using muster::client::kNever;
using muster::client::kSecond;
using muster::client::kSliceText;
using muster::client::LargeCopy;
using muster::client::NameTable;
using muster::client::NoMemory;
using muster::client::Now;
using muster::client::SaveRecord;
using muster::client::SaveState;
using muster::client::Session;
using muster::client::Staging;

namespace {

constexpr int64_t kWorthTelling = kSecond;
constexpr int64_t kTellAgain = 60 * kSecond;
constexpr size_t kGrantStep = 16u << 20;

size_t RoundUp(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

// The save cannot be completed any more.
int DeviceFailed(muster_handle* m) {
  const int status = m->session.Fail(MUSTER_E_DEVICE, "the save has been aborted: %s", m->devices.error());
  muster_save_abort(m);
  return status;
}

// Whether the memory that is being filled may come to hold so many bytes.
int Grant(muster_handle* m, size_t bytes) {
  const int status = m->session.AskMemory(*m->filling, bytes);
  if (status == MUSTER_OK) m->filling->granted = bytes;
  return status;
}

// Room for `bytes` bytes of shard in all, and some to spare; the sentence names musterd's limit.
int MakeRoom(muster_handle* m, size_t bytes, size_t spare = 0) {
  const uint64_t limit = m->session.welcome().max_shard_bytes;
  if (limit != 0 && bytes > limit) {
    return m->session.Fail(MUSTER_E_TOO_LARGE, "a shard of %zu bytes is above musterd's limit of %llu bytes",
                           bytes, static_cast<unsigned long long>(limit));
  }
  // Its index grows by and by: to ask for a little more each time would take long.
  if (const size_t wanted = RoundUp(bytes, kGrantStep); wanted > m->filling->granted) {
    if (const int error = m->filling->Make(); error != 0) return NoMemory(m, bytes, error);
    if (const int status = Grant(m, wanted); status != MUSTER_OK) return status;
  }
  if (bytes + spare > m->filling->capacity() && !m->devices.Release(m->filling)) return DeviceFailed(m);
  const int error = m->filling->Reserve(bytes + spare);
  return error == 0 ? MUSTER_OK : NoMemory(m, bytes, error);
}

// A program that stands still for the store must not look as if it computed.
void TellOfWait(muster_handle* m, uint64_t step, int64_t waited, const char* why) {
  const int64_t now = Now();
  if (waited < kWorthTelling || (m->told_of_wait != 0 && now - m->told_of_wait < kTellAgain)) return;
  m->told_of_wait = now;
  char text[1024];
  const int size = snprintf(text, sizeof(text),
                            "muster: rank %u: the save of step %llu waited %.1f s for a staging buffer: %s\n",
                            m->session.identity().rank, static_cast<unsigned long long>(step),
                            static_cast<double>(waited) / static_cast<double>(kSecond), why);
  const size_t whole =
      static_cast<size_t>(size) < sizeof(text) ? static_cast<size_t>(size) : sizeof(text) - 1;
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text, whole);
}

// Waits until a staging buffer is free, but for one that cannot be used, and gives it; why a program has to wait is for
// its stderr. What the store does not take is given up for it.
int WaitForStaging(muster_handle* m, uint64_t step, const char* why, Staging** staging,
                   const Staging* unusable = nullptr) {
  const int64_t began = Now();
  const int status = m->session.Until(kNever, [unusable](Session* session) {
    if (session->FreeStaging(unusable) != nullptr) return true;
    session->GiveUpDelayed(unusable);
    return false;
  });
  if (status != MUSTER_OK) return status;
  *staging = m->session.FreeStaging(unusable);
  TellOfWait(m, step, Now() - began, why);
  return MUSTER_OK;
}

// There is no memory for the buffer that is being filled: the other one has its own, and takes this save when it has been
// written. The session's sentence says what leaves no room.
int FillTheOther(muster_handle* m, uint64_t step, size_t bytes, size_t spare, bool wait) {
  Staging* first = m->filling;
  Staging* other = m->session.OtherThan(first);
  if (other->capacity() == 0) return MUSTER_E_NO_MEMORY;
  if (other->use != Staging::Use::kFree) {
    char why[768];
    snprintf(why, sizeof(why), "there is room for one only: %.700s", m->session.error());
    if (!wait) {
      m->session.GiveUpDelayed(first);
      return m->session.Fail(MUSTER_E_BUSY, "the staging buffer is still being written, and %s", why);
    }
    if (const int status = WaitForStaging(m, step, why, &other, first); status != MUSTER_OK) return status;
  }
  m->filling = other;
  return MakeRoom(m, bytes, spare);
}

// A step that is not committed may be saved again: another member has failed, and all save it once more. One content of it is
// written after the other.
int AwaitWritten(muster_handle* m, uint64_t step, bool wait) {
  const auto number = static_cast<unsigned long long>(step);
  const SaveRecord& before = *m->session.saves().Find(step);
  const auto written = [&before] { return before.state >= SaveState::kDurable; };
  if (!written() && !wait) {
    m->session.GiveUpDelayed();
    const char* why = m->session.WhyDelayed();
    return m->session.Fail(MUSTER_E_BUSY, "the save of step %llu is still being written%s%s", number,
                           why != nullptr ? ": " : "", why != nullptr ? why : "");
  }
  const int status = m->session.Until(kNever, [&written](Session* session) {
    if (!written()) session->GiveUpDelayed();
    return written();
  });
  if (status != MUSTER_OK || before.state != SaveState::kCommitted) return status;
  return m->session.Fail(MUSTER_E_INVALID, "step %llu is committed already", number);
}

int Begin(muster_handle* m, uint64_t step, size_t hint, bool wait) {
  const int64_t began = Now();
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  const auto number = static_cast<unsigned long long>(step);
  if (m->filling != nullptr) {
    return m->session.Fail(MUSTER_E_INVALID, "the save of step %llu has neither been committed nor aborted",
                           static_cast<unsigned long long>(m->filling->step));
  }
  if (step == MUSTER_LATEST) return m->session.Fail(MUSTER_E_INVALID, "MUSTER_LATEST is no step to save");
  if (m->saved && step < m->last_saved) {
    return m->session.Fail(MUSTER_E_INVALID, "step %llu is below step %llu, which this handle has saved",
                           number, static_cast<unsigned long long>(m->last_saved));
  }
  if (const int status = m->session.Advance(); status != MUSTER_OK) return status;
  if (m->saved && step == m->last_saved) {
    if (const int status = AwaitWritten(m, step, wait); status != MUSTER_OK) return status;
  }
  Staging* staging = m->session.FreeStaging();
  if (staging == nullptr && !wait) {
    m->session.GiveUpDelayed();
    const char* why = m->session.WhyDelayed();
    return m->session.Fail(MUSTER_E_BUSY, "both staging buffers are still being written%s%s",
                           why != nullptr ? ": " : "", why != nullptr ? why : "");
  }
  if (staging == nullptr) {
    const int status = WaitForStaging(m, step, "the store takes saves more slowly than they come", &staging);
    if (status != MUSTER_OK) return status;
  }
  m->filling = staging;
  // A save of unknown size is taken to be as large as the one before: what it needs is known before it begins then, and
  // where there is memory for one buffer, it goes into the one that has held as much.
  if (hint == 0) hint = m->last_bytes;
  const size_t most = SIZE_MAX / 8;
  if (hint > most) hint = most;
  // The index, and what lies between the entries, are not in the hint; to grow for them would move the memory.
  const size_t spare = hint / 256 + (256u << 10);
  const size_t needed = sizeof(muster::ShardHeader) + hint;
  int status = MakeRoom(m, needed, spare);
  if (status == MUSTER_E_NO_MEMORY) status = FillTheOther(m, step, needed, spare, wait);
  if (status != MUSTER_OK) {
    m->filling = nullptr;
    return status;
  }
  staging = m->filling;
  staging->use = Staging::Use::kFilling;
  staging->holds = false;
  staging->step = step;
  staging->held_ns = -began;
  m->used = sizeof(muster::ShardHeader);
  m->entries = 0;
  m->index.Clear();
  m->names.Clear();
  return MUSTER_OK;
}

int BadName(muster_handle* m) {
  return m->session.Fail(MUSTER_E_INVALID, "an entry's name has 1 to %d bytes and no control characters",
                         MUSTER_NAME_MAX);
}

// An entry whose bytes are to be written to *data.
int Reserve(muster_handle* m, const char* name, const char* meta, size_t bytes, void** data) {
  if (m->filling == nullptr) return m->session.Fail(MUSTER_E_INVALID, "no save has been begun");
  const size_t name_bytes = name != nullptr ? strnlen(name, MUSTER_NAME_MAX + 1) : 0;
  const size_t meta_bytes = meta != nullptr ? strnlen(meta, MUSTER_META_MAX + 1) : 0;
  if (!IsEntryName(name, name_bytes)) return BadName(m);
  if (meta_bytes > MUSTER_META_MAX) {
    return m->session.Fail(MUSTER_E_INVALID, "the metadata of '%s' is above %d bytes", name, MUSTER_META_MAX);
  }
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
  *data = m->filling->data() + begin;
  m->used = begin + bytes;
  ++m->entries;
  return MUSTER_OK;
}

// Where the bytes of an entry are.
struct Source {
  const void* data;
  size_t bytes;
  bool device;
  void* stream;  // of a device: the copy is to come after what it has been given
};

// A driver pins all of the memory that it is told of, with what no entry fills. Where musterd says that there is not so much, it
// is not told.
void GrantWhole(muster_handle* m) {
  const Staging& staging = *m->filling;
  if (staging.granted >= staging.capacity() || m->devices.Knows(&staging)) return;
  if (Grant(m, staging.capacity()) != MUSTER_OK) m->session.ClearError();
}

int Add(muster_handle* m, const char* name, const char* meta, const Source& from) {
  if (from.data == nullptr && from.bytes != 0) {
    return m->session.Fail(MUSTER_E_INVALID, "the data of '%.255s' is NULL", name != nullptr ? name : "");
  }
  if (from.device && from.bytes != 0 && m->filling != nullptr) {
    switch (m->devices.Check(from.data, from.stream)) {
      case DeviceCopies::Checked::kGood:
        break;
      case DeviceCopies::Checked::kRefused:
        return m->session.Fail(MUSTER_E_INVALID, "the data of '%.255s' cannot be copied: %s",
                               name != nullptr ? name : "", m->devices.error());
      case DeviceCopies::Checked::kFailed:
        return DeviceFailed(m);
    }
  }
  void* to = nullptr;
  if (const int status = Reserve(m, name, meta, from.bytes, &to); status != MUSTER_OK) return status;
  if (to == nullptr || from.data == nullptr || from.bytes == 0) return MUSTER_OK;
  if (from.device) {
    GrantWhole(m);
    const bool started = m->devices.Start(m->filling, to, from.data, from.bytes, from.stream);
    return started ? MUSTER_OK : DeviceFailed(m);
  }
  LargeCopy(to, from.data, from.bytes, m->copy_threads);
  return MUSTER_OK;
}

int AddSlice(muster_handle* m, const char* name, const char* meta, const muster_slice* part,
             const Source& from) {
  if (m->filling == nullptr) return m->session.Fail(MUSTER_E_INVALID, "no save has been begun");
  const size_t name_bytes = name != nullptr ? strnlen(name, MUSTER_NAME_MAX + 1) : 0;
  const size_t meta_bytes = meta != nullptr ? strnlen(meta, MUSTER_SLICE_META_MAX + 1) : 0;
  if (name == nullptr || !IsEntryName(name, name_bytes)) return BadName(m);
  if (meta_bytes > MUSTER_SLICE_META_MAX) {
    return m->session.Fail(MUSTER_E_INVALID, "the metadata of '%s' is above %d bytes", name,
                           MUSTER_SLICE_META_MAX);
  }
  char text[kSliceText];
  if (const char* wrong = CheckSlice(part, from.bytes, text); wrong != nullptr)
    return m->session.Fail(MUSTER_E_INVALID, "'%s' %s", name, wrong);
  // A second part of the name is an entry of its own.
  char entry[MUSTER_NAME_MAX + 16];
  strcpy(entry, name);
  uint32_t number = 0;
  size_t known = 0;
  while (m->names.Find(entry, strlen(entry), &known)) {
    ++number;
    snprintf(entry, sizeof(entry), "%s#%u", name, number);
  }
  char whole[MUSTER_META_MAX + 1];
  const size_t at = FormatSlice(*part, number, whole);
  if (meta_bytes > 0) memcpy(whole + at, meta, meta_bytes);
  whole[at + meta_bytes] = '\0';
  return Add(m, entry, whole, from);
}

}  // namespace

extern "C" {

int muster_save_begin(muster_handle* m, uint64_t step, size_t bytes_hint) {
  return Begin(m, step, bytes_hint, true);
}

int muster_save_begin_nowait(muster_handle* m, uint64_t step, size_t bytes_hint) {
  return Begin(m, step, bytes_hint, false);
}

int muster_save_add(muster_handle* m, const char* name, const char* meta, const void* data, size_t bytes) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  return Add(m, name, meta, {data, bytes, false, nullptr});
}

int muster_save_add_device(muster_handle* m, const char* name, const char* meta, const void* data,
                           size_t bytes, void* stream) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  return Add(m, name, meta, {data, bytes, true, stream});
}

int muster_save_reserve(muster_handle* m, const char* name, const char* meta, size_t bytes, void** data) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  if (data == nullptr)
    return m->session.Fail(MUSTER_E_INVALID, "there is nowhere to put the memory of an entry");
  return Reserve(m, name, meta, bytes, data);
}

int muster_save_add_slice(muster_handle* m, const char* name, const char* meta, const muster_slice* part,
                          const void* data, size_t bytes) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  return AddSlice(m, name, meta, part, {data, bytes, false, nullptr});
}

int muster_save_add_slice_device(muster_handle* m, const char* name, const char* meta,
                                 const muster_slice* part, const void* data, size_t bytes, void* stream) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  return AddSlice(m, name, meta, part, {data, bytes, true, stream});
}

int muster_save_commit(muster_handle* m) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  Staging* staging = m->filling;
  if (staging == nullptr) return m->session.Fail(MUSTER_E_INVALID, "no save has been begun");
  const size_t index_at = RoundUp(m->used, muster::kShardAlignment);
  if (const int status = MakeRoom(m, index_at + m->index.size()); status != MUSTER_OK) {
    muster_save_abort(m);
    return status;
  }
  if (!m->devices.Wait(staging)) return DeviceFailed(m);
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
  staging->held_ns += Now();

  m->filling = nullptr;
  m->saved = true;
  m->last_saved = staging->step;
  m->last_bytes = staging->bytes - sizeof(header);
  m->session.Saved();
  m->session.Commit(staging);
  return m->session.Advance();
}

void muster_save_abort(muster_handle* m) {
  if (m == nullptr || m->filling == nullptr) return;
  // The memory may be another save's next. A forked process has no use of its parent's driver.
  if (m->process == getpid()) (void)m->devices.Wait(m->filling);
  m->filling->use = Staging::Use::kFree;
  m->filling = nullptr;
}

}  // extern "C"
