// The C functions of muster.h but those that save and restore.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/libmuster/handle.h"
#include "client/libmuster/large_copy.h"
#include "client/muster.h"

using muster::client::Call;
using muster::client::CopyThreads;
using muster::client::Destroy;
using muster::client::kMillisecond;
using muster::client::kNever;
using muster::client::Make;
using muster::client::Now;
using muster::client::SaveRecord;
using muster::client::SaveState;
using muster::client::Session;

static_assert(MUSTER_LATEST == muster::wire::kNoStep);

namespace {

// The sentence of this thread's last failed muster_open. A pointer, because a library that may be loaded late
// must not ask for more thread-local memory than that; it is freed by the next muster_open.
__thread char* open_error __attribute__((tls_model("initial-exec")));

void KeepOpenError(const char* text) {
  free(open_error);
  open_error = text != nullptr ? strdup(text) : nullptr;
}

bool Settled(muster_handle* m, const SaveRecord& record) {
  if (record.state == SaveState::kCommitted || record.state == SaveState::kFailed) return true;
  if (!record.lost || m->session.KnowsOutcomes()) return false;
  // An older musterd never says it.
  const uint64_t committed = m->session.committed();
  return committed != MUSTER_LATEST && committed > record.step;
}

// Waits until `done` says that the save of a step (MUSTER_LATEST: the newest one) has come far enough. *found stays null
// when this handle knows of no such save.
template <typename Done>
int WaitForSave(muster_handle* m, uint64_t step, int timeout_ms, const SaveRecord** found, Done done) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  const SaveRecord* newest = m->session.saves().newest();
  if (newest == nullptr) return m->session.Fail(MUSTER_E_NOT_FOUND, "this handle has saved nothing");
  const SaveRecord* record = step == MUSTER_LATEST ? newest : m->session.saves().Find(step);
  if (record == nullptr) {
    return m->session.Fail(MUSTER_E_NOT_FOUND, "step %llu is none of the latest saves of this handle",
                           static_cast<unsigned long long>(step));
  }
  *found = record;
  const int64_t deadline = timeout_ms < 0 ? kNever : Now() + timeout_ms * kMillisecond;
  return m->session.Until(deadline, [record, done](Session*) { return done(*record); });
}

int SaveFailed(muster_handle* m, const SaveRecord& record) {
  return m->session.Fail(record.status, "the checkpoint of step %llu has failed: %s",
                         static_cast<unsigned long long>(record.step), record.text);
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
  m->copy_threads = CopyThreads();
  if (const int status = m->session.Open(); status != MUSTER_OK) {
    KeepOpenError(m->session.error());
    Destroy(m);
    return status;
  }
  m->opened = m->session.welcome();
  *out = m;
  return MUSTER_OK;
}

void muster_close(muster_handle* m) {
  if (m == nullptr) return;
  for (muster_restore* r = m->restores; r != nullptr; r = r->next) r->owner = nullptr;
  if (m->process == getpid()) {
    muster_save_abort(m);
    m->devices.End();
    m->session.End();
  }
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
  return m->opened.rank;
}
uint32_t muster_world_size(const muster_handle* m) {
  return m->opened.world_size;
}
uint64_t muster_generation(const muster_handle* m) {
  return m->opened.generation;
}
uint64_t muster_restore_step(const muster_handle* m) {
  return m->opened.restore_step;
}

int muster_step(muster_handle* m, uint64_t step, muster_wish* wish) {
  return m->session.EnterStep(step, wish);
}

int muster_wait(muster_handle* m, uint64_t step, int timeout_ms) {
  const SaveRecord* record = nullptr;
  const int status =
      WaitForSave(m, step, timeout_ms, &record, [m](const SaveRecord& save) { return Settled(m, save); });
  if (record == nullptr) return status;
  const auto number = static_cast<unsigned long long>(record->step);
  if (status == MUSTER_E_TIMEOUT) {
    return m->session.Fail(status, "the checkpoint of step %llu is not committed yet: %s", number,
                           record->state == SaveState::kDurable ? "other members' shards are missing"
                           : record->delayed                    ? record->text
                                                                : "this member's shard is not durable yet");
  }
  if (status != MUSTER_OK || record->state == SaveState::kCommitted) return status;
  if (record->state == SaveState::kFailed) return SaveFailed(m, *record);
  return m->session.Fail(MUSTER_E_STORE,
                         "how the checkpoint of step %llu ended was lost in a restart of musterd; step "
                         "%llu has been committed since",
                         number, static_cast<unsigned long long>(m->session.committed()));
}

int muster_wait_durable(muster_handle* m, uint64_t step, int timeout_ms) {
  const SaveRecord* record = nullptr;
  const int status = WaitForSave(m, step, timeout_ms, &record, [m](const SaveRecord& save) {
    return save.state == SaveState::kDurable || Settled(m, save);
  });
  if (record == nullptr) return status;
  if (status == MUSTER_E_TIMEOUT) {
    return m->session.Fail(status, "this member's shard of step %llu is not durable yet%s%s",
                           static_cast<unsigned long long>(record->step), record->delayed ? ": " : "",
                           record->delayed ? record->text : "");
  }
  if (status != MUSTER_OK || record->state != SaveState::kFailed) return status;
  return SaveFailed(m, *record);
}

uint64_t muster_committed(muster_handle* m) {
  const Call call(m);
  if (call.status() == MUSTER_OK) (void)m->session.Advance();
  return m->session.committed();
}

}  // extern "C"
