#!/bin/bash
# scripts/abi.sh [--update] - sizes and offsets of the public structs, values of the public enums and the exported
# functions, compared with packaging/abi.txt (64-bit systems). A difference is a change of the interface: raise
# SIB_ABI_VERSION in the header and record it with --update (`make abi`), which refuses a change under the same version
# that is more than an addition of functions or enum values.
set -eu
header=include/sibyl/sibyl.h record=packaging/abi.txt CC=${CC:-gcc}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Members of `typedef struct NAME { ... } NAME;` and names of enum values, from the header without its comments.
$CC -E -P -fpreprocessed -dD -x c "$header" 2>/dev/null | grep -v '^#' | tr '\n' ' ' >"$dir/flat"
{
    echo '#include <sibyl/sibyl.h>'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    echo 'printf("version %d\n", SIB_ABI_VERSION);'
    grep -oE 'typedef struct [a-z_]+ \{[^}]*\}' "$dir/flat" | while read -r _ _ name rest; do
        echo "printf(\"struct $name %zu\\n\", sizeof($name));"
        printf '%s' "${rest#\{}" | tr -d '}' | tr ';' '\n' | while read -r member; do
            for field in $(sed -E 's/\[[^]]*\]//g; s/,/ , /g; s/\*/ /g' <<<"$member" | awk '{ n = ""; for (i = 1; i <= NF; i++) { if ($i == ",") { print n } else n = $i } if (n != "") print n }'); do
                echo "printf(\"  $name.$field %zu %zu\\n\", offsetof($name, $field), sizeof(((($name *)0))->$field));"
            done
        done
    done
    grep -oE 'enum( sib_[a-z_]+)? \{[^}]*\}' "$dir/flat" | sed -E 's/^[^{]*\{//; s/\}//' | tr ',' '\n' | awk 'NF { print $1 }' | while read -r value; do
        echo "printf(\"enum $value %d\\n\", (int)$value);"
    done
    echo 'return 0; }'
} >"$dir/abi.c"
$CC -std=c17 -Iinclude "$dir/abi.c" -o "$dir/abi"
{
    "$dir/abi"
    grep -oE 'sib_[a-z_]+ *\(' <(grep -oE 'SIB_API [^;]*;' "$dir/flat" || grep -oE '__attribute__[^;]*;' "$dir/flat") | tr -d ' (' | sort -u | sed 's/^/function /'
} >"$dir/now"
if [ "${1:-}" = --update ]; then
    if [ -f "$record" ] && [ "$(head -n 1 "$record")" = "$(head -n 1 "$dir/now")" ] && [ -n "$(comm -23 <(sort "$record") <(sort "$dir/now"))" ]; then
        echo "abi.sh: the interface lost or changed something, raise SIB_ABI_VERSION first:" >&2
        diff "$record" "$dir/now" >&2 || true
        exit 1
    fi
    cp "$dir/now" "$record"
    exit 0
fi
diff "$record" "$dir/now" || {
    echo "abi.sh: the interface differs from $record; see the head of scripts/abi.sh"
    exit 1
}
