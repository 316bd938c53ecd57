// How a member is being stopped. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>

namespace muster {

struct MemberStop {
  bool ordered = false;
  bool last_words = false;     // the order has left it time for them
  bool dump_asked = false;     // and its flight recorder needs some of that
  uint32_t last_words_ms = 0;  // that they have taken
  bool exiting = false;        // SIGKILL has ended all its processes, and some of them have not gone yet

  // Whether an order is to be sent: the first one, and one that ends last words.
  bool Order(bool with_last_words) {
    if (ordered && (with_last_words || !last_words)) return false;
    ordered = true;
    last_words = with_last_words;
    return true;
  }
};

}  // namespace muster
