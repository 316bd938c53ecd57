#!/bin/bash
# Installs what is needed, builds, and runs every test, or those that have one of the given labels.
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
  sim      the state machines among simulated nodes: thousands of fault schedules
  fuzz     the message codecs under libFuzzer, 20 s each
  chaos    faults of every kind in random order on a virtual cluster, two minutes of a gang and two of its checkpoints

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
behind=    # the process that builds beside the tests

# Whatever a test has started dies with the PID namespace; what a dead cluster leaves on the host goes after that.
clean_up() {
    local directory
    setup_cleanup
    if [[ -n $behind ]]; then
        kill -TERM "$behind" 2>/dev/null || true
        wait "$behind" 2>/dev/null || true
    fi
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

build_sanitized() {
    local preset
    for preset in "${sanitized[@]}"; do
        say "== Building in build-$preset/"
        build "$preset" "${sanitized_targets[$preset]}"
    done
}

# The tests on the virtual cluster wait most of the time: the other builds take what they leave. What it says is in a
# file until the tests have ended.
build_sanitized_behind() {
    set -m
    (
        set +m
        setup_child=
        trap setup_cleanup EXIT
        trap 'exit 143' TERM
        chrt --idle --pid 0 "$BASHPID" || renice -n 19 -p "$BASHPID"
        build_sanitized
    ) >"$run/behind.log" 2>&1 </dev/null &
    behind=$!
    set +m
}

# run_tests NAME PARALLEL TREE...: those of these builds (as merge_ctest.py takes them) in one ctest. Sets `status`.
run_tests() {
    local directory=$run/$1 parallel=$2 filter=()
    shift 2
    mkdir "$directory"
    "$root/scripts/merge_ctest.py" "$@" >"$directory/CTestTestfile.cmake"
    if ((${#labels[@]} > 0)); then
        filter=(-L "^($(IFS='|' && echo "${labels[*]}"))$")
    fi
    # With a PID namespace of its own nothing that a test starts can outlive the run; its mounts, and what it leaves in
    # /dev/shm, go with the mount namespace. MUSTER_VC_DIR gives the run's clusters names of their own.
    set -m
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child --mount-proc -- \
        bash -c 'mount -t tmpfs tmpfs /dev/shm && "$@" & wait $!' init env --default-signal=INT,QUIT \
        ctest --test-dir "$directory" --output-on-failure --no-tests=error --parallel "$parallel" "${filter[@]}" </dev/null &
    namespace=$!
    set +m
    wait "$namespace" || status=$?
    namespace=
}

say "== Installing what is missing"
install_dependencies

run=$(mktemp -d -t muster-test-XXXXXX)
export TMPDIR=$run TEST_TMPDIR=$run MUSTER_VC_DIR=$run
status=0
sanitized=()
declare -A sanitized_targets=([asan]=unit_tests [tsan]=unit_tests [fuzz]=fuzzers)
sanitized_trees=()
for preset in asan tsan fuzz; do
    if wanted "$preset"; then
        sanitized+=("$preset")
        sanitized_trees+=("$preset=$root/build-$preset:$([[ $preset == fuzz ]] && echo fuzz || echo unit)")
    fi
done

if wanted_besides_sanitizers; then
    say "== Building in build/"
    build dev
    if ((${#sanitized[@]} > 0)); then
        build_sanitized_behind
    fi
    say "== Testing"
    # One more at once than there are processors: those on the virtual cluster wait most of the time.
    run_tests plain "$(($(nproc) + 1))" "$root/build"
    if [[ -n $behind ]]; then
        built=0
        wait "$behind" || built=$?
        behind=
        cat "$run/behind.log"
        ((built == 0)) || exit 1
    fi
else
    build_sanitized
fi
if ((${#sanitized[@]} > 0)); then
    say "== Testing with sanitizers"
    # Some wait, and the fuzzers run for a fixed time.
    run_tests sanitized "$((2 * $(nproc)))" "${sanitized_trees[@]}"
fi

left=()
for directory in "$run"/muster-vc-*; do
    [[ ! -d $directory ]] || left+=("${directory##*/muster-vc-}")
done
if ((${#left[@]} > 0)); then
    say "A test has left these clusters behind: ${left[*]}"
    status=1
fi
exit "$status"
