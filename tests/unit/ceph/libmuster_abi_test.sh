#!/bin/bash
# libmuster must need libc only and export only what muster.h declares, all under one symbol version.
# usage: libmuster_abi_test.sh LIBMUSTER.SO MUSTER.H
set -euo pipefail

library=$1
header=$2
dynamic=$(readelf -dW "$library")
symbols=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)
declared=$(grep -oE '^MUSTER_API [^(]*\bmuster_[a-z_]+\(' "$header" | grep -oE 'muster_[a-z_]+\($' | tr -d '(' |
  sed 's/$/@@MUSTER_0.1/' | sort)

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
! readelf -lW "$library" | grep -q 'GNU_STACK.*E 0x' || fail "its stack is executable"
echo "libmuster needs $needed and exports $(wc -l <<<"$symbols") functions"
