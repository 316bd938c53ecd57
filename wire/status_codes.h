// What the `status` of an answer says, and Muster's own kinds of errors, one for the other.
#pragma once

#include <stdint.h>

#include "base/result.h"
#include "wire/wire.h"

namespace muster::wire {

// The code of a failure.
inline StatusCode StatusOf(Errc code) {
  switch (code) {
    case Errc::kInvalid:
      return kStatusInvalid;
    case Errc::kNotFound:
      return kStatusNotFound;
    case Errc::kCorrupt:
      return kStatusCorrupt;
    case Errc::kDenied:
      return kStatusDenied;
    case Errc::kExhausted:
    case Errc::kUnavailable:
    case Errc::kConflict:
    case Errc::kInternal:
      return kStatusStore;
  }
  return kStatusStore;
}

// The failure that a code other than kStatusOk stands for, also one of muster.h that no answer has.
inline Errc ErrcOf(int32_t status) {
  switch (status) {
    case kStatusInvalid:
      return Errc::kInvalid;
    case kStatusNotFound:
      return Errc::kNotFound;
    case kStatusCorrupt:
      return Errc::kCorrupt;
    case kStatusDenied:
      return Errc::kDenied;
    case kStatusBusy:
      return Errc::kConflict;
    case kStatusTooLarge:
    case kStatusNoMemory:
      return Errc::kExhausted;
    default:
      return Errc::kUnavailable;
  }
}

}  // namespace muster::wire
