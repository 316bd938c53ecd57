// The C functions of muster.h that restore parts of tensors.
#include "client/libmuster/handle.h"
#include "client/muster.h"

using muster::client::Call;

extern "C" {

int muster_restore_slice(muster_handle* m, uint64_t step, const char* name, const muster_slice* want,
                         void* into, size_t bytes) {
  if (want == nullptr) {
    const Call call(m);
    if (call.status() != MUSTER_OK) return call.status();
    return m->session.Fail(MUSTER_E_INVALID, "there is no slice to restore: it is NULL");
  }
  const muster_slice_wanted wanted{name, into, bytes, MUSTER_ANY_RANK, 0, *want};
  return muster_restore_slices(m, step, &wanted, 1);
}

int muster_restore_slices(muster_handle* m, uint64_t step, const muster_slice_wanted* wanted, size_t count) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  if (wanted == nullptr && count > 0)
    return m->session.Fail(MUSTER_E_INVALID, "there are no slices to restore: they are NULL");
  return m->slices.Restore(&m->session, step, wanted, count);
}

int muster_slice_info(muster_handle* m, uint64_t step, const char* name, uint32_t first_rank,
                      muster_slice* out, const char** meta) {
  const Call call(m);
  if (call.status() != MUSTER_OK) return call.status();
  return m->slices.Info(&m->session, step, name, first_rank, out, meta);
}

}  // extern "C"
