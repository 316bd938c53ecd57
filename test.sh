#!/bin/bash
# Installs what is needed, builds, and runs every test, or those that have one of the given labels.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"
# shellcheck source=scripts/tests.sh
source "$root/scripts/tests.sh"

usage() {
    cat <<'TEXT'
usage: ./test.sh [LABEL...]
       ./test.sh --changed [BASE]
       ./test.sh --racks all|changed|none

Installs what is needed, builds, and runs all tests, or those that have one of the labels:

  check    formatting, static analysis, types, the folders' shape, scripts, the manual, the default configuration
  lint     the playbooks' style, and what is said of bad inventories
  cluster  real Slurm and real Ceph on virtual nodes of this machine
  chaos    faults of every kind in random order on a virtual cluster, two minutes of a gang and two of its checkpoints
  demo     ./demo.sh itself
  fabric   `muster net test` between nodes in network namespaces, with one bad link
  package  the packages: what they have, start, bind to and take away, on machines with systemd
  provision
           playbooks on a rack of machines with systemd
  vm       RDMA, and the fabric's settings, in virtual machines with kernels of their own
  unit     fast, no network, optimised build
  frameworks
           random states of PyTorch, sharded in every way, are saved and loaded by gangs of other sizes; NCCL's headers
           and libraries, without a GPU; the wheel; torchrun's flags
  sim      the state machines among simulated nodes: thousands of fault schedules
  asan     the unit tests under the address and undefined-behaviour sanitizers
  tsan     the unit tests under the thread sanitizer
  fuzz     the message codecs under libFuzzer, 20 s each

--changed runs the tests that can see what differs between the commit BASE (HEAD) and the files here, by tests/reach.tsv, but no
sanitizers and no fuzzers. Before a change is finished all tests run.

--racks says whether the whole run has the label provision: "all", as without this option, "none", or "changed", which .ci/run says.
Then it has the label in one commit of four, by the commit's id, and where a rack can see what differs from origin/main.

A test of the labels cluster, chaos, demo, fabric, package, provision and vm that fails runs once more at the end, alone. If it
passes then it is called unstable, and is a bug with a name; up to three such tests fail no run.

Needs root and Debian 12. Results are in build/test-results/, logs of clusters on which a test has failed in
build/test-logs/. The exit status is 0 when every test has passed.
TEXT
}

usage_error() {
    printf 'test.sh: %s\n' "$1" >&2
    usage >&2
    exit 2
}

labels=()
changed= # since this commit
racks=   # when the label provision runs
while (($# > 0)); do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --changed)
        changed=${2:-HEAD}
        shift $(($# > 1))
        ;;
    --racks)
        racks=${2:-}
        in_list "$racks" all changed none || usage_error "--racks needs all, changed or none"
        shift
        ;;
    *)
        in_list "$1" "${cluster_labels[@]}" "${program_labels[@]}" || usage_error "'$1' is no label of a test"
        labels+=("$1")
        ;;
    esac
    shift
done
everything=$((${#labels[@]} == 0))
options=() # of ctest
left_out=no
if [[ -n $racks ]]; then
    ((everything && ${#changed} == 0)) || die "--racks is an option of the whole run"
    if [[ $racks == none ]] || { [[ $racks == changed ]] && racks_may_wait; }; then
        left_out=yes
        say "== The label provision is left out (--racks $racks)"
        options=(--label-exclude '^provision$')
    fi
fi
if [[ -n $changed ]]; then
    ((everything)) || die "--changed takes no label"
    everything=0
    tests=$("$root/scripts/reached_tests.py" "$changed") || die "--changed needs a commit, not '$changed'"
    if [[ -z $tests ]]; then
        say "Nothing has changed that a test could see"
        exit 0
    fi
    options=(-R "^($(paste -sd '|' <<<"$tests"))$")
    while read -r label; do
        label=${label%%[!a-z]*}
        case $label in
        "") labels=("${cluster_labels[@]}" "${program_labels[@]}") ;; # any test
        cluster) labels+=(cluster chaos) ;;
        *) labels+=("$label") ;;
        esac
    done <<<"$tests"
fi
((${#labels[@]} > 0)) || labels=("${cluster_labels[@]}" "${program_labels[@]}")

# Of the wanted labels those with tests of each kind.
on_cluster=()
programs=()
for label in "${labels[@]}"; do
    ! in_list "$label" "${on_cluster[@]}" "${programs[@]}" || continue
    if in_list "$label" "${cluster_labels[@]}"; then on_cluster+=("$label"); else programs+=("$label"); fi
done

require_root
require_debian
require_space 6
begin_tests
install_for "${labels[@]}"

results=$root/build/test-results
rm -rf "$results"
reports=()
if ((${#on_cluster[@]} > 0)); then
    build_tests "${on_cluster[@]}"
    wait_beside
    # The tests on the virtual cluster wait most of the time: the other builds take what they leave.
    ((${#programs[@]} == 0)) || start_beside with_what_is_left build_tests "${programs[@]}"
    say "== Testing on the virtual cluster"
    run_tests "$results/cluster" "${options[@]}" -- "${on_cluster[@]}"
    check_nothing_left
    reports+=("$results/cluster")
    if ((${#programs[@]} > 0)) && ! wait_beside; then
        status=1
        programs=() # they are not there; what the cluster has shown is told all the same
    fi
elif ((${#programs[@]} > 0)); then
    build_tests "${programs[@]}"
    wait_beside
fi
if ((${#programs[@]} > 0)); then
    say "== Testing programs"
    # Some wait, and the fuzzers run for a fixed time.
    run_tests "$results/programs" "${options[@]}" -- "${programs[@]}"
    check_nothing_left
    reports+=("$results/programs")
fi
((${#on_cluster[@]} == 0)) || look_again "$results/cluster"
if ((everything)) && [[ -e /dev/nvidiactl ]]; then
    say "== Testing on the GPU"
    PYTHON=$root/tests/frameworks/python "$root/tests/gpu/run" "$root/build" || status=1
elif ((everything)); then
    say "== Not run: tests/gpu/run, which needs an NVIDIA GPU"
fi
if [[ $left_out == yes ]]; then
    reports=(--left-out "$(names_of provision)" "${reports[@]}")
fi
"$root/scripts/test_report.py" "${reports[@]}" || status=1
exit "$status"
