// The part of Session that knows the staging memory: which is free, which is given up, and how much there may be of it.
#include "client/libmuster/client_session.h"
#include "client/libmuster/wire_text.h"

namespace muster::client {
namespace {

constexpr int64_t kMemoryTimeout = kSecond;
constexpr int64_t kAskMemoryPause = 250 * kMillisecond;

}  // namespace

Staging* Session::FreeStaging(const Staging* unusable) {
  Staging* best = nullptr;
  for (Staging& staging : stagings_) {
    if (&staging == unusable || staging.use != Staging::Use::kFree) continue;
    // The older content first: the newer may have to be handed over again.
    if (best == nullptr || !staging.holds || (best->holds && staging.step < best->step)) best = &staging;
  }
  return best;
}

// The newer one stays: two saves are in memory, whatever the store does.
void Session::GiveUpDelayed(const Staging* unusable) {
  Staging* oldest = nullptr;
  for (Staging& staging : stagings_) {
    if (&staging == unusable) continue;
    if (staging.use != Staging::Use::kHanded) return;
    if (oldest == nullptr || staging.step < oldest->step) oldest = &staging;
  }
  if (oldest == nullptr) return;
  const SaveRecord* record = saves_.Find(oldest->step);
  if (record == nullptr || record->state != SaveState::kSent || !record->delayed || oldest->give_up) return;
  oldest->give_up = true;
  if (link_ == Link::kReady) Flush();
}

const char* Session::WhyDelayed() {
  for (const Staging& staging : stagings_) {
    if (staging.use != Staging::Use::kHanded) continue;
    const SaveRecord* record = saves_.Find(staging.step);
    if (record != nullptr && record->state == SaveState::kSent && record->delayed) return record->text;
  }
  return nullptr;
}

int Session::AskMemory(const Staging& staging, size_t bytes) {
  if (link_ != Link::kReady || (welcome_.features & wire::kGrantsMemory) == 0) return MUSTER_OK;
  // Who polls with muster_save_begin_nowait gets the answer that he has just had.
  const bool same = memory_.fd == staging.fd() && bytes >= memory_.bytes && memory_.done;
  if (same && memory_.status != MUSTER_OK && Now() - memory_.asked_at < kAskMemoryPause) {
    return Fail(memory_.status, "no memory for a shard of %zu bytes: %s", bytes, memory_.text);
  }
  memory_.asked_at = Now();
  memory_.active = true;
  memory_.sent = memory_.done = false;
  memory_.fd = staging.fd();
  ++memory_.number;
  memory_.bytes = bytes;
  const int status = Until(Now() + kMemoryTimeout,
                           [](Session* self) { return self->memory_.done || self->link_ != Link::kReady; });
  memory_.active = false;
  if (status == MUSTER_E_TIMEOUT) ClearError();
  if (status != MUSTER_OK && status != MUSTER_E_TIMEOUT) return status;
  if (!memory_.done || memory_.status == MUSTER_OK) return MUSTER_OK;
  return Fail(memory_.status, "no memory for a shard of %zu bytes: %s", bytes, memory_.text);
}

void Session::OnMemoryAnswer() {
  wire::MemoryAnswer answer;
  WireText text;
  if (!memory_.active || !ReadWithText(connection_, &answer, &text) || answer.number != memory_.number) {
    return;
  }
  memory_.done = true;
  memory_.status = CheckedStatus(answer.status);
  text.CopyTo(memory_.text);
}

}  // namespace muster::client
