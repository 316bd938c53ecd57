#!/bin/bash
# libmuster must need libc only, and no new one, and export only what muster.h declares, each under the symbol version that it came with.
# usage: libmuster_abi_test.sh LIBMUSTER.SO MUSTER.H
set -euo pipefail

library=$1
header=$2
version_of() { # FUNCTION
  case $1 in
    muster_restore_info | muster_restore_open_shard) echo MUSTER_0.2 ;;
    muster_restore_slice | muster_restore_slices | muster_save_add_slice | muster_save_reserve | muster_slice_info | \
      muster_wait_durable) echo MUSTER_0.3 ;;
    muster_save_add_device | muster_save_add_slice_device) echo MUSTER_0.4 ;;
    muster_exchange | muster_exchanged) echo MUSTER_0.5 ;;
    muster_step) echo MUSTER_0.6 ;;
    *) echo MUSTER_0.1 ;;
  esac
}
# What programs say is read whole before it is searched: they must not fail because grep has found what it looks for.
dynamic=$(readelf -dW "$library")
segments=$(readelf -lW "$library")
all=$(nm -D "$library")
symbols=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)
declared=$(grep -oE '^MUSTER_API [^(]*\bmuster_[a-z_]+\(' "$header" | grep -oE 'muster_[a-z_]+\($' | tr -d '(' |
  while read -r name; do echo "$name@@$(version_of "$name")"; done | sort)

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
[[ $needed == libc.so.6 ]] || fail "it needs more than libc: $needed"
grep -q 'SONAME.*\[libmuster\.so\.0\]' <<<"$dynamic" || fail "its SONAME is not libmuster.so.0"
[[ -n $declared ]] || fail "no functions found in $header"
[[ $symbols == "$declared" ]] ||
  fail "the exported symbols are not the declared functions:" "$(diff <(echo "$declared") <(echo "$symbols"))"
# Containers come with a libc of their own: the oldest one that people still have is CentOS 7's.
newest=$(readelf --dyn-syms -W "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1)
[[ $(printf '%s\n' "$newest" GLIBC_2.17 | sort -V | tail -1) == GLIBC_2.17 ]] ||
  fail "it needs a newer libc than 2.17:" "$(readelf --dyn-syms -W "$library" | grep "$newest")"
# These were in other libraries than libc then, which a process need not have.
for name in dlopen dlsym pthread_create pthread_join pthread_setcancelstate; do
  grep -qE "^ +w $name@GLIBC_2\." <<<"$all" || fail "$name is not weak, or not of its first version:" \
    "$(grep "$name" <<<"$all")"
done
! grep -q 'GNU_STACK.*E 0x' <<<"$segments" || fail "its stack is executable"
echo "libmuster needs $needed and exports $(wc -l <<<"$symbols") functions"
