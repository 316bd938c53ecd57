#!/bin/bash
# Installs what is needed, builds, starts a cluster on this machine, trains on it, kills a process in mid-training and
# shows the recovery.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

usage() {
    cat <<'TEXT'
usage: ./demo.sh [--keep] [--json FILE]

Installs what is needed, builds Muster, and starts a cluster of virtual nodes on this machine: a Slurm controller, four
compute nodes, and Ceph. Submits a training job there, kills one of its processes with SIGKILL, and shows how the job
runs on from its last checkpoint, in the same Slurm step, to the same result as a run without the fault: first with
Muster's own trainer, then with a PyTorch script. Ends with a table; the exit status is 0 only if all of that is true.

  --keep       leave the cluster up afterwards, and say how to use it
  --json FILE  write the figures of the table to FILE

Needs root and Debian 12. Leaves nothing behind but the packages and build/.
TEXT
}

arguments=()
while (($# > 0)); do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --keep) arguments+=(--keep) ;;
    --json)
        (($# > 1)) || die "--json needs the name of a file"
        arguments+=(--json "$(realpath -m "$2")")
        shift
        ;;
    --json=*) arguments+=(--json "$(realpath -m "${1#--json=}")") ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done
require_root
require_debian
require_space 3

trap setup_cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "Muster: a training job that loses a process, and goes on."
say
say "1. Install what is missing"
install_dependencies
say "     everything is installed"
say
say "2. Build Muster"
build dev product
exec /usr/bin/python3 -B "$root/tests/demo/demo.py" "${arguments[@]}"
