#include "client/libmuster/client_session.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/libmuster/wire_text.h"

namespace muster::client {
namespace {

constexpr int64_t kAttemptPause = 100 * kMillisecond;
constexpr int64_t kGreetingTimeout = 10 * kSecond;
constexpr int64_t kServePause = 10 * kMillisecond;
constexpr int64_t kLookPause = kMillisecond / 5;  // at a page on which it stands soon what was decided
// musterd says each second that it is there.
constexpr int64_t kUnseen = 3 * kSecond;
constexpr char kForkedText[] = "a forked process cannot use its parent's handle";

int StatusOf(uint32_t refusal) {
  switch (static_cast<wire::Refusal>(refusal)) {
    case wire::Refusal::kVersion:
    case wire::Refusal::kMalformed:
      return MUSTER_E_PROTOCOL;
    case wire::Refusal::kDenied:
    case wire::Refusal::kStaleGeneration:
      return MUSTER_E_DENIED;
    case wire::Refusal::kNoGang:
      return MUSTER_E_NO_GANG;
    case wire::Refusal::kDisabled:
      return MUSTER_E_STORE;
    case wire::Refusal::kInvalid:
      return MUSTER_E_INVALID;
  }
  return MUSTER_E_DENIED;
}

}  // namespace

int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

int Session::Fail(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_, sizeof(error_), format, arguments);
  va_end(arguments);
  return status;
}

// ---- moving on ----

int Session::Open() {
  if (const int status = identity_.Read(error_, sizeof(error_)); status != MUSTER_OK) return status;
  away_since_ = Now();
  // With its page taken, a member knows of a step what musterd knows.
  const int status = Until(Now() + kConnectTimeout,
                           [](Session* self) { return self->link_ == Link::kReady && self->page_taken_; });
  if (status != MUSTER_E_TIMEOUT) return status;
  if (link_ == Link::kReady)
    return Fail(MUSTER_E_PROTOCOL, "musterd does not take the page of this member's steps");
  return Trouble(kNever);
}

int Session::Advance() {
  Step();
  return Trouble(Now());
}

// Why nothing can be done any more, as of `now`; MUSTER_OK while there is hope.
int Session::Trouble(int64_t now) {
  if (link_ == Link::kRefused) return Fail(refused_status_, "%s", refused_text_);
  if (link_ == Link::kReady || now - away_since_ < ReconnectTimeout()) return MUSTER_OK;
  // One who calls seldom has been away for long, and asks only now.
  if (link_ == Link::kGreeting && greetings_ == 1 && now - greeted_at_ < kGreetingTimeout) return MUSTER_OK;
  if (refused_status_ == MUSTER_E_NO_GANG) return Fail(MUSTER_E_NO_GANG, "%s", refused_text_);
  return Fail(MUSTER_E_UNREACHABLE, "musterd does not answer on %s: %s (is %s running on this node?)",
              identity_.socket,
              away_error_ != 0 ? strerror(away_error_) : "it closes the connection or says nothing",
              wire::kUnit);
}

int64_t Session::ReconnectTimeout() const {
  return welcome_.reconnect_ms != 0 ? welcome_.reconnect_ms * kMillisecond : kReconnectTimeout;
}

int Session::UntilCall(int64_t deadline, bool (*done)(void*, Session*), void* what) {
  for (;;) {
    Step();
    if (done(what, this)) return MUSTER_OK;
    const int64_t now = Now();
    if (const int status = Trouble(now); status != MUSTER_OK) return status;
    if (now >= deadline) return Fail(MUSTER_E_TIMEOUT, "the time is over");
    // Wake up for what only the clock brings: the next attempt to connect, the end of patience.
    int64_t wait = link_ == Link::kDown ? next_attempt_ - now : kSecond;
    if (wait > deadline - now) wait = deadline - now;
    if (wait < 0) wait = 0;
    connection_.Wait(static_cast<int>(wait / kMillisecond) + 1, WantsRoom());
  }
}

