# shellcheck shell=bash
# shellcheck disable=SC2034 # variables are used by those who source this
# Runs tests so that nothing of them stays, for test.sh and tests/stability. To be sourced after setup.sh; the caller has
# set -euo pipefail and calls begin_tests once, which sets the traps.

run=       # the directory of this run: all temporary files and clusters of its tests
namespace= # the process that holds the PID namespace in which the tests run
beside=()  # processes that work beside the tests
status=0   # 1 when something has failed
ended=0    # the last ctest's exit status

# The labels, and what has them. Those of the first kind need the product alone, those of the second kind other programs.
cluster_labels=(check lint cluster chaos demo fabric package provision vm)
program_labels=(unit frameworks sim asan tsan fuzz)
frameworks_labels=(check cluster unit frameworks) # whose tests need what tests/frameworks/requirements.txt lists
# The tests that run once more, alone, when they have failed: those that watch real daemons, whose deadlines a busy machine may break.
second_look_labels=(cluster chaos demo fabric package provision vm)

# A slot of ctest is a quarter of a processor; a test takes as many as tests/costs.tsv says (cmake/TestShares.cmake).
slots=$((4 * $(nproc)))
mountinfo=/proc/self/mountinfo # where cgroups are

begin_tests() {
    trap end_tests EXIT
    trap 'say "interrupted: removing what the tests have started"; exit 130' INT
    trap 'say "interrupted: removing what the tests have started"; exit 143' TERM HUP
    run=$(mktemp -d -t muster-test-XXXXXX)
    export TMPDIR=$run TEST_TMPDIR=$run MUSTER_VC_DIR=$run
    # Where the logs of a cluster go that a test has failed on.
    export MUSTER_TEST_LOGS=${MUSTER_TEST_LOGS:-$root/build/test-logs}
    rm -rf "$root/build/test-logs"
    export MUSTER_TEST_SEED=${MUSTER_TEST_SEED:-$(test_seed)}
    make_idle_cgroup
    make_count_cgroup
    say "MUSTER_TEST_SEED=$MUSTER_TEST_SEED"
}

in_git() {
    git -C "$root" -c safe.directory="$root" "$@"
}

# test_seed: where this commit's random schedules begin (tests/support/test_seed.h).
test_seed() {
    local commit
    commit=$(in_git rev-parse HEAD 2>/dev/null) || commit=0000001
    printf '%d' "$((16#${commit:0:7}))"
}

