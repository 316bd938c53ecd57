# shellcheck shell=bash
# Installs what Muster needs and builds it, for demo.sh and test.sh. To be sourced; the caller has set -euo pipefail and
# calls setup_cleanup in its EXIT trap.
#
# Several runs at once do not meet: each build directory is locked while it is being built, and the machine's packages
# while they are being installed. The locks are taken on directories that exist anyway, so that none is left behind.

root=$(realpath "${BASH_SOURCE[0]%/*}/..")
setup_child=    # the process group that is at work
setup_policy=   # set while services are kept from starting
setup_saved=/usr/sbin/policy-rc.d.before-muster

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

require_root() {
    ((EUID == 0)) || die "run me as root: I install packages and make network, process and mount namespaces"
}

require_debian() {
    local ID='' VERSION_ID='' PRETTY_NAME='another system'
    # shellcheck disable=SC1091
    [[ ! -r /etc/os-release ]] || source /etc/os-release
    [[ $ID == debian && $VERSION_ID == 12 ]] || die "I need Debian 12, whose packages I install; this is $PRETTY_NAME"
}

# require_space GIB: in the file systems of the build and of temporary files.
require_space() {
    local directory free
    for directory in "$root" "${TMPDIR:-/tmp}"; do
        free=$(df --output=avail --block-size=1M "$directory" | tail -n 1)
        ((free >= $1 * 1024)) || die "$((free / 1024)) GiB are free in the file system of $directory; I need $1 GiB"
    done
}

# What is left of an interrupted step. Packages are never left half installed.
setup_cleanup() {
    if [[ -n $setup_child ]]; then
        if [[ -n $setup_policy ]]; then
            say "Waiting for apt-get, so that no package is left half installed ..."
        else
            kill -TERM -- "-$setup_child" 2>/dev/null || true
        fi
        wait "$setup_child" 2>/dev/null || true
        setup_child=
    fi
    allow_services
}

# run_logged LOG COMMAND...: runs it in a process group of its own, its output in LOG; on a terminal a counter as
# ninja's "[3/9]" is shown meanwhile.
run_logged() {
    local log=$1 status=0 count
    shift
    set -m
    "$@" >>"$log" 2>&1 </dev/null 7>&- 8>&- &
    setup_child=$!
    set +m
    if [[ -t 1 ]]; then
        while kill -0 "$setup_child" 2>/dev/null; do
            count=$(tail -c 4096 "$log" | grep -ao '^\[[0-9]*/[0-9]*\]' | tail -n 1) || count=
            [[ -z $count ]] || printf '\r     %s ' "$count"
            sleep 0.1
        done
        printf '\r\033[K'
    fi
    wait "$setup_child" || status=$?
    setup_child=
    return "$status"
}

# show_failure WHAT LOG
show_failure() {
    say "$1 failed. The end of $2:"
    tail -n 40 "$2" | sed 's/^/    /'
}

# Debian starts services when it installs them, unless policy-rc.d says no. One that says no already is left alone.
deny_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    if [[ -e $policy ]] && ! grep -qs 'muster: no services' "$policy"; then
        "$policy" munge start >/dev/null 2>&1 || status=$?
        ((status != 101)) || return 0
        mv "$policy" "$setup_saved"
    fi
    setup_policy=$policy
    printf '#!/bin/sh\n# muster: no services while packages are being installed\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

allow_services() {
    [[ -n $setup_policy ]] || return 0
    rm -f "$setup_policy"
    if [[ -e $setup_saved ]]; then
        mv "$setup_saved" "$setup_policy"
    fi
    setup_policy=
}

nothing_missing() {
    command -v dpkg-checkbuilddeps >/dev/null && dpkg-checkbuilddeps "$root/packaging/debian/control" 2>/dev/null
}

# Everything in packaging/debian/control.
install_dependencies() {
    local log=$root/build/install.log
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=900 -o Dpkg::Use-Pty=0)
    if nothing_missing; then
        return
    fi
    exec 7</usr/sbin
    flock 7
    if ! nothing_missing; then
        mkdir -p "$root/build"
        : >"$log"
        say "     installing the packages that packaging/debian/control lists (log: $log)"
        run_logged "$log" "${apt[@]}" update || say "     apt-get update failed; going on with the lists that are here"
        deny_services
        if ! run_logged "$log" "${apt[@]}" --no-install-recommends build-dep "$root/packaging"; then
            allow_services
            show_failure "apt-get build-dep" "$log"
            exit 1
        fi
        allow_services
    fi
    exec 7<&-
}

# frameworks_python: the Python of a virtual environment with what tests/frameworks/requirements.txt lists. All checkouts
# with the same list have the same one, where the nodes of a virtual cluster see it too.
frameworks_python() {
    local digest
    digest=$(sha256sum <"$root/tests/frameworks/requirements.txt")
    printf '%s' "/usr/local/lib/muster-tests/${digest:0:16}/bin/python3"
}

# nccl_releases: a directory with NCCL and CUDA's headers, for each release that tests/frameworks/nccl.txt lists.
nccl_releases() {
    local digest
    digest=$(sha256sum <"$root/tests/frameworks/nccl.txt")
    printf '%s' "/usr/local/lib/muster-tests/nccl-${digest:0:16}"
}

