// What came over the wire and goes to the program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/client_connection.h"
#include "client/muster.h"
#include "wire/wire.h"

namespace muster::client {

constexpr bool IsSame(int wire, int error) {
  return wire == error;
}
static_assert(IsSame(wire::kStatusOk, MUSTER_OK) && IsSame(wire::kStatusDenied, MUSTER_E_DENIED) &&
              IsSame(wire::kStatusInvalid, MUSTER_E_INVALID) &&
              IsSame(wire::kStatusNotFound, MUSTER_E_NOT_FOUND) &&
              IsSame(wire::kStatusCorrupt, MUSTER_E_CORRUPT) &&
              IsSame(wire::kStatusTooLarge, MUSTER_E_TOO_LARGE) && IsSame(wire::kStatusBusy, MUSTER_E_BUSY) &&
              IsSame(wire::kStatusStore, MUSTER_E_STORE) &&
              IsSame(wire::kStatusNoMemory, MUSTER_E_NO_MEMORY));

// A status that came over the wire.
inline int CheckedStatus(int32_t status) {
  return status <= MUSTER_OK && status >= MUSTER_E_DEVICE ? status : MUSTER_E_STORE;
}

// Copies a text from the wire: without control characters, cut to fit.
inline void CopyText(char* to, size_t capacity, const char* from, size_t size) {
  size_t n = 0;
  for (size_t i = 0; i < size && n + 1 < capacity; ++i) {
    to[n++] = static_cast<unsigned char>(from[i]) < 0x20 ? ' ' : from[i];
  }
  to[n] = '\0';
}

// A text in the packet that a connection has received: valid until it receives the next.
struct WireText {
  const char* data = "";
  size_t size = 0;

  template <size_t kCapacity>
  void CopyTo(char (&to)[kCapacity]) const {
    CopyText(to, kCapacity, data, size);
  }
};

// Reads a message that ends with a text, the last packet of `connection`. False when its body is not there; a text that
// is not what the body says of it is empty.
template <typename Body>
bool ReadWithText(const Connection& connection, Body* body, WireText* text) {
  if (!wire::ReadBody(connection.packet(), connection.packet_size(), body)) return false;
  const uint32_t sizes[1] = {body->text_bytes};
  const char* pieces[1];
  *text = {};
  if (wire::ReadTail<Body>(connection.packet(), connection.packet_size(), sizes, pieces))
    *text = {pieces[0], sizes[0]};
  return true;
}

}  // namespace muster::client