void Session::Step() {
  // What has come counts, however long ago: a program may call seldom.
  Receive();
  const int64_t now = Now();
  if (link_ == Link::kGreeting && now - greeted_at_ > kGreetingTimeout) Down(0);
  if (link_ == Link::kDown && now >= next_attempt_) {
    Connect(now);
    Receive();
  }
  if (link_ == Link::kReady) Flush();
}

void Session::Connect(int64_t now) {
  next_attempt_ = now + kAttemptPause;
  if (const int error = connection_.Open(identity_.socket); error != 0) {
    away_error_ = error;
    return;
  }
  struct {
    wire::ClientHello body;
    char gang[sizeof(identity_.gang)];
  } hello{};
  const size_t gang_bytes = strlen(identity_.gang);
  wire::SetHeader(&hello.body, wire::Type::kClientHello, gang_bytes);
  memcpy(hello.body.token, identity_.token, sizeof(hello.body.token));
  hello.body.generation = identity_.generation;
  hello.body.rank = identity_.rank;
  hello.body.gang_bytes = static_cast<uint32_t>(gang_bytes);
  memcpy(reinterpret_cast<char*>(&hello) + sizeof(hello.body), identity_.gang, gang_bytes);
  if (const int error = connection_.Send(&hello, sizeof(hello.body) + gang_bytes); error != 0)
    return Down(error);
  link_ = Link::kGreeting;
  greeted_at_ = now;
  ++greetings_;
}

void Session::Down(int error) {
  if (link_ == Link::kReady) away_since_ = Now();
  connection_.Close();
  link_ = Link::kDown;
  away_error_ = error;
  fetching_.sent = false;
  exchanging_.call.sent = exchanging_.before.sent = exchanging_.missing_sent = false;
}

void Session::Broken(int error) {
  Receive();
  if (connection_.open()) Down(error);
}

void Session::Refuse(int status, const char* text, size_t size) {
  connection_.Close();
  link_ = Link::kRefused;
  refused_status_ = status;
  CopyText(refused_text_, sizeof(refused_text_), text, size);
}

// ---- what musterd says ----

void Session::Receive() {
  while (connection_.open()) {
    switch (connection_.Receive()) {
      case Connection::Received::kNothing:
        return;
      case Connection::Received::kClosed:
        Down(0);
        return;
      case Connection::Received::kTooLong: {
        const char* text = wire::CheckText(wire::Check::kSize);
        Refuse(MUSTER_E_PROTOCOL, text, strlen(text));
        return;
      }
      case Connection::Received::kPacket:
        break;
    }
    wire::Header header;
    const wire::Check check = wire::CheckHeader(connection_.packet(), connection_.packet_size(), &header);
    if (check != wire::Check::kOk) {
      char text[160];
      const int n =
          snprintf(text, sizeof(text), "musterd and this libmuster do not understand each other: %s",
                   wire::CheckText(check));
      Refuse(MUSTER_E_PROTOCOL, text, static_cast<size_t>(n));
      return;
    }
    Take(header);
  }
}

void Session::Take(const wire::Header& header) {
  switch (static_cast<wire::Type>(header.type)) {
    case wire::Type::kClientWelcome:
      return OnWelcome();
    case wire::Type::kRefused:
      return OnRefused();
    case wire::Type::kShardDurable:
      return OnDurable();
    case wire::Type::kShardDelayed:
      return OnDelayed();
    case wire::Type::kCommitted:
      return OnCommitted();
    case wire::Type::kRestored:
      return OnRestored();
    case wire::Type::kRangeRead:
      return OnRangeRead();
    case wire::Type::kDescribed:
      return OnDescribed();
    case wire::Type::kMemoryAnswer:
      return OnMemoryAnswer();
    case wire::Type::kExchanged:
      return OnExchanged();
    case wire::Type::kMissing:
      return OnMissing();
    case wire::Type::kStepPageTaken:
      page_taken_ = true;
      return;
    default:
      return;  // a newer musterd may say more than this library knows
  }
}

