// An NCCL that lacks everything but its version.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* out) {
  *out = 22703;
  return 0;
}
