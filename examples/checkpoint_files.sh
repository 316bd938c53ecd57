#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --gang=files=yes
#SBATCH --open-mode=append
# Checkpoints without code changes: every member of this gang keeps its state in files, and knows of Muster no more than
# MUSTER_CHECKPOINT_DIR. Kill any of its processes, or a node (with spares=1): all go on from the newest checkpoint.
set -euo pipefail

# What a member runs; a program that writes files takes this place. Arguments: how many steps, seconds for each.
member() {
    local last=$1 seconds=$2 newest step=0 state=
    cd "$MUSTER_CHECKPOINT_DIR"
    newest=$(find . -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)
    if [[ -n $newest ]]; then
        step=${newest##*-}
        state=$(<"$newest/state")
        echo "rank $RANK: goes on after step $step"
    fi
    while ((step < last)); do
        sleep "$seconds" # the work
        step=$((step + 1))
        state=$(printf '%s %s %s' "$state" "$RANK" "$step" | sha256sum)
        # Renaming says that all of it is there.
        mkdir work
        echo "$state" >work/state
        mv work "step-$step"
    done
    echo "rank $RANK: done, $state"
}
export -f member

srun bash -c 'member "$@"' member "${STEPS:-100}" "${SECONDS_A_STEP:-1}"
