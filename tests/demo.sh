#!/bin/sh
# `make demo`: mounts the sample scans, reads one, searches all, unmounts.
set -eu
cd "$(dirname "$0")/.."
PATH=$(cd "${BUILD:-build/opt}" && pwd):$PATH
scans=tests/data/samples
dir=$(mktemp -d "${TMPDIR:-/tmp}/ocrfs-demo.XXXXXX")
texts=$dir/texts

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}
clean() {
    fusermount3 -uqz "$texts" 2>/dev/null || true
    rm -rf --one-file-system "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM

if ! [ -r /dev/fuse ]; then
    echo "demo: /dev/fuse is missing or may not be opened: nothing can be" \
        "mounted here (in a container, pass it in with --device /dev/fuse)" >&2
    exit 1
fi

show mkdir "$texts"
show ocrfs $scans "$texts" -o lang=eng+deu,cache="$dir/cache",engine_idle=5
show ls -l "$texts"
show cat "$texts/receipt.jpg.md"
show grep -rniE 'total|betrag' --include='*.md' "$texts"
show fusermount3 -u "$texts"
