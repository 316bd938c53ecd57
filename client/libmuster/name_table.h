// Finds an entry by its name.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/bytes.h"

namespace muster::client {

// Maps names to the numbers 0, 1, 2... in the order of insertion. Keeps copies of the names.
class NameTable {
 public:
  enum class Insert { kDone, kDuplicate, kNoMemory };

  NameTable() = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;
  ~NameTable();

  Insert Add(const char* name, size_t size);
  // False when it is not there.
  bool Find(const char* name, size_t size, size_t* index) const;
  void Clear();
  [[nodiscard]] size_t count() const { return count_; }

 private:
  struct Slot {
    uint64_t hash;
    size_t name_at;    // in names_
    size_t name_size;  // 0: free (no name is empty)
    size_t index;
  };
  bool Grow();
  Slot* Locate(uint64_t hash, const char* name, size_t size) const;

  Slot* slots_ = nullptr;  // open addressing; the size is a power of two
  size_t slot_count_ = 0;
  size_t count_ = 0;
  Bytes names_;
};

}  // namespace muster::client