# Makes that environment.
install_frameworks() {
    local python
    python=$(frameworks_python)
    install_whole "${python%/bin/python3}" tests/frameworks/requirements.txt "1.8 GB" make_frameworks
}

# Makes that directory.
install_nccl() {
    install_whole "$(nccl_releases)" tests/frameworks/nccl.txt "450 MB" make_nccl
}

# peers_packages: a directory with what tests/bench/peers.txt lists.
peers_packages() {
    local digest
    digest=$(sha256sum <"$root/tests/bench/peers.txt")
    printf '%s\n' "/usr/local/lib/muster-tests/peers-${digest:0:16}"
}

# Makes that directory.
install_peers() {
    install_whole "$(peers_packages)" tests/bench/peers.txt "20 MB" make_peers
}

# install_whole DIRECTORY LIST SIZE COMMAND: has COMMAND make the directory of what LIST has. It is whole or not there: it
# gets its name when everything is installed.
install_whole() {
    local directory=$1 list=$2 size=$3 make=$4 log=$root/build/frameworks.log
    [[ ! -d $directory ]] || return 0
    mkdir -p "$root/build" "${directory%/*}"
    exec 7<"${directory%/*}"
    if ! flock --nonblock 7; then
        say "     another run is installing in ${directory%/*}; waiting for it"
        flock 7
    fi
    if [[ ! -d $directory ]]; then
        : >"$log"
        say "     installing what $list lists in $directory, about $size (log: $log)"
        rm -rf "$directory.new" # of one that was interrupted
        if ! run_logged "$log" "$make" "$directory.new"; then
            rm -rf "$directory.new"
            show_failure "pip install" "$log"
            die "the packages of $list could not be installed; they come from the network, once"
        fi
        mv "$directory.new" "$directory"
    fi
    exec 7<&-
}

make_frameworks() {
    umask 022
    # Without what the caller's Python is told, and with each file compiled: other users read it, and cannot write there.
    unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
    /usr/bin/python3 -m venv "$1" &&
        "$1/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir \
            --requirement "$root/tests/frameworks/requirements.txt" &&
        "$1/bin/python" -m pip check --disable-pip-version-check
}

make_peers() {
    local python
    umask 022
    unset PYTHONPATH PYTHONHOME
    python=$(frameworks_python) # Debian's own has no pip
    "$python" -m pip install --disable-pip-version-check --no-input --no-cache-dir --no-deps \
        --target "$1" --requirement "$root/tests/bench/peers.txt"
}

make_nccl() {
    local python release packages
    umask 022
    unset PYTHONPATH PYTHONHOME
    python=$(frameworks_python) # Debian's own has no pip
    while read -r release packages; do
        [[ $release != "#"* ]] || continue
        # shellcheck disable=SC2086 # several packages
        "$python" -m pip install --disable-pip-version-check --no-input --no-cache-dir --no-deps \
            --target "$1/$release" $packages || return
    done <"$root/tests/frameworks/nccl.txt"
}

# build PRESET [TARGET...]: in build/, or build-PRESET/ for the presets other than dev.
build() {
    local preset=$1 directory=$root/build log began=$SECONDS
    shift
    [[ $preset == dev ]] || directory+=-$preset
    log=$directory/build.log
    mkdir -p "$directory"
    exec 8<"$directory"
    if ! flock --nonblock 8; then
        say "     another run is building in $directory; waiting for it"
        flock 8
    fi
    : >"$log"
    rm -f "$directory/ccache.log"
    local -x CCACHE_STATSLOG=$directory/ccache.log
    # ninja itself configures again when a CMakeLists.txt has changed.
    if [[ ! $directory/build.ninja -nt $root/CMakePresets.json ]]; then
        run_logged "$log" cmake -S "$root" --preset "$preset" || build_failed "$preset" "$log"
    fi
    run_logged "$log" ninja -C "$directory" "$@" || build_failed "$preset" "$log"
    exec 8<&-
    say "     ready after $((SECONDS - began)) s$(from_ccache "$CCACHE_STATSLOG")"
}

# from_ccache LOG: how many objects have been compiled, and how many of them ccache had.
from_ccache() {
    local had compiled
    had=$(grep -cE '^(direct|preprocessed)_cache_hit$' "$1" 2>/dev/null) || had=0
    compiled=$(grep -c '^cache_miss$' "$1" 2>/dev/null) || compiled=0
    ((had + compiled == 0)) || printf '; ccache had %d of %d objects' "$had" "$((had + compiled))"
}

build_failed() {
    show_failure "The build (preset $1)" "$2"
    exit 1
}

# build_packages [SUITE]: Muster's Debian packages, in build/packages; those for another release of Debian in
# build/packages-SUITE.
build_packages() {
    local directory=$root/build/packages${1:+-$1} log began=$SECONDS command=("$root/packaging/build-deb")
    log=$directory.log
    [[ -z ${1:-} ]] || command=("$root/packaging/build-in" "$1")
    mkdir -p "$directory"
    exec 8<"$directory"
    if ! flock --nonblock 8; then
        say "     another run is building packages; waiting for it"
        flock 8
    fi
    : >"$log"
    if ! run_logged "$log" "${command[@]}"; then
        show_failure "${command[0]}" "$log"
        exit 1
    fi
    exec 8<&-
    say "     ready after $((SECONDS - began)) s"
}
