# shellcheck shell=bash
# What build-deb, build-rpm and build-wheel share. To be sourced; `root` is the checkout.
# shellcheck disable=SC2034,SC2154 # variables are used by those who source this, and come from them

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# slurm_series: "22.05", of the headers that are installed. Plugins load into the releases of one series.
slurm_series() {
    local number
    number=$(printf '#include <slurm/slurm.h>\nversion SLURM_VERSION_NUMBER\n' | cpp -P 2>/dev/null | sed -n 's/^version //p')
    [[ $number =~ ^0x[0-9a-f]+$ ]] || die "slurm/slurm.h is not installed (of libslurm-dev, or SchedMD's slurm-smd-dev): it says for which Slurm to build"
    printf '%d.%02d' "$((number >> 16))" "$((number >> 8 & 255))"
}

# next_series SERIES: 22.06 of 22.05. Slurm names its releases after months, so nothing is between them.
next_series() {
    printf '%s.%02d' "${1%.*}" "$((10#${1#*.} + 1))"
}

# commit_time: that of the last commit, which becomes the time of all that is packaged.
commit_time() {
    git -C "$root" -c safe.directory="$root" log -1 --format=%ct 2>/dev/null || die "$root is no git checkout: set SOURCE_DATE_EPOCH"
}

# source_files: all that git does not ignore, with what is not committed; all files where there is no git.
source_files() {
    if git -C "$root" -c safe.directory="$root" rev-parse --git-dir >/dev/null 2>&1; then
        git -C "$root" -c safe.directory="$root" ls-files -z --cached --others --exclude-standard
    else
        (cd "$root" && find . ! -type d ! -path './build*' -print0)
    fi
}

# copy_source DIRECTORY
copy_source() {
    mkdir -p "$1"
    source_files |
        while IFS= read -r -d '' file; do
            [[ ! -e $root/$file && ! -L $root/$file ]] || printf '%s\0' "$file"
        done | tar -C "$root" --null --files-from=- -cf - | tar -C "$1" -xf -
}

# begin_packaging ARGUMENTS: what a packager is called with. Sets `output`, SOURCE_DATE_EPOCH, ccache's directory and
# `work`, a directory that goes when the script ends; the script has defined usage.
begin_packaging() {
    output=$root/build/packages
    while (($# > 0)); do
        case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --output)
            (($# > 1)) || die "--output needs the name of a directory"
            output=$(realpath -m "$2")
            shift
            ;;
        *)
            usage >&2
            exit 2
            ;;
        esac
        shift
    done
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit_time)}
    export SOURCE_DATE_EPOCH
    share_ccache
    work=$(mktemp -d -t "${0##*/}-XXXXXX")
    trap 'rm -rf "$work"' EXIT
}

# share_ccache: packagers take HOME away; what has been compiled before is found all the same.
share_ccache() {
    if command -v ccache >/dev/null; then
        CCACHE_DIR=${CCACHE_DIR:-$(ccache --get-config cache_dir)}
        export CCACHE_DIR
    fi
}
