#!/bin/sh
# script/setup.sh where something is missing, in a script that ends at errors: it must not stop without the line to run.
# The machine is made up: a user without sudo or root, and one whose apt-get fails.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

stub() { # name, what it does
    printf '#!/bin/sh\n%s\n' "$2" >"$temp/$1"
    chmod +x "$temp/$1"
}

told() { # what must be said
    code=0
    said=$(PATH="$temp:$PATH" sh -euc '. "$1/script/setup.sh"
        try_clang_format() { return 1; }
        setup format
        echo "went on"' sh "$root" 2>&1 </dev/null) || code=$?
    case $said in
    *"went on"*) echo "went on without what is missing: $said" && exit 1 ;;
    *"$1"*) [ $code = 1 ] || { echo "ended with $code: $said" && exit 1; } ;;
    *) echo "does not say \"$1\": $said" && exit 1 ;;
    esac
}

stub id 'echo 1000'
stub sudo 'exit 1'
stub apt-get 'echo "E: no such package"; exit 100'
told "Neither root nor sudo. To install: sudo apt-get install clang-format-14"
stub id 'echo 0'
told "E: no such package"
ATTN_NO_INSTALL=1
export ATTN_NO_INSTALL
told "ATTN_NO_INSTALL is set; to install: apt-get install clang-format-14"
