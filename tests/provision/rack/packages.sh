#!/bin/bash
# Makes an apt repository of packages and of all that they need beyond what a root file system has. Started by images.py in
# namespaces of its own.
# Arguments: the directory to make, a sources.list, dpkg's status file of that root, packages or .deb files (which stay where
# they are).
set -euo pipefail
directory=$1 sources=$2 status=$3
shift 3

scratch=$directory/apt
mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial"
cp "$status" "$scratch/state/status"
apt=(apt-get -qq -y --no-install-recommends -o Debug::NoLocking=1 -o APT::Sandbox::User=root
    -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State="$scratch/state" -o Dir::State::status="$scratch/state/status" -o Dir::Cache="$scratch/cache")
"${apt[@]}" update
"${apt[@]}" --download-only install "$@"
mv "$scratch"/cache/archives/*.deb "$directory"
rm -r "$scratch"
cd "$directory"
dpkg-scanpackages --multiversion . >Packages
