#!/bin/bash
# Installs what is needed, builds Muster's packages, and tries them and the playbooks on machines in containers.
set -euo pipefail
# shellcheck source=../scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/setup.sh"

usage() {
    cat <<'TEXT'
usage: provisioning/try.sh [--keep | --all] [--patient] [--packages DIR] [--suite SUITE]

Installs what is needed, builds Muster's packages, and starts blank machines on this machine: containers that boot Debian 12. One
playbook makes them a Slurm cluster with Ceph and Muster. A job of a gang loses a node there and finishes, in the same job. A blank
machine takes the lost node's place. The first playbook runs once more and changes nothing. Another one adds a node. The exit status
is 0 only if all of that is true.

  --all           also plant every fault that validate must name, and twelve pairs, kill plays at five tasks, and lose a database and
                  Ceph's daemons: half an hour. What was named is in build/all-faults.json
  --keep          leave the cluster up afterwards, and say how to use it
  --patient       a node is lost after 30 s of silence, not after the default: for a machine that is busy with something else
  --packages DIR  take Muster's packages from there and build none
  --suite SUITE   machines of another release of Debian, such as trixie, with its Slurm

Needs root and Debian 12. Leaves nothing behind but packages, build/, and what the machines are made from, below
/var/cache/muster-tests.
TEXT
}

arguments=()
packages=
suite=
all=
while (($# > 0)); do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --all) all=yes ;;
    --keep | --patient) arguments+=("$1") ;;
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
if [[ -z $all ]]; then
    exec /usr/bin/python3 -B "$root/tests/provision/try.py" --packages "$packages" "${arguments[@]}"
fi
export MUSTER_PACKAGES=$packages MUSTER_FAULTS=all MUSTER_FAULTS_RESULT=$root/build/all-faults.json
mkdir -p "$root/build"
rm -f "$MUSTER_FAULTS_RESULT"
status=0
/usr/bin/python3 -B "$root/tests/provision/test_muster_only.py" -v -k midst || status=1
/usr/bin/python3 -B "$root/tests/provision/try.py" --packages "$packages" "${arguments[@]}" || status=1
/usr/bin/python3 -B "$root/tests/provision/test_validate.py" -v || status=1
/usr/bin/python3 -B "$root/tests/provision/test_site_by_hand.py" -v || status=1
say
cat "$MUSTER_FAULTS_RESULT"
exit "$status"
