// What is behind the pointers of muster.h, and how its functions begin.
#pragma once

#include <new>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/libmuster/bytes.h"
#include "client/libmuster/client_session.h"
#include "client/libmuster/device_copies.h"
#include "client/libmuster/exchange.h"
#include "client/libmuster/name_table.h"
#include "client/libmuster/shard_view.h"
#include "client/libmuster/slice_source.h"
#include "client/muster.h"

struct muster_handle {
  muster::client::Session session;
  unsigned copy_threads = 1;
  pid_t process = 0;  // which opened it: a forked child must not talk on its parent's connection

  // The save that is being put together.
  muster::client::Staging* filling = nullptr;
  size_t used = 0;  // bytes of the shard so far
  uint32_t entries = 0;
  muster::client::Bytes index;
  muster::client::NameTable names;
  muster::client::DeviceCopies devices;

  int64_t told_of_wait = 0;  // when, Now(); 0: not yet

  bool saved = false;
  uint64_t last_saved = 0;
  size_t last_bytes = 0;               // of that shard, without its header
  muster_restore* restores = nullptr;  // the open ones
  muster::client::SliceSource slices;
  muster::client::ExchangedValues exchanged;  // by the last call
  muster::wire::ClientWelcome opened{};       // the first welcome
};

struct muster_restore {
  muster_handle* owner = nullptr;  // for its error sentence; nullptr when that handle has been closed
  muster_restore* next = nullptr;
  unsigned copy_threads = 1;
  uint64_t step = 0;
  void* map = nullptr;
  size_t bytes = 0;
  muster::client::ShardView view;
};

namespace muster::client {

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

inline constexpr char kForked[] =
    "this handle belongs to process %d; a forked process cannot use its parent's handle";

// A call that may talk to musterd. Meanwhile muster_step, in another thread, does not.
class Call {
 public:
  explicit Call(muster_handle* m) : m_(m) {
    if (m->process != getpid()) {
      status_ = m->session.Fail(MUSTER_E_INVALID, kForked, static_cast<int>(m->process));
      return;
    }
    m->session.BeginCall();
    m->session.ClearError();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (status_ == MUSTER_OK) m_->session.EndCall();
  }

  // MUSTER_E_INVALID in a forked process.
  [[nodiscard]] int status() const { return status_; }

 private:
  muster_handle* m_;
  int status_ = MUSTER_OK;
};

inline int NoMemory(muster_handle* m, size_t bytes, int error) {
  return m->session.Fail(MUSTER_E_NO_MEMORY, "no memory for a shard of %zu bytes: %s", bytes,
                         strerror(error));
}

}  // namespace muster::client