# make_idle_cgroup: whoever is in it takes what all others leave of the processors (scripts/idle). Exports MUSTER_IDLE_CGROUP,
# unless this machine has no cgroups that we may make.
make_idle_cgroup() {
    local mount group kind
    unset MUSTER_IDLE_CGROUP
    # The hierarchy of the cpu controller: of version 1, else of version 2.
    read -r kind mount < <(awk '{
            for (i = 7; $i != "-"; i++);
            if ($(i + 1) == "cgroup" && "," $NF "," ~ /,cpu,/) { first = $5 }
            if ($(i + 1) == "cgroup2") { second = $5 }
        }
        END { if (first) print "v1", first; else if (second) print "v2", second }' "$mountinfo") || return 0
    group=$mount/muster-idle-${run##*-}
    mkdir "$group" 2>/dev/null || return 0
    if [[ $kind == v1 ]]; then
        echo 2 >"$group/cpu.shares"
    else
        echo +cpu 2>/dev/null >"$mount/cgroup.subtree_control" || true
    fi
    # Before Linux 5.15 there is no cpu.idle. In a cgroup without the controller there is no cpu.weight either.
    if echo 1 2>/dev/null >"$group/cpu.idle" || [[ $kind == v1 ]] || echo 1 2>/dev/null >"$group/cpu.weight"; then
        export MUSTER_IDLE_CGROUP=$group
    else
        rmdir "$group"
    fi
}

# make_count_cgroup: whoever is in it is counted by scripts/counted. Exports MUSTER_COUNT_CGROUP, unless the cpuacct controller has no
# hierarchy of its own: in one with the cpu controller, and in version 2, a process cannot be here and in the idle cgroup.
make_count_cgroup() {
    local mount group
    unset MUSTER_COUNT_CGROUP
    mount=$(awk '{
            for (i = 7; $i != "-"; i++);
            if ($(i + 1) == "cgroup" && "," $NF "," ~ /,cpuacct,/ && "," $NF "," !~ /,cpu,/) { print $5; exit }
        }' "$mountinfo")
    group=$mount/muster-count-${run##*-}
    if [[ -n $mount ]] && mkdir "$group" 2>/dev/null; then
        export MUSTER_COUNT_CGROUP=$group
    fi
}

# remove_cgroup DIRECTORY: and what is below it. It is busy for a moment after its last process.
remove_cgroup() {
    local tries
    [[ -n $1 ]] || return 0
    for tries in {1..100}; do
        find "$1" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        [[ -d $1 ]] || return 0
        sleep 0.1
    done
    say "$1 cannot be removed: $(find "$1" -name cgroup.procs -exec cat {} + | tr '\n' ' ') are in it"
}

# Whatever a test has started dies with the PID namespace; what a dead cluster leaves on the host goes after that.
end_tests() {
    local process
    setup_cleanup
    for process in "${beside[@]}"; do
        kill -TERM "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    if [[ -n $namespace ]]; then
        kill -KILL "$namespace" 2>/dev/null || true
        wait "$namespace" 2>/dev/null || true
    fi
    [[ -n $run ]] || return 0
    remove_left
    remove_cgroup "${MUSTER_IDLE_CGROUP:-}"
    remove_cgroup "${MUSTER_COUNT_CGROUP:-}"
    rm -rf "$run"
}

# remove_left: clusters and racks of which a test has not come to the end.
remove_left() {
    local directory
    for directory in "$run"/muster-vc-*; do
        if [[ -d $directory ]]; then
            "$root/tests/cluster/vcluster" stop --name "${directory##*/muster-vc-}" || true
        fi
    done
    for directory in "$run"/muster-rack-*; do
        if [[ -d $directory ]]; then
            "$root/tests/provision/rackctl" stop --name "${directory##*/muster-rack-}" || true
        fi
    done
    rm -rf "$run"/muster-vm-*
}

# fetch_frameworks LABEL...: what these tests need of PyTorch and its like, and of NCCL.
fetch_frameworks() {
    local label
    for label; do
        if in_list "$label" "${frameworks_labels[@]}"; then
            install_frameworks
            break
        fi
    done
    if in_list frameworks "$@"; then
        install_nccl
    fi
}

# install_for LABEL...: what these tests need. The frameworks are fetched beside what the caller does next; wait_beside waits for them.
install_for() {
    say "== Installing what is missing"
    install_dependencies
    start_beside fetch_frameworks "$@"
}

# with_what_is_left COMMAND...: runs it with what all others leave of the processors.
with_what_is_left() {
    echo "$BASHPID" 2>/dev/null >"${MUSTER_IDLE_CGROUP:-/nonexistent}/cgroup.procs" || renice -n 19 -p "$BASHPID"
    "$@"
}

# in_list WORD LIST...
in_list() {
    local word=$1 other
    shift
    for other; do
        [[ $other != "$word" ]] || return 0
    done
    return 1
}

# start_beside COMMAND...: runs it beside what the caller does; its output goes to $run/beside.log. Sets `beside`.
start_beside() {
    set -m
    (
        set +m
        setup_child=
        trap setup_cleanup EXIT
        trap 'exit 143' TERM
        "$@"
    ) >"$run/beside.log" 2>&1 </dev/null &
    beside+=("$!")
    set +m
}

# wait_beside: until that has ended. Shows what it has said; its exit status.
wait_beside() {
    local ended=0
    wait "${beside[-1]}" || ended=$?
    unset 'beside[-1]'
    cat "$run/beside.log"
    return "$ended"
}

# label_of NAME: that of the test of this name.
label_of() {
    case $1 in
    cluster.chaos | cluster.soak) printf chaos ;;
    *) printf '%s' "${1%%.*}" ;;
    esac
}

# names_of LABEL: those of the tests of the product's tree that have it.
names_of() {
    ctest --test-dir "$root/build" --show-only --label-regex "^$1\$" --fixture-exclude-any ".*" | sed -n 's/^ *Test *#[0-9]*: //p' | paste -sd ' '
}

# racks_may_wait: whether no rack can see what differs from origin/main (tests/reach.tsv). In one commit of four, by its id, they do not
# wait, nor where there is no origin/main, or nothing differs from it.
racks_may_wait() {
    local head base tests
    head=$(in_git rev-parse HEAD 2>/dev/null) && base=$(in_git merge-base HEAD origin/main 2>/dev/null) || return
    [[ $head != "$base" ]] && ((16#${head:0:7} % 4 != 0)) || return
    tests=$("$root/scripts/reached_tests.py" "$base") || return
    ! grep -qE '^(provision|\.\*$)' <<<"$tests" # ".*" are all tests
}

# tree LABEL: what merge_ctest.py takes to find the tests that have it.
tree() {
    case $1 in
    asan | tsan) printf '%s' "$1=$root/build-$1:unit" ;;
    fuzz) printf '%s' "fuzz=$root/build-asan:fuzz" ;;
    *) printf '%s' "$root/build" ;;
    esac
}