void Session::OnWelcome() {
  wire::ClientWelcome welcome{};
  if (!wire::ReadGrownBody(connection_.packet(), connection_.packet_size(), wire::kFirstClientWelcome,
                           &welcome) ||
      link_ != Link::kGreeting) {
    return;
  }
  if (!welcomed_) committed_ = welcome.restore_step;
  welcome_ = welcome;
  welcomed_ = true;
  link_ = Link::kReady;
  greetings_ = 0;
  away_error_ = 0;
  refused_status_ = 0;
  page_sent_ = false;
  if (!page_.Open()) {
    constexpr char kNoPage[] = "no memory for the page of this member's steps";
    return Refuse(MUSTER_E_NO_MEMORY, kNoPage, sizeof(kNoPage) - 1);
  }
  Resend();
}

void Session::OnRefused() {
  wire::Refused refused;
  WireText text;
  if (!ReadWithText(connection_, &refused, &text)) return Down(0);
  if (static_cast<wire::Refusal>(refused.reason) != wire::Refusal::kNoGang) {
    return Refuse(StatusOf(refused.reason), text.data, text.size);
  }
  // A musterd that has just been restarted does not know its gangs yet: their supervisors are on the way to
  // it.
  Down(0);
  next_attempt_ = Now() + kAttemptPause;
  refused_status_ = MUSTER_E_NO_GANG;
  text.CopyTo(refused_text_);
}

void Session::OnDurable() {
  wire::ShardDurable durable;
  WireText text;
  if (!ReadWithText(connection_, &durable, &text)) return;
  for (Staging& staging : stagings_) {
    if (staging.use == Staging::Use::kHanded && staging.step == durable.step)
      staging.use = Staging::Use::kFree;
  }
  SaveRecord* record = saves_.Find(durable.step);
  if (record == nullptr || record->state > SaveState::kDurable) return;
  if (durable.status != MUSTER_OK && record->again) {
    // What was durable before may count all the same.
    record->state = SaveState::kDurable;
    record->lost = true;
    record->ask = KnowsOutcomes();
    return;
  }
  record->state = durable.status == MUSTER_OK ? SaveState::kDurable : SaveState::kFailed;
  record->status = CheckedStatus(durable.status);
  text.CopyTo(record->text);
}

void Session::OnDelayed() {
  wire::ShardDelayed delayed;
  WireText text;
  if (!ReadWithText(connection_, &delayed, &text)) return;
  SaveRecord* record = saves_.Find(delayed.step);
  if (record == nullptr || record->state != SaveState::kSent) return;
  record->delayed = delayed.status != MUSTER_OK;
  text.CopyTo(record->text);
}

void Session::OnCommitted() {
  wire::Committed committed;
  WireText text;
  if (!ReadWithText(connection_, &committed, &text)) return;
  if (committed.status == MUSTER_OK && (committed_ == wire::kNoStep || committed.step > committed_)) {
    committed_ = committed.step;
  }
  SaveRecord* record = saves_.Find(committed.step);
  if (record == nullptr || record->state == SaveState::kCommitted) return;
  for (Staging& staging : stagings_) {
    if (staging.step != committed.step || staging.use != Staging::Use::kHanded) continue;
    // It has not been handed over again, and need not be. What was handed over after musterd had said this to its gang would
    // be written, or wait for room, in vain.
    if (HandOver(&staging)) {
      staging.use = Staging::Use::kFree;
    } else {
      staging.give_up = true;
    }
  }
  record->ask = false;
  record->state = committed.status == MUSTER_OK ? SaveState::kCommitted : SaveState::kFailed;
  record->status = CheckedStatus(committed.status);
  text.CopyTo(record->text);
}

// ---- what the program says ----

void Session::Commit(Staging* staging) {
  staging->use = Staging::Use::kHanded;
  staging->give_up = staging->gave_up = false;
  staging->holds = true;
  // What was saved of the same step before is not handed over again.
  if (Staging* other = OtherThan(staging); other->step == staging->step) other->holds = false;
  saves_.Add(staging->step);
  Step();
}

