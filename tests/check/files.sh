# shellcheck shell=bash
# The project's own files, for the checks. To be sourced; the working directory is the repository afterwards.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

in_git() {
    git -c safe.directory="$PWD" "$@"
}

# tracked PATTERN...: the files under version control that match; without git (a tarball) all files outside build*/.
tracked() {
    if in_git rev-parse --git-dir >/dev/null 2>&1; then
        in_git ls-files -- "$@"
    else
        local names=() pattern
        for pattern in "$@"; do
            names+=(-o -path "./$pattern")
        done
        find . -type f ! -path './build*' \( -false "${names[@]}" \) -printf '%P\n' | sort
    fi
}

# scripts INTERPRETER: the tracked files whose first line names it.
scripts() {
    local file line
    while read -r file; do
        [[ -f $file ]] || continue
        IFS= read -r line <"$file" 2>/dev/null || true
        if [[ $line =~ ^'#!'.*/$1 ]]; then
            printf '%s\n' "$file"
        fi
    done < <(tracked '*' | grep -v '/corpus/')
}
