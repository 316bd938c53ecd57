#!/bin/bash
# Installs what is needed, builds, and runs every test, or those that have one of the given labels, in one ctest.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

usage() {
    cat <<'TEXT'
usage: ./test.sh [LABEL...]

Installs what is needed, builds, and runs all tests, or those that have one of the labels:

  unit     fast, no network, optimised build
  check    formatting, static analysis, scripts, the default configuration
  cluster  real Slurm and real Ceph on virtual nodes of this machine
  demo     ./demo.sh itself
  asan     the unit tests under the address and undefined-behaviour sanitizers
  tsan     the unit tests under the thread sanitizer
  fuzz     the message codecs under libFuzzer, 30 s each

Needs root. The exit status is ctest's: 0 when every test has passed.
TEXT
}

case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
-*)
    usage >&2
    exit 2
    ;;
esac
labels=("$@")
require_root

run=       # the directory of this run: all temporary files and clusters of its tests
namespace= # the process that holds the PID namespace in which the tests run

# Whatever a test has started dies with the PID namespace; what a dead cluster leaves on the host goes after that.
clean_up() {
    local directory
    setup_cleanup
    if [[ -n $namespace ]]; then
        kill -KILL "$namespace" 2>/dev/null || true
        wait "$namespace" 2>/dev/null || true
    fi
    [[ -n $run ]] || return 0
    for directory in "$run"/muster-vc-*; do
        if [[ -d $directory ]]; then
            "$root/tests/cluster/vcluster" stop --name "${directory##*/muster-vc-}" || true
        fi
    done
    rm -rf "$run"
}
trap clean_up EXIT
trap 'say "interrupted: removing what the tests have started"; exit 130' INT
trap 'say "interrupted: removing what the tests have started"; exit 143' TERM HUP

wanted() {
    local label
    ((${#labels[@]} > 0)) || return 0
    for label in "${labels[@]}"; do
        [[ $label != "$1" ]] || return 0
    done
    return 1
}

wanted_besides_sanitizers() {
    local label
    ((${#labels[@]} > 0)) || return 0
    for label in "${labels[@]}"; do
        [[ $label == asan || $label == tsan || $label == fuzz ]] || return 0
    done
    return 1
}

say "== Installing what is missing"
install_dependencies

run=$(mktemp -d -t muster-test-XXXXXX)
trees=()
if wanted_besides_sanitizers; then
    say "== Building in build/"
    build dev
    trees+=("$root/build")
fi
for preset in asan tsan; do
    if wanted "$preset"; then
        say "== Building in build-$preset/"
        build "$preset"
        trees+=("$preset=$root/build-$preset:unit")
    fi
done
if wanted fuzz; then
    say "== Building in build-fuzz/"
    build fuzz fuzzers
    trees+=("fuzz=$root/build-fuzz:fuzz")
fi
"$root/scripts/merge_ctest.py" "${trees[@]}" >"$run/CTestTestfile.cmake"

say "== Testing"
filter=()
if ((${#labels[@]} > 0)); then
    filter=(-L "^($(IFS='|' && echo "${labels[*]}"))$")
fi
# With a PID namespace of its own nothing that a test starts can outlive the run; its mounts, and what it leaves in
# /dev/shm, go with the mount namespace. MUSTER_VC_DIR gives the run's clusters names of their own.
# shellcheck disable=SC2016
export TMPDIR=$run TEST_TMPDIR=$run MUSTER_VC_DIR=$run
set -m
unshare --mount --pid --fork --kill-child --mount-proc -- \
    bash -c 'mount -t tmpfs tmpfs /dev/shm && "$@" & wait $!' init env --default-signal=INT,QUIT \
    ctest --test-dir "$run" --output-on-failure --no-tests=error --parallel "$(nproc)" "${filter[@]}" </dev/null &
namespace=$!
set +m
status=0
wait "$namespace" || status=$?
namespace=

left=()
for directory in "$run"/muster-vc-*; do
    [[ ! -d $directory ]] || left+=("${directory##*/muster-vc-}")
done
if ((${#left[@]} > 0)); then
    say "A test has left these clusters behind: ${left[*]}"
    status=1
fi
exit "$status"
