#!/bin/bash
# The first process of a virtual node, already in its own namespaces: builds the node's view of the file system, waits
# for its cable, and becomes the node's init. Started by node.py; speaks with it through stdin and stdout.
# Arguments: cluster directory, cluster name, node name, address/prefix, repository, build directory (or ""),
#            Ceph configuration, data of /var/lib/muster, then "MOUNTPOINT OPTIONS" for each cgroup v1 hierarchy.
set -euo pipefail
directory=$1 cluster=$2 node=$3 address=$4 repository=$5 build=$6 ceph=$7 state=$8
shift 8

hostname "$node"

# A fresh sysfs shows this network namespace's interfaces; cgroup mounts made here have the node's cgroup as their root.
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for hierarchy in "$@"; do
    mkdir "/sys/fs/cgroup/${hierarchy% *}"
    mount -t cgroup -o "${hierarchy#* }" cgroup "/sys/fs/cgroup/${hierarchy% *}"
done

# Mount points that the host may lack, and the node's own hosts, passwd and group: laid over the host's directories.
for path in /etc /opt /var/lib; do
    mount -t overlay -o "lowerdir=$directory/overlay$path:$path" overlay "$path"
done
mount --bind "$repository" /opt/muster-src
if [[ -n $build ]]; then
    mount --rbind "$build" /opt/muster-build
fi
mount --bind "$ceph" /etc/ceph
mount --bind "$state" /var/lib/muster

# The cluster's directory may lie below one that is about to be hidden: from here on it is the working directory, and
# mount must take relative paths as they are (-c).
cd "$directory"
for path in slurm muster munge; do
    mount -c --bind "etc/$path" "/etc/$path"
done
mount -c --bind log /var/log
mount -c --bind home /home
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/spool
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
install -d /run/lock /run/muster /var/spool/slurmd
install -d -o munge -g munge /run/munge
install -d -o slurm -g slurm /run/slurm
case $node in
ctl)
    install -d /var/spool/slurmctld
    mount -c --bind slurmctld /var/spool/slurmctld
    ;;
ceph)
    install -d -o ceph -g ceph /run/ceph
    mount -c --bind ceph /var/lib/ceph
    ;;
esac

# /tmp is the cluster's own; the cluster's directory stays visible below it under the path that it has on the host.
if [[ $directory == /tmp/* ]]; then
    mount -c --bind . "tmp/${directory#/tmp/}"
fi
mount -c --bind tmp /var/tmp
mount -c --rbind tmp /tmp
cd /

echo mounted
read -r _ # the host has plugged eth0 in
ip link set lo up
ip addr add "$address" dev eth0
ip link set eth0 up
echo ready

# An init that ignores SIGCHLD has its children reaped by the kernel: that is all this one has to do.
trap '' CHLD
exec </dev/null >/dev/null
exec -a "muster-vc:$cluster:$node" sleep infinity
