// The page in which musterd says that it lives (wire::BeatPage), mapped for reading.
#pragma once

#include <stdint.h>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::supervisor {

class BeatPage {
 public:
  BeatPage() = default;
  BeatPage(const BeatPage&) = delete;
  BeatPage& operator=(const BeatPage&) = delete;
  ~BeatPage() { Close(); }

  // False when it is not such a page, or one that could shrink under its reader.
  bool Open(const UniqueFd& memory);
  void Close();
  // CLOCK_MONOTONIC in milliseconds of the newest beat; 0 without a page, or before the first.
  [[nodiscard]] int64_t NewestMs() const;
  // Whether a lease stood behind a beat so far.
  [[nodiscard]] bool Leased() const;

 private:
  const wire::BeatPage* page_ = nullptr;
};

}  // namespace muster::supervisor
