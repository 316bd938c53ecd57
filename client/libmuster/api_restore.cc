// The C functions of muster.h that restore whole shards.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/libmuster/handle.h"
#include "client/libmuster/large_copy.h"
#include "client/libmuster/memory_file.h"
#include "client/muster.h"

using muster::client::Call;
using muster::client::Destroy;
using muster::client::ExpectFill;
using muster::client::HoldsForGood;
using muster::client::LargeCopy;
using muster::client::Make;
using muster::client::NoMemory;
using muster::client::ShardView;

namespace {

int OpenShard(muster_handle* m, uint64_t step, uint32_t rank, muster_restore** out) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  if (out == nullptr) return m->session.Fail(MUSTER_E_INVALID, "there is nowhere to put the restore");
  *out = nullptr;
  if (step == MUSTER_LATEST && muster_restore_step(m) == MUSTER_LATEST) {
    return m->session.Fail(MUSTER_E_NOT_FOUND, "this gang has no checkpoint yet");
  }
  muster::UniqueFd memory;
  uint64_t bytes = 0;
  uint64_t actual = 0;
  if (const int status = m->session.Fetch(step, rank, &memory, &bytes, &actual); status != MUSTER_OK)
    return status;

  if (bytes == 0 || !HoldsForGood(memory.get(), bytes)) {
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
  r->copy_threads = m->copy_threads;
  r->next = m->restores;
  m->restores = r;
  *out = r;
  return MUSTER_OK;
}

}  // namespace

extern "C" {

int muster_restore_open(muster_handle* m, uint64_t step, muster_restore** out) {
  return OpenShard(m, step, muster::wire::kOwnShard, out);
}

int muster_restore_open_shard(muster_handle* m, uint64_t step, uint32_t rank, muster_restore** out) {
  if (rank == muster::wire::kOwnShard) {
    const Call call(m);
    if (call.status() != MUSTER_OK) return call.status();
    return m->session.Fail(MUSTER_E_INVALID, "there is no rank %u", rank);
  }
  return OpenShard(m, step, rank, out);
}

int muster_restore_info(muster_handle* m, uint64_t step, uint64_t* found_step, uint32_t* world_size) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  if (step == MUSTER_LATEST && muster_restore_step(m) == MUSTER_LATEST) {
    return m->session.Fail(MUSTER_E_NOT_FOUND, "this gang has no checkpoint yet");
  }
  uint64_t actual = 0;
  uint32_t members = 0;
  if (const int status = m->session.Describe(step, &actual, &members); status != MUSTER_OK) return status;
  if (found_step != nullptr) *found_step = actual;
  if (world_size != nullptr) *world_size = members;
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
  ExpectFill(data, bytes);
  LargeCopy(data, entry->data, bytes, r->copy_threads);
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
