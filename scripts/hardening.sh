#!/bin/bash
# scripts/hardening.sh FILE... - checks with readelf that programs and shared libraries were linked and compiled as the
# Makefile means them to be: position independent, relocations resolved at start and read-only after it, no executable
# stack, no text relocations, no search path of the build machine, stack protector and fortified calls in use.
# Used by scripts/check.sh. Prints what is missing; exit status 1 when something is.
set -u
missing=0
complain() {
    echo "$1: $2"
    missing=1
}
for f in "$@"; do
    headers=$(readelf -hlW "$f") dynamic=$(readelf -dW "$f") symbols=$(readelf --dyn-syms -W "$f")
    grep -q 'Type: *DYN' <<<"$headers" || complain "$f" "not position independent"
    grep -q 'GNU_RELRO' <<<"$headers" || complain "$f" "no read-only relocations"
    grep -qE 'BIND_NOW|FLAGS_1.* NOW' <<<"$dynamic" || complain "$f" "symbols are bound lazily"
    grep -E 'GNU_STACK' <<<"$headers" | grep -q 'RW ' || complain "$f" "the stack is executable"
    grep -qE 'LOAD.* RWE ' <<<"$headers" && complain "$f" "a segment is writable and executable"
    grep -qE 'TEXTREL|RPATH|RUNPATH' <<<"$dynamic" && complain "$f" "has text relocations or a search path"
    grep -q '__stack_chk_fail' <<<"$symbols" || complain "$f" "no stack protector"
    grep -qE '__[a-z]+_chk' <<<"$(grep -v __stack_chk_fail <<<"$symbols")" || complain "$f" "no fortified call"
done
exit $missing
