// The conversation with musterd: connects, greets, hands over saves, asks for shards, takes what comes, and
// does it all again when musterd has been restarted. It has no thread: it moves on inside the calls of the
// program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/client_connection.h"
#include "client/libmuster/exchange.h"
#include "client/libmuster/identity.h"
#include "client/libmuster/own_page.h"
#include "client/libmuster/saves.h"
#include "client/libmuster/staging.h"
#include "client/muster.h"

namespace muster::client {

// CLOCK_MONOTONIC in nanoseconds.
int64_t Now();
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMillisecond;
inline constexpr int64_t kNever = INT64_MAX;
inline constexpr int64_t kConnectTimeout = 10 * kSecond;
inline constexpr int64_t kReconnectTimeout = 30 * kSecond;  // where musterd does not say it

class Session {
 public:
  static constexpr size_t kStagings = 2;

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Sets the sentence of the last error and gives `status`.
  int Fail(int status, const char* format, ...) __attribute__((format(printf, 3, 4)));
  [[nodiscard]] const char* error() const { return error_; }
  void ClearError() { error_[0] = '\0'; }

  // Reads the environment and waits for musterd's welcome.
  int Open();
  // Says goodbye; only in the process that opened it.
  void End() { connection_.ShutDown(); }
  // Does what can be done without waiting. MUSTER_OK also while musterd is away for less than it has said that members run on
  // without it.
  int Advance();
  // Moves on until `done(this)` says so: MUSTER_OK; or until `deadline`: MUSTER_E_TIMEOUT.
  template <typename Done>
  int Until(int64_t deadline, Done done) {
    return UntilCall(
        deadline, [](void* what, Session* self) { return (*static_cast<Done*>(what))(self); }, &done);
  }

  // The staging memory for the next save, but for one that cannot be used; nullptr when none is free.
  Staging* FreeStaging(const Staging* unusable = nullptr);
  Staging* OtherThan(const Staging* staging) { return &stagings_[staging == &stagings_[0] ? 1 : 0]; }
  // When there is none, but for one that cannot be used: asks musterd to give up the oldest save that the store does not take.
  void GiveUpDelayed(const Staging* unusable = nullptr);
  // Why the store does not take the saves that are under way, or nullptr.
  const char* WhyDelayed();
  // Whether `staging` may come to hold `bytes` bytes without taking memory that is not there; MUSTER_E_NO_MEMORY says why
  // not. A musterd that does not know, or is not there, is not waited for.
  int AskMemory(const Staging& staging, size_t bytes);
  // The save in `staging` is complete: hands it over, now or when musterd is there.
  void Commit(Staging* staging);

  // muster_step. Of no step (wire::kNoStep): what was wanted since Saved. It may be called by one thread while another is in a
  // call: then that one talks to musterd.
  int EnterStep(uint64_t step, muster_wish* wish);
  // What was wanted has been saved.
  void Saved() { __atomic_store_n(&saved_wants_, page_.wants(), __ATOMIC_RELAXED); }
  // Around every other call; within one another may be made.
  void BeginCall();
  void EndCall();

  // Asks for a shard (of wire::kOwnShard or another rank) and waits for it.
  int Fetch(uint64_t step, uint32_t rank, UniqueFd* memory, uint64_t* bytes, uint64_t* actual_step);
  // Asks for bytes `offset` to `offset` + `bytes` - 1 of a rank's shard, less where it ends before.
  struct Range {
    UniqueFd memory;
    uint64_t bytes = 0;
    uint64_t shard_bytes = 0;
    uint64_t checkpoint = 0;  // another one when the step has been saved anew
  };
  int FetchRange(uint64_t step, uint32_t rank, uint64_t offset, uint64_t bytes, Range* out);
  // Gives `value` under `key` and waits for all members'.
  int Exchange(const char* key, const void* value, size_t bytes, int64_t deadline, ExchangedValues* values);
  // Asks by how many members a checkpoint was saved.
  int Describe(uint64_t step, uint64_t* actual_step, uint32_t* world_size);

  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] const wire::ClientWelcome& welcome() const { return welcome_; }
  [[nodiscard]] uint64_t committed() const { return committed_; }
  // Whether this musterd says how a save ended that the one before it had.
  [[nodiscard]] bool KnowsOutcomes() const { return (welcome_.features & wire::kKnowsOutcomes) != 0; }
  Saves& saves() { return saves_; }