// After a new welcome: musterd may be another process, which knows of no save. What the memory still holds
// and is not committed is handed over again; the objects are written a second time with the same bytes.
void Session::Resend() {
  for (size_t i = 0; i < saves_.kept(); ++i) {
    SaveRecord& record = saves_.at(i);
    if (record.state > SaveState::kDurable) continue;
    bool held = false;
    for (Staging& staging : stagings_) {
      if (!staging.holds || staging.step != record.step || staging.use == Staging::Use::kFilling) continue;
      staging.use = Staging::Use::kHanded;
      staging.give_up = staging.gave_up = false;
      held = true;
    }
    record.delayed = false;
    if (held) {
      record.again |= record.state == SaveState::kDurable;
      record.state = SaveState::kQueued;
    } else {
      record.lost = true;
      record.ask = KnowsOutcomes();
    }
  }
}

// Whether `staging` holds a save that waits to be handed over.
bool Session::HandOver(Staging* staging) {
  if (staging->use != Staging::Use::kHanded) return false;
  const SaveRecord* record = saves_.Find(staging->step);
  return record != nullptr && record->state == SaveState::kQueued;
}

bool Session::WantsRoom() {
  if (link_ != Link::kReady) return false;
  if (!page_sent_) return true;
  for (Staging& staging : stagings_) {
    if (HandOver(&staging) || (staging.give_up && !staging.gave_up)) return true;
  }
  for (size_t i = 0; i < saves_.kept(); ++i) {
    if (saves_.at(i).ask) return true;
  }
  return (fetching_.active && !fetching_.sent) || (memory_.active && !memory_.sent) || OwesExchange();
}

void Session::Flush() {
  if (!page_sent_) {
    const int error = SendPage();
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    page_sent_ = true;
  }
  for (;;) {
    Staging* next = nullptr;
    for (Staging& staging : stagings_) {
      if (HandOver(&staging) && (next == nullptr || staging.step < next->step)) next = &staging;
    }
    if (next == nullptr) break;
    wire::Save save{};
    wire::SetHeader(&save, wire::Type::kSave);
    save.step = next->step;
    save.bytes = next->bytes;
    save.held_ns = next->held_ns;
    const int error = connection_.Send(&save, sizeof(save), next->fd());
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    saves_.Find(next->step)->state = SaveState::kSent;
  }
  for (Staging& staging : stagings_) {
    if (!staging.give_up || staging.gave_up) continue;
    wire::GiveUp give_up{};
    wire::SetHeader(&give_up, wire::Type::kGiveUp);
    give_up.step = staging.step;
    const int error = connection_.Send(&give_up, sizeof(give_up));
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    staging.gave_up = true;
  }
  for (size_t i = 0; i < saves_.kept(); ++i) {
    SaveRecord& record = saves_.at(i);
    if (!record.ask) continue;
    wire::AskOutcome ask{};
    wire::SetHeader(&ask, wire::Type::kAskOutcome);
    ask.step = record.step;
    const int error = connection_.Send(&ask, sizeof(ask));
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    record.ask = false;
  }
  if (fetching_.active && !fetching_.sent) {
    const int error = SendRequest();
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    fetching_.sent = true;
  }
  if (memory_.active && !memory_.sent) {
    wire::AskMemory ask{};
    wire::SetHeader(&ask, wire::Type::kAskMemory);
    ask.number = memory_.number;
    ask.bytes = memory_.bytes;
    const int error = connection_.Send(&ask, sizeof(ask), memory_.fd);
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
    memory_.sent = true;
  }
  if (OwesExchange()) {
    const int error = FlushExchange();
    if (error == EAGAIN) return;
    if (error != 0) return Broken(error);
  }
}

int Session::SendPage() {
  wire::StepPageHandover handover{};
  wire::SetHeader(&handover, wire::Type::kStepPage);
  return connection_.Send(&handover, sizeof(handover), page_.fd());
}

// ---- steps

