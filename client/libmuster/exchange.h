// A call of muster_exchange, as the session has it, and the values that the last one brought.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::client {

struct ExchangeCall {
  bool sent = false;  // over the connection that there is
  uint64_t number = 0;
  char key[wire::kMaxExchangeKey + 1] = "";  // "": there was none
  char value[wire::kMaxExchangeValue];
  uint32_t value_bytes = 0;
};

struct Exchanging {
  bool active = false;
  wire::Heard heard = wire::Heard::kNew;
  bool done = false;
  bool ask_missing = false;
  bool missing_sent = false;
  ExchangeCall call;  // until it is answered
  // The one before, which was answered: another member may still wait for it when musterd and the coordinator have been lost.
  ExchangeCall before;
  int status = 0;
  uint32_t members = 0;
  uint64_t bytes = 0;
  UniqueFd memory;
  char text[512] = "";
  char missing[512] = "";
};

// Not thread-safe.
class ExchangedValues {
 public:
  ExchangedValues() = default;
  ~ExchangedValues() { Forget(); }
  ExchangedValues(const ExchangedValues&) = delete;
  ExchangedValues& operator=(const ExchangedValues&) = delete;

  // Of `members`, in `bytes` bytes of a memfd. False when it is not what wire::Exchanged says.
  bool Take(const UniqueFd& memory, uint64_t bytes, uint32_t members);
  void Forget();
  [[nodiscard]] uint32_t members() const { return members_; }
  // Of a rank below members().
  const void* Value(uint32_t rank, size_t* bytes) const;

 private:
  [[nodiscard]] uint32_t End(uint32_t rank) const;

  unsigned char* map_ = nullptr;
  size_t bytes_ = 0;
  uint32_t members_ = 0;
};

}  // namespace muster::client
