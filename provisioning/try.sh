#!/bin/bash
# Installs what is needed, builds Muster's packages, and tries them and the playbooks on machines in containers.
set -euo pipefail
# shellcheck source=../scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/setup.sh"

usage() {
    cat <<'TEXT'
usage: provisioning/try.sh [--keep] [--packages DIR] [--suite SUITE]

Installs what is needed, builds Muster's packages, and starts blank machines on this machine: containers that boot Debian 12. One
playbook makes them a Slurm cluster with Ceph and Muster. A job of a gang loses a node there and finishes, in the same job. The
playbook runs once more and changes nothing. Another one adds a node. The exit status is 0 only if all of that is true.

  --keep          leave the cluster up afterwards, and say how to use it
  --packages DIR  take Muster's packages from there and build none
  --suite SUITE   machines of another release of Debian, such as trixie, with its Slurm

Needs root and Debian 12. Leaves nothing behind but packages, build/, and what the machines are made from, below
/var/cache/muster-tests.
TEXT
}

arguments=()
packages=
suite=
while (($# > 0)); do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --keep) arguments+=(--keep) ;;
    --packages)
        (($# > 1)) || die "--packages needs the name of a directory"
        packages=$(realpath "$2")
        shift
        ;;
    --suite)
        (($# > 1)) || die "--suite needs the name of a release of Debian"
        suite=$2
        arguments+=(--suite "$2")
        shift
        ;;
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

say "Muster on machines: packages, one playbook from blank, and a gang that loses a node."
install_dependencies
if [[ -z $packages ]]; then
    say
    say "0. Build the packages"
    build_packages "$suite"
    packages=$root/build/packages${suite:+-$suite}
fi
exec /usr/bin/python3 -B "$root/tests/provision/try.py" --packages "$packages" "${arguments[@]}"