void Session::BeginCall() {
  for (;;) {
    int calls = __atomic_load_n(&calls_, __ATOMIC_RELAXED);
    if (calls >= 0 &&
        __atomic_compare_exchange_n(&calls_, &calls, calls + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return;
    sched_yield();  // muster_step never stays there
  }
}

void Session::EndCall() {
  __atomic_store_n(&owes_, Owes(), __ATOMIC_RELAXED);
  __atomic_store_n(&refused_, link_ == Link::kRefused ? refused_status_ : 0, __ATOMIC_RELEASE);
  __atomic_fetch_sub(&calls_, 1, __ATOMIC_RELEASE);
}

// Whether something is to be said or heard before long.
bool Session::Owes() {
  if (link_ != Link::kReady || WantsRoom()) return true;
  for (size_t i = 0; i < saves_.kept(); ++i) {
    if (saves_.at(i).state < SaveState::kCommitted) return true;
  }
  return false;
}

// Lets the session move on, unless another thread is in a call, which does it. Gives the error after which it does not any more.
int Session::Serve(int64_t now) {
  if (now >= next_serve_) {
    int none = 0;
    if (__atomic_compare_exchange_n(&calls_, &none, -1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      next_serve_ = now + kServePause;
      Step();
      given_up_ = link_ != Link::kReady && now - away_since_ >= ReconnectTimeout();
      __atomic_store_n(&owes_, Owes(), __ATOMIC_RELAXED);
      __atomic_store_n(&refused_, link_ == Link::kRefused ? refused_status_ : 0, __ATOMIC_RELEASE);
      __atomic_store_n(&calls_, 0, __ATOMIC_RELEASE);
    }
  }
  return __atomic_load_n(&refused_, __ATOMIC_ACQUIRE);
}

int Session::StepFailed(int status, const char* text, muster_wish* wish) {
  CopyText(step_text_, sizeof(step_text_), text, strlen(text));
  if (wish != nullptr) wish->reason = step_text_;
  return status;
}

int Session::EnterStep(uint64_t step, muster_wish* wish) {
  if (wish != nullptr) *wish = {0, 0, ""};
  const bool of_none = step == wire::kNoStep;
  if (page_.IsForked()) return StepFailed(MUSTER_E_INVALID, kForkedText, wish);
  if (step > wire::kMaxStep && !of_none)
    return StepFailed(MUSTER_E_INVALID, "a step is a number from 0 to 2^63 - 1", wish);
  int64_t now = Now();
  uint64_t above = 0;
  bool answered = of_none || page_.Enter(step, now, &above);
  const bool serve = __atomic_load_n(&owes_, __ATOMIC_RELAXED) || now - page_.seen_ns() >= kUnseen;
  if (answered && !serve && !of_none) return MUSTER_OK;
  wire::AgreedStep agreed{};
  for (;;) {
    const wire::StepAnswer answer =
        answered ? wire::StepAnswer::kNothing : page_.Answer(step, above, &agreed);
    answered = answer != wire::StepAnswer::kWait;
    if (serve || !answered) {
      // Once it is refused, the text stays.
      if (const int status = Serve(now); status != MUSTER_OK) return StepFailed(status, refused_text_, wish);
    }
    if (answered) break;
    if (given_up_) {
      return StepFailed(
          MUSTER_E_UNREACHABLE,
          "musterd went away before it was known what is asked at this step, and did not come back", wish);
    }
    const timespec pause{0, kLookPause};
    nanosleep(&pause, nullptr);
    now = Now();
  }
  const uint32_t asked =
      of_none ? page_.Wanted(__atomic_load_n(&saved_wants_, __ATOMIC_RELAXED)) : agreed.wish;
  if (asked == 0 || wish == nullptr) return MUSTER_OK;
  const size_t bytes =
      agreed.reason_bytes < sizeof(agreed.reason) ? agreed.reason_bytes : sizeof(agreed.reason);
  CopyText(step_text_, sizeof(step_text_), agreed.reason, bytes);
  *wish = {(asked & wire::kWishSave) != 0, (asked & wire::kWishExit) != 0, step_text_};
  return MUSTER_OK;
}

}  // namespace muster::client
