#!/bin/sh
# Each header compiles alone, without a warning: headers.sh CC c11, or headers.sh CC c++17 for the public ones.
# Templates (body/, *_body.h) and vector vocabularies (x86/, arm/) are left out: they need the flags or macros of whoever
# includes them; so is device code, and what the host passes to it, which includes nothing.
set -eu
cd "$(dirname "$0")/../.."
cc=$1
case $2 in
c11) language="-x c -std=c11 -Wstrict-prototypes" headers=$(find include src cli check -name '*.h' ! -path '*/body/*' ! -name '*_body.h' ! -path '*/x86/*' ! -path '*/arm/*' ! \( -path 'src/cuda/*/*' ! -path '*/host/*' \) ! -name 'reference_pairs.h' ! -name 'reference_gradients.h' | sort) ;;
c++17) language="-x c++ -std=c++17" headers=$(echo include/*.h) ;;
*) echo "usage: headers.sh CC c11|c++17" >&2 && exit 2 ;;
esac
count=0
for header in $headers; do
    # Included, not compiled itself: as a main file its unused static functions would count.
    # shellcheck disable=SC2086 # words
    echo "#include \"$header\"" | $cc $language -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only \
        -I. -Iinclude -Isrc -Icli -Icheck - || { echo "$header does not compile alone ($cc $2)" && exit 1; }
    count=$((count + 1))
done
echo "$count headers compile alone ($cc $2)"
