// Functions that were in libpthread and libdl until glibc 2.34 made them libc's own: a reference to them as they are now would
// keep libmuster out of older containers. MUSTER_FIRST_VERSION(name) makes a file's references to it those to its first
// version, which every libc since has in itself or in those libraries, and weak: the address is NULL in a process that has
// neither.
#pragma once

#if defined(__x86_64__)
#define MUSTER_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define MUSTER_FIRST_GLIBC "GLIBC_2.17"
#endif

#define MUSTER_PRAGMA(text) _Pragma(#text)
// A sanitizer has functions of its own in their places.
#if defined(MUSTER_FIRST_GLIBC) && !defined(MUSTER_SANITIZED)
#define MUSTER_FIRST_VERSION(name) \
  MUSTER_PRAGMA(weak name)         \
  __asm__(".symver " #name ", " #name "@" MUSTER_FIRST_GLIBC)
#else
#define MUSTER_FIRST_VERSION(name) MUSTER_PRAGMA(weak name)
#endif