 private:
  enum class Link { kDown, kGreeting, kReady, kRefused };
  enum class Asked { kShard, kRange, kDescription };
  struct Fetching {
    bool active = false;
    bool sent = false;
    bool done = false;
    Asked what = Asked::kShard;
    uint64_t asked = 0;
    uint32_t rank = 0;
    uint64_t offset = 0;  // of a range
    uint64_t range = 0;   // its bytes
    uint64_t step = 0;
    uint64_t bytes = 0;
    uint64_t shard_bytes = 0;
    uint64_t checkpoint = 0;
    uint32_t world_size = 0;
    int status = 0;
    UniqueFd memory;
    char text[512] = "";
  };

  struct MemoryQuestion {
    bool active = false;
    bool sent = false;
    bool done = false;
    int fd = -1;
    uint64_t number = 0;
    uint64_t bytes = 0;
    int64_t asked_at = 0;
    int status = 0;
    char text[512] = "";
  };

  int UntilCall(int64_t deadline, bool (*done)(void*, Session*), void* what);
  int Trouble(int64_t now);
  [[nodiscard]] int64_t ReconnectTimeout() const;
  void Step();
  void Connect(int64_t now);
  void Down(int error);
  // Nothing can be sent any more: what musterd has said before counts.
  void Broken(int error);
  void Refuse(int status, const char* text, size_t size);
  void Receive();
  void Take(const wire::Header& header);
  void OnWelcome();
  void OnRefused();
  void OnDurable();
  void OnDelayed();
  void OnCommitted();
  void OnRestored();
  void OnRangeRead();
  void OnDescribed();
  void OnMemoryAnswer();
  void OnExchanged();
  void OnMissing();
  int SendExchange(const ExchangeCall& call, wire::Heard heard);
  int SendAskMissing();
  [[nodiscard]] bool OwesExchange() const;
  int FlushExchange();
  int AskForCheckpoint();
  int SendRequest();
  void Resend();
  void Flush();
  int SendPage();
  int StepFailed(int status, const char* text, muster_wish* wish);
  int Serve(int64_t now);
  [[nodiscard]] bool Owes();
  bool HandOver(Staging* staging);
  [[nodiscard]] bool WantsRoom();

  Identity identity_;
  Connection connection_;
  Link link_ = Link::kDown;
  bool welcomed_ = false;     // at least once
  int64_t away_since_ = 0;    // since when musterd has not been there
  int64_t next_attempt_ = 0;  // not before this is a connection tried again
  int64_t greeted_at_ = 0;
  uint32_t greetings_ = 0;  // since the last welcome
  int away_error_ = 0;  // errno of the last attempt; 0: it closed the connection, or says it has no such gang
  int refused_status_ = 0;  // why this handle is of no use any more
  char refused_text_[512] = "";
  wire::ClientWelcome welcome_{};
  Staging stagings_[kStagings];
  Saves saves_;
  Fetching fetching_;
  MemoryQuestion memory_;
  Exchanging exchanging_;
  uint64_t committed_ = wire::kNoStep;
  OwnPage page_;
  bool page_sent_ = false;   // to this musterd
  bool page_taken_ = false;  // by a musterd at least once
  uint64_t saved_wants_ = 0;
  int calls_ = 0;      // in progress; -1: muster_step talks to musterd
  bool owes_ = false;  // musterd is not there, or something is on its way to or from it
  int64_t next_serve_ = 0;
  bool given_up_ = false;  // musterd has been away for too long
  int refused_ = 0;        // refused_status_, for muster_step
  char step_text_[512] = "";
  char error_[1024] = "";
};

}  // namespace muster::client
