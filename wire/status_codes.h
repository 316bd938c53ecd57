// muster.h's errors and Muster's own, one for the other.
#pragma once

#include "base/result.h"
#include "ceph/muster.h"

namespace muster {

// The muster_error of a failure.
inline int StatusOf(Errc code) {
  switch (code) {
    case Errc::kInvalid:
      return MUSTER_E_INVALID;
    case Errc::kNotFound:
      return MUSTER_E_NOT_FOUND;
    case Errc::kCorrupt:
      return MUSTER_E_CORRUPT;
    case Errc::kDenied:
      return MUSTER_E_DENIED;
    case Errc::kExhausted:
    case Errc::kUnavailable:
    case Errc::kConflict:
    case Errc::kInternal:
      return MUSTER_E_STORE;
  }
  return MUSTER_E_STORE;
}

// The failure that a muster_error other than MUSTER_OK is.
inline Errc ErrcOf(int status) {
  switch (status) {
    case MUSTER_E_INVALID:
      return Errc::kInvalid;
    case MUSTER_E_NOT_FOUND:
      return Errc::kNotFound;
    case MUSTER_E_CORRUPT:
      return Errc::kCorrupt;
    case MUSTER_E_DENIED:
      return Errc::kDenied;
    case MUSTER_E_BUSY:
      return Errc::kConflict;
    case MUSTER_E_TOO_LARGE:
    case MUSTER_E_NO_MEMORY:
      return Errc::kExhausted;
    default:
      return Errc::kUnavailable;
  }
}

}  // namespace muster
