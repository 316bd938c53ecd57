#include "client/libmuster/large_copy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/libmuster/first_version.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

MUSTER_FIRST_VERSION(pthread_create);
MUSTER_FIRST_VERSION(pthread_join);
MUSTER_FIRST_VERSION(pthread_setcancelstate);

namespace muster::client {
namespace {

constexpr unsigned kUsualThreads = 4;
constexpr unsigned kMostThreads = 64;
constexpr size_t kStreamed = 16u << 10;  // below, the bytes may as well stay in the caches
constexpr size_t kShare = 8u << 20;      // for which a thread is worth its start
constexpr size_t kAhead = 1024;          // bytes between what is read and what is fetched

struct Part {
  char* to;
  const char* from;
  size_t bytes;
};

#ifdef __SSE2__
// Stores that go past the caches need not read what they replace. memcpy has them too, but only for the largest copies, and
// is slow on some CPUs where both addresses are nearly the same within a page (glibc 2.36 on AMD's: a third).
void Stream(const Part& part) {
  constexpr size_t kLine = 64;
  char* to = part.to;
  const char* from = part.from;
  size_t left = part.bytes;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (left < head + kLine) {
    memcpy(to, from, left);
    return;
  }
  memcpy(to, from, head);
  to += head;
  from += head;
  left -= head;
  for (; left >= kLine; left -= kLine, to += kLine, from += kLine) {
    _mm_prefetch(from + kAhead, _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
  memcpy(to, from, left);
}
#else
void Stream(const Part& part) {
  memcpy(part.to, part.from, part.bytes);
}
#endif

void* Run(void* part) {
  Stream(*static_cast<Part*>(part));
  return nullptr;
}

// The program's handlers are for its own threads; but where a copy itself faults, they are to see it.
void BlockSignals(sigset_t* before) {
  sigset_t blocked;
  sigfillset(&blocked);
  const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
  for (const int fault : faults) sigdelset(&blocked, fault);
  sigprocmask(SIG_BLOCK, &blocked, before);
}

}  // namespace

unsigned CopyThreads() {
  const char* const wanted = getenv("MUSTER_COPY_THREADS");
  if (wanted != nullptr) {
    char* end = nullptr;
    const unsigned long number = strtoul(wanted, &end, 10);
    if (*wanted >= '0' && *wanted <= '9' && *end == '\0' && number >= 1 && number <= kMostThreads)
      return static_cast<unsigned>(number);
  }
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return kUsualThreads;
  const auto count = static_cast<unsigned>(CPU_COUNT(&cpus));
  return count < kUsualThreads ? count : kUsualThreads;
}

void LargeCopy(void* to, const void* from, size_t bytes, unsigned threads) {
  if (bytes < kStreamed) {
    if (bytes > 0) memcpy(to, from, bytes);
    return;
  }
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  size_t shares = bytes / kShare;
  if (shares > threads) shares = threads;
  if (shares > kMostThreads) shares = kMostThreads;
  const bool threads_there =
      &pthread_create != nullptr && &pthread_join != nullptr && &pthread_setcancelstate != nullptr;
  if (!threads_there || shares < 2) return Stream({target, source, bytes});

  constexpr size_t kPage = 4096;
  const size_t share = (bytes / shares + kPage - 1) / kPage * kPage;
  Part parts[kMostThreads];
  pthread_t others[kMostThreads];
  // To be cancelled in between would leave the others at work.
  int cancel = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  sigset_t before;
  BlockSignals(&before);
  // From the end: what no thread can be had for is the caller's.
  size_t left = bytes;
  size_t started = 0;
  while (started + 1 < shares) {
    const size_t begin = (shares - 1 - started) * share;
    parts[started] = {target + begin, source + begin, left - begin};
    if (pthread_create(&others[started], nullptr, Run, &parts[started]) != 0) break;
    left = begin;
    ++started;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  Stream({target, source, left});
  for (size_t i = 0; i < started; ++i) pthread_join(others[i], nullptr);
  pthread_setcancelstate(cancel, nullptr);
}

void ExpectFill(void* to, size_t bytes) {
  constexpr size_t kWorth = 8u << 20;
  if (bytes < kWorth) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(to);
  unsigned char there = 0;
  if (mincore(reinterpret_cast<void*>((address + bytes / 2) / page * page), page, &there) != 0 ||
      (there & 1) != 0)
    return;
  // With the pages at both ends, whose other bytes are an allocator's: a mapping that was made for this memory alone stays whole.
  const uintptr_t begin = address / page * page;
  const uintptr_t end = (address + bytes + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace muster::client
