// The part of Session that asks for checkpoints, and takes the answers.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/libmuster/client_session.h"
#include "client/libmuster/wire_text.h"

namespace muster::client {
namespace {

constexpr int64_t kWorthTelling = 60 * kSecond;
constexpr int64_t kTellAgain = 600 * kSecond;

void TellOfWait(uint32_t rank, int64_t waited) {
  char text[160];
  const int size =
      snprintf(text, sizeof(text),
               "muster: rank %u has waited %lld s for a checkpoint: musterd has not delivered it yet\n", rank,
               static_cast<long long>(waited / kSecond));
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text, static_cast<size_t>(size));
}

}  // namespace

int Session::SendRequest() {
  if (fetching_.what == Asked::kRange) {
    wire::ReadRange range{};
    wire::SetHeader(&range, wire::Type::kReadRange);
    range.step = fetching_.asked;
    range.offset = fetching_.offset;
    range.bytes = fetching_.range;
    range.rank = fetching_.rank;
    return connection_.Send(&range, sizeof(range));
  }
  if (fetching_.what == Asked::kDescription) {
    wire::Describe describe{};
    wire::SetHeader(&describe, wire::Type::kDescribe);
    describe.step = fetching_.asked;
    return connection_.Send(&describe, sizeof(describe));
  }
  wire::Restore restore{};
  wire::SetHeader(&restore, wire::Type::kRestore);
  restore.step = fetching_.asked;
  restore.rank = fetching_.rank;
  return connection_.Send(&restore, sizeof(restore));
}

// Sends what fetching_ says and waits for the answer.
int Session::AskForCheckpoint() {
  // One of the first version would take a request for another member's shard for one for ours.
  const bool own = fetching_.what == Asked::kShard && fetching_.rank == wire::kOwnShard;
  if (!own && (welcome_.features & wire::kKnowsShards) == 0) {
    return Fail(MUSTER_E_PROTOCOL,
                "this node's musterd is older than this libmuster: it gives no other member's shard");
  }
  if (fetching_.what == Asked::kRange && (welcome_.features & wire::kKnowsRanges) == 0) {
    return Fail(MUSTER_E_PROTOCOL,
                "this node's musterd is older than this libmuster: it gives no parts of shards");
  }
  fetching_.active = true;
  fetching_.sent = false;
  fetching_.done = false;
  fetching_.memory.reset();
  // Without an end while musterd is there: it asks a store that is away again, and an error here would end the program for it.
  const int64_t began = Now();
  int64_t until = began + kWorthTelling;
  int status = MUSTER_E_TIMEOUT;
  while ((status = Until(until, [](Session* self) { return self->fetching_.done; })) == MUSTER_E_TIMEOUT) {
    TellOfWait(identity_.rank, Now() - began);
    until = Now() + kTellAgain;
  }
  fetching_.active = false;
  if (status != MUSTER_OK) return status;
  // Who takes that for "no checkpoint yet" begins anew, alone, while the others go on.
  if (fetching_.status == MUSTER_E_NOT_FOUND && fetching_.asked == wire::kNoStep) {
    return Fail(MUSTER_E_STORE, "what this generation starts from was removed: %s", fetching_.text);
  }
  if (fetching_.status != MUSTER_OK) {
    return Fail(fetching_.status, "%s",
                fetching_.text[0] != '\0' ? fetching_.text : "there is no such checkpoint");
  }
  return MUSTER_OK;
}

int Session::Describe(uint64_t step, uint64_t* actual_step, uint32_t* world_size) {
  fetching_.what = Asked::kDescription;
  fetching_.asked = step;
  if (const int status = AskForCheckpoint(); status != MUSTER_OK) return status;
  *actual_step = fetching_.step;
  *world_size = fetching_.world_size;
  return MUSTER_OK;
}

int Session::Fetch(uint64_t step, uint32_t rank, UniqueFd* memory, uint64_t* bytes, uint64_t* actual_step) {
  fetching_.what = Asked::kShard;
  fetching_.asked = step;
  fetching_.rank = rank;
  if (const int status = AskForCheckpoint(); status != MUSTER_OK) return status;
  if (!fetching_.memory.valid())
    return Fail(MUSTER_E_PROTOCOL, "musterd sent a checkpoint without its memory");
  *memory = static_cast<UniqueFd&&>(fetching_.memory);
  *bytes = fetching_.bytes;
  *actual_step = fetching_.step;
  return MUSTER_OK;
}

int Session::FetchRange(uint64_t step, uint32_t rank, uint64_t offset, uint64_t bytes, Range* out) {
  fetching_.what = Asked::kRange;
  fetching_.asked = step;
  fetching_.rank = rank;
  fetching_.offset = offset;
  fetching_.range = bytes;
  if (const int status = AskForCheckpoint(); status != MUSTER_OK) return status;
  // Less than was asked for only where the shard ends.
  if (!fetching_.memory.valid() || fetching_.shard_bytes < offset || fetching_.bytes > bytes ||
      (fetching_.bytes < bytes && fetching_.bytes != fetching_.shard_bytes - offset)) {
    return Fail(MUSTER_E_PROTOCOL, "musterd sent another part of a shard than was asked for");
  }
  out->memory = static_cast<UniqueFd&&>(fetching_.memory);
  out->bytes = fetching_.bytes;
  out->shard_bytes = fetching_.shard_bytes;
  out->checkpoint = fetching_.checkpoint;
  return MUSTER_OK;
}

void Session::OnRestored() {
  wire::Restored restored;
  WireText text;
  if (!fetching_.active || fetching_.what != Asked::kShard || !ReadWithText(connection_, &restored, &text)) {
    return;
  }
  fetching_.done = true;
  fetching_.status = CheckedStatus(restored.status);
  fetching_.step = restored.step;
  fetching_.bytes = restored.bytes;
  fetching_.memory = connection_.TakeDescriptor();
  text.CopyTo(fetching_.text);
}

void Session::OnRangeRead() {
  wire::RangeRead read;
  WireText text;
  if (!fetching_.active || fetching_.what != Asked::kRange || !ReadWithText(connection_, &read, &text)) {
    return;
  }
  fetching_.done = true;
  fetching_.status = CheckedStatus(read.status);
  fetching_.step = read.step;
  fetching_.bytes = read.bytes;
  fetching_.shard_bytes = read.shard_bytes;
  fetching_.checkpoint = read.checkpoint;
  fetching_.memory = connection_.TakeDescriptor();
  text.CopyTo(fetching_.text);
}

void Session::OnDescribed() {
  wire::Described described;
  WireText text;
  if (!fetching_.active || fetching_.what != Asked::kDescription ||
      !ReadWithText(connection_, &described, &text)) {
    return;
  }
  fetching_.done = true;
  fetching_.status = CheckedStatus(described.status);
  fetching_.step = described.step;
  fetching_.world_size = described.world_size;
  text.CopyTo(fetching_.text);
}

}  // namespace muster::client
