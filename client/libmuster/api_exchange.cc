// The C functions of muster.h by which members give each other values.
#include "client/libmuster/handle.h"
#include "client/muster.h"

static_assert(MUSTER_EXCHANGE_KEY_MAX == muster::wire::kMaxExchangeKey &&
              MUSTER_EXCHANGE_VALUE_MAX == muster::wire::kMaxExchangeValue);

extern "C" {

int muster_exchange(muster_handle* m, const char* key, const void* value, size_t bytes, int timeout_ms) {
  using muster::client::kMillisecond;
  const muster::client::Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  const int64_t deadline =
      timeout_ms < 0 ? muster::client::kNever : muster::client::Now() + timeout_ms * kMillisecond;
  return m->session.Exchange(key, value, bytes, deadline, &m->exchanged);
}

int muster_exchanged(muster_handle* m, uint32_t rank, const void** value, size_t* bytes) {
  const muster::client::Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  if (m->exchanged.members() == 0)
    return m->session.Fail(MUSTER_E_NOT_FOUND, "the last exchange of this handle has brought no values");
  if (rank >= m->exchanged.members()) {
    return m->session.Fail(MUSTER_E_INVALID, "rank %u of %u members", rank, m->exchanged.members());
  }
  *value = m->exchanged.Value(rank, bytes);
  return MUSTER_OK;
}

}  // extern "C"
