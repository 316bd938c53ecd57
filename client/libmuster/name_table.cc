#include "client/libmuster/name_table.h"

#include <stdlib.h>
#include <string.h>

namespace muster::client {
namespace {

// FNV-1a.
uint64_t Hash(const char* name, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(name[i])) * 0x100000001b3u;
  return hash;
}

}  // namespace

NameTable::~NameTable() {
  free(slots_);
}

NameTable::Slot* NameTable::Locate(uint64_t hash, const char* name, size_t size) const {
  for (size_t at = hash & (slot_count_ - 1);; at = (at + 1) & (slot_count_ - 1)) {
    Slot* slot = &slots_[at];
    if (slot->name_size == 0) return slot;
    if (slot->hash == hash && slot->name_size == size &&
        memcmp(names_.data() + slot->name_at, name, size) == 0) {
      return slot;
    }
  }
}

bool NameTable::Grow() {
  const size_t wanted = slot_count_ == 0 ? 64 : slot_count_ * 2;
  auto* grown = static_cast<Slot*>(calloc(wanted, sizeof(Slot)));
  if (grown == nullptr) return false;
  Slot* old = slots_;
  const size_t old_count = slot_count_;
  slots_ = grown;
  slot_count_ = wanted;
  for (size_t i = 0; i < old_count; ++i) {
    if (old[i].name_size == 0) continue;
    *Locate(old[i].hash, names_.data() + old[i].name_at, old[i].name_size) = old[i];
  }
  free(old);
  return true;
}

NameTable::Insert NameTable::Add(const char* name, size_t size) {
  // Never more than half full, so that Locate always meets a free slot.
  if (count_ * 2 >= slot_count_ && !Grow()) return Insert::kNoMemory;
  const uint64_t hash = Hash(name, size);
  Slot* slot = Locate(hash, name, size);
  if (slot->name_size != 0) return Insert::kDuplicate;
  const size_t at = names_.size();
  if (!names_.Append(name, size)) return Insert::kNoMemory;
  *slot = {hash, at, size, count_++};
  return Insert::kDone;
}

bool NameTable::Find(const char* name, size_t size, size_t* index) const {
  if (count_ == 0 || size == 0) return false;
  const Slot* slot = Locate(Hash(name, size), name, size);
  if (slot->name_size == 0) return false;
  *index = slot->index;
  return true;
}

void NameTable::Clear() {
  if (slots_ != nullptr) memset(slots_, 0, slot_count_ * sizeof(Slot));
  count_ = 0;
  names_.Clear();
}

}  // namespace muster::client