# build_tests LABEL...: the programs of tests that have these labels.
build_tests() {
    local label dev=() asan=()
    for label; do
        case $label in
        check | lint | fabric | package | provision | vm) dev+=(product) ;;
        cluster | chaos | demo) dev+=(product cluster_programs) ;;
        unit) dev+=(unit_tests) ;;
        frameworks) dev+=(muster_python nccl_load) ;;
        sim) dev+=(sim_test sim_planted) ;;
        asan) asan+=(unit_tests) ;;
        fuzz) asan+=(fuzzers) ;;
        esac
    done
    if ((${#dev[@]} > 0)); then
        say "== Building in build/"
        build dev "${dev[@]}"
    fi
    if ((${#asan[@]} > 0)); then
        say "== Building in build-asan/"
        build asan "${asan[@]}"
    fi
    if in_list tsan "$@"; then
        say "== Building in build-tsan/"
        build tsan unit_tests
    fi
}

# run_tests RESULTS OPTIONS -- LABEL...: those that have these labels, in one ctest with OPTIONS. What they have come to is in
# RESULTS.xml and RESULTS.json then, for scripts/test_report.py. Says how busy the machine was. Sets `ended`, ctest's exit status.
run_tests() {
    local results=$1 directory options=() label trees=() program
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    directory=$run/${results##*/}
    mkdir -p "$directory" "$(dirname "$results")"
    for label; do
        in_list "$(tree "$label")" "${trees[@]}" || trees+=("$(tree "$label")")
    done
    "$root/scripts/merge_ctest.py" "${trees[@]}" >"$directory/CTestTestfile.cmake"
    options+=(-L "^($(IFS='|' && echo "$*"))$")
    ctest --test-dir "$directory" --show-only=json-v1 "${options[@]}" >"$results.json"
    grep -q '"LABELS"' "$results.json" || die "no test is called that"
    # With a PID namespace of its own nothing that a test starts can outlive the run; its mounts, and what it leaves in
    # /dev/shm, go with the mount namespace. MUSTER_VC_DIR gives the run's clusters names of their own.
    "$root/scripts/pressure" &
    beside+=("$!")
    # shellcheck disable=SC2016
    program='mount -t tmpfs tmpfs /dev/shm && "$@" & wait $!'
    set -m
    unshare --mount --pid --fork --kill-child --mount-proc -- bash -c "$program" init env --default-signal=INT,QUIT \
        ctest --test-dir "$directory" --output-on-failure --no-tests=error --parallel "$slots" \
        --test-output-size-passed 8388608 --test-output-size-failed 8388608 \
        --output-junit "$results.xml" "${options[@]}" </dev/null &
    namespace=$!
    set +m
    ended=0
    wait "$namespace" || ended=$?
    namespace=
    kill -TERM "${beside[-1]}"
    wait "${beside[-1]}" || true
    unset 'beside[-1]'
    rm -rf "$directory"
}

# look_again RESULTS: what has failed in that run of tests, and may have failed because of others beside it, runs once more, alone.
# What comes of it is in RESULTS-again.xml and RESULTS-again.json; nothing is where no test is to run again.
look_again() {
    local results=$1 logs=$MUSTER_TEST_LOGS names
    names=$("$root/scripts/test_report.py" --failed "$results" "${second_look_labels[@]}") || die "the results in $results cannot be read"
    [[ -n $names ]] || return 0
    say "== A second look at what has failed, one after the other and with nothing beside"
    remove_left
    slots=1
    export MUSTER_TEST_LOGS=$logs/again # the same cluster's logs may be in both
    # Without fixtures: the packages that package.build_deb and package.build_rpm have built are still there.
    run_tests "$results-again" -R "^(${names//./\\.})$" --fixture-exclude-any '.*' -- "${second_look_labels[@]}"
    export MUSTER_TEST_LOGS=$logs
}

# Clusters, racks and guests that the tests of the last run_tests have left are a failure; where a test has failed, which may have
# been killed, they are named only, unless a musterd of theirs has crashed. Sets `status`.
check_nothing_left() {
    local directory left=()
    for directory in "$run"/muster-{vc,rack,vm}-*; do
        [[ ! -d $directory ]] || left+=("${directory##*/muster-}")
    done
    if ((${#left[@]} > 0)); then
        say "A test has left these behind: ${left[*]}"
        ((ended != 0)) || status=1
    fi
    if grep -qs "has crashed:" "$run"/muster-vc-*/log/*.musterd.log; then
        say "musterd has crashed in a test that was killed"
        status=1
    fi
}
