#!/bin/sh
# symbols.sh STATIC SHARED SONAME: every external symbol of either library starts with attn_, and the shared one is
# called SONAME. (Which symbols the shared library exports, abi.py compares.)
set -eu
for list in "nm -g --defined-only $1" "nm -D --defined-only $2"; do
    names=$($list | awk 'NF >= 3 && $(NF - 1) !~ /[aA]/ { print $NF }')
    [ -n "$names" ] || { echo "$list: no symbols" && exit 1; }
    if others=$(echo "$names" | grep -v '^attn_'); then
        echo "$list: not ours by name:" "$others" && exit 1
    fi
    echo "$list: $(echo "$names" | wc -l) symbols, all attn_"
done
objdump -p "$2" | grep -q "SONAME *$3\$" || { echo "$2: its SONAME is not $3" && exit 1; }
