#!/bin/bash
# scripts/check.sh PART... - runs checks over what `make` has built and counts them.
#
#   source   layers, sizes of tracked files, the public header alone
#   symbols  what the library exports and refers to, hardening, ABI (not in sanitizer builds)
#   unit     tests/unit programs, two at a time (JOBS)
#   property tests/property programs
#   kcheck   every kernel against the scalar one
#   failure  every call that can fail does, in turn
#   golden   reference runs under tests/golden/cases and SIBYL_GOLDENS
#   examples examples/ in C and Python
#   e2e      tests/e2e scripts: exit 0 passes, 77 skips
#   install  `make install` into a scratch folder and a program built against it
#
# Environment: BUILD, CC, SAN, JOBS, TEST_SECONDS (limit of one program). The last line is
# "N passed, N failed, N skipped" and the exit status 1 when something failed; the numbers
# are also left in $BUILD/check/tally.
set -u
BUILD=${BUILD:-build} CC=${CC:-gcc} SAN=${SAN:-} JOBS=${JOBS:-2} TEST_SECONDS=${TEST_SECONDS:-280}
export BUILD CC
logs=$BUILD/check
mkdir -p "$logs"
passed=0 failed=0 skipped=0 failures=()

pass() { passed=$((passed + ${1:-1})); }
fail() {
    failed=$((failed + ${2:-1}))
    failures+=("$1")
    echo "FAIL $1"
}
skip() {
    skipped=$((skipped + 1))
    echo "SKIP $1"
}
# one NAME COMMAND...: a check that is a single command; its output is shown when it fails.
one() {
    local name=$1 out
    shift
    if out=$("$@" 2>&1); then pass; else
        [ -n "$out" ] && echo "$out" | tail -n 40
        fail "$name"
    fi
}
last_number() { grep -aoE "$1" "$2" | tail -n 1 | grep -oE '[0-9]+' | head -n 1; }

# run_all SUFFIX PROGRAM...: runs cmocka programs JOBS at a time, then counts.
run_all() {
    local dir=$logs/$1 t n f s rc told
    shift
    mkdir -p "$dir"
    # shellcheck disable=SC2016 # expanded by the inner shell
    printf '%s\n' "$@" | xargs -P "$JOBS" -I{} bash -c '
        log=$1/$(basename "$2").log
        start=$(date +%s%N)
        timeout -k 5 "$3" "$2" >"$log" 2>&1
        echo "$? $(( ($(date +%s%N) - start) / 1000000 ))" >"$log.rc"' _ "$dir" {} "$TEST_SECONDS"
    for t in "$@"; do
        local log=$dir/${t##*/}.log ms
        read -r rc ms <"$log.rc"
        n=$(last_number '\[  PASSED  \] [0-9]+ test' "$log") f=$(last_number '\[  FAILED  \] [0-9]+ test' "$log")
        s=$(last_number '\[  SKIPPED \] [0-9]+ test' "$log") told=$(grep -ac '^SKIP' "$log")
        : "${n:=0}" "${f:=0}" "${s:=0}"
        [ "$told" -gt "$s" ] && s=$told
        grep -a '^SKIP' "$log"
        pass "$n"
        skipped=$((skipped + s))
        if [ "$f" -gt 0 ]; then
            grep -aE 'FAILED|ERROR|error:' "$log" | head -n 40
            fail "${t##*/}: $f tests" "$f"
        elif [ "$rc" -ne 0 ]; then
            tail -n 40 "$log"
            fail "${t##*/}: $([ "$rc" -eq 124 ] && echo "longer than $TEST_SECONDS s" || echo "exit status $rc")"
        elif [ "$n" -eq 0 ] && [ "$s" -eq 0 ]; then
            fail "${t##*/}: ran no test"
        fi
        printf '%-32s %4d passed %3d failed %3d skipped %8d ms\n' "${t##*/}" "$n" "$f" "$s" "$ms"
    done
}

tracked_sizes() {
    local limit=$((56 << 20)) list
    list=$(git ls-files -z | xargs -0 -r stat -c '%s %n' 2>/dev/null | awk -v limit="$limit" '{ sum += $1 } END { print sum + 0 }')
    [ "$list" -le "$limit" ] || {
        echo "tracked files: $list bytes, allowed are $limit"
        return 1
    }
}
part_source() {
    one "layers.sh finds planted violations" scripts/layers.sh --self-test
    one "layers: includes point down" scripts/layers.sh src
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        one "tracked files stay under 56 MiB" tracked_sizes
    else
        skip "tracked files: not a git checkout"
    fi
    one "sibyl.h compiles alone as C11" $CC -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c include/sibyl/sibyl.h
    if command -v g++ >/dev/null; then
        one "sibyl.h compiles as C++11" g++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ include/sibyl/sibyl.h
    else
        skip "sibyl.h as C++: no g++"
    fi
}

exports() { # a shared library shows its interface and nothing else
    local odd
    odd=$(nm -D --defined-only "$BUILD/libsibyl.so" | awk '$NF !~ /^sib_/ { print $NF }')
    [ -z "$odd" ] || {
        echo "libsibyl.so exports:" $odd
        return 1
    }
}
forbidden() { # a library does not end the process, print, or start programs
    local odd
    odd=$(nm -A --undefined-only "$BUILD/libsibyl.a" 2>/dev/null | awk '
        { sym = $NF; sub(/@.*/, "", sym); sub(/^__/, "", sym); sub(/_chk$/, "", sym) }
        sym ~ /^(_?_?exit|_Exit|quick_exit|abort|v?d?f?printf|put(s|char|char_unlocked)|f?puts_unlocked|perror|p?error|stdout|stderr|system|popen|exec[lv]p?e?|execvpe|posix_spawnp?|v?fork|kill)$/ {
            print $1, sym
        }')
    [ -z "$odd" ] || {
        echo "libsibyl.a refers to:"
        echo "$odd"
        return 1
    }
}
part_symbols() {
    if [ -n "$SAN" ]; then
        skip "symbols: a sanitizer build has others"
        return
    fi
    one "the library exports only sib_*" exports
    one "the library neither exits nor prints nor starts programs" forbidden
    if command -v readelf >/dev/null; then
        one "hardening of programs and library" scripts/hardening.sh "$BUILD/sibyl" "$BUILD/libsibyl.so" "$BUILD/golden"
    else
        skip "hardening: no readelf"
    fi
    one "sizes and offsets of the public structs are as recorded" scripts/abi.sh
}

part_unit() { run_all unit "$BUILD"/tests/*_test; }
part_property() {
    if compgen -G "$BUILD/property/*_test" >/dev/null; then run_all property "$BUILD"/property/*_test; fi
}

# counted NAME PASS_RE FAIL_RE COMMAND...: a program that prints its own counts on its last line.
counted() {
    local name=$1 total=$2 bad=$3 n f rc log=$logs/$1.log
    shift 3
    timeout -k 5 "$TEST_SECONDS" "$@" >"$log" 2>&1
    rc=$?
    n=$(last_number "$total" "$log") f=$(last_number "$bad" "$log")
    : "${n:=0}" "${f:=0}"
    grep -a '^SKIP' "$log" && skipped=$((skipped + $(grep -ac '^SKIP' "$log")))
    pass "$n"
    if [ "$f" -gt 0 ]; then
        grep -a FAIL "$log" | head -n 40
        fail "$name: $f" "$f"
    elif [ "$rc" -ne 0 ] || [ "$n" -eq 0 ]; then
        tail -n 40 "$log"
        fail "$name: exit status $rc after $n"
    fi
    printf '%-32s %4d passed %3d failed\n' "$name" "$n" "$f"
}
part_kcheck() {
    [ -x "$BUILD/kcheck" ] || { fail "kcheck is not built"; return; }
    counted kcheck 'kcheck: [0-9]+ cases' ', [0-9]+ failed' "$BUILD/kcheck"
    passed=$((passed - $(last_number ', [0-9]+ failed' "$logs/kcheck.log" || echo 0))) # its first number is of all cases
}
part_failure() {
    [ -x "$BUILD/failure" ] || { fail "failure is not built"; return; }
    counted failure 'failure: [0-9]+ runs' ', [0-9]+ failed' "$BUILD/failure"
    passed=$((passed - $(last_number ', [0-9]+ failed' "$logs/failure.log" || echo 0))) # as above
}
part_golden() {
    [ -x "$BUILD/golden" ] || { fail "golden is not built"; return; }
    local cases=() d
    for d in tests/golden/cases/*/ ${SIBYL_GOLDENS:+"$SIBYL_GOLDENS"/*/}; do
        [ -f "$d/expected.safetensors" ] && cases+=("${d%/}")
    done
    counted golden 'golden: [0-9]+ passed' ', [0-9]+ failed' "$BUILD/golden" --numerics f32 "${cases[@]}"
}

part_e2e() {
    local t rc log
    for t in tests/e2e/*.sh tests/e2e/*.py; do
        [ -x "$t" ] || continue
        log=$logs/$(basename "$t").log
        timeout -k 5 "$TEST_SECONDS" "$t" >"$log" 2>&1
        rc=$?
        if [ $rc -eq 77 ]; then
            skip "$t: $(grep -a '^SKIP' "$log" | head -n 1 | cut -c6-)"
        elif [ $rc -ne 0 ]; then
            tail -n 40 "$log"
            fail "$t"
        else
            pass
            grep -a '^SKIP' "$log" && skipped=$((skipped + $(grep -ac '^SKIP' "$log")))
        fi
    done
}

example_answers() { # every example says what the program says
    local want
    want=$("$BUILD/sibyl" generate --chat "Subtract 17 from 25." --temp 0 2>/dev/null)
    [ "$("$@")" = "$want" ]
}
part_examples() {
    local ask="Subtract 17 from 25."
    one "examples/generate.c" example_answers "$BUILD/examples/generate" demo/gemma4-demo "$ask"
    one "examples/chat.c" example_answers bash -c "echo '$ask' | $BUILD/examples/chat demo/gemma4-demo"
    if [ -n "$SAN" ]; then
        skip "examples/generate.py: not with sanitizers"
    elif command -v python3 >/dev/null; then
        one "examples/generate.py" example_answers env SIBYL_LIBRARY="$BUILD/libsibyl.so" python3 examples/generate.py demo/gemma4-demo "$ask"
    else
        skip "examples/generate.py: no python3"
    fi
}

installed_program_runs() (
    set -e
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    make -s install DESTDIR="$root/stage" PREFIX="$root/usr" BUILD="$BUILD" CC="$CC"
    mv "$root/stage$root/usr" "$root/usr"
    export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
    cat >"$root/use.c" <<'C'
#include <sibyl/sibyl.h>
#include <stdio.h>
int main(void) { return puts(sib_status_name(SIB_EFORMAT)) < 0; }
C
    $CC "$root/use.c" -o "$root/shared" $(pkg-config --cflags --libs sibyl)
    [ "$(LD_LIBRARY_PATH=$root/usr/lib "$root/shared")" = EFORMAT ]
    $CC "$root/use.c" -o "$root/static" $(pkg-config --cflags sibyl) "$root/usr/lib/libsibyl.a" \
        $(pkg-config --static --libs sibyl | sed 's/-lsibyl //')
    [ "$("$root/static")" = EFORMAT ]
    [ -s "$root/usr/share/man/man1/sibyl.1" ]
    make -s uninstall PREFIX="$root/usr" BUILD="$BUILD"
    left=$(find "$root/usr" ! -type d)
    [ -z "$left" ] || { echo "uninstall leaves: $left"; exit 1; }
)
part_install() {
    if [ -n "$SAN" ]; then
        skip "install: not of a sanitizer build"
        return
    fi
    one "install, use with pkg-config, uninstall" installed_program_runs
}

[ $# -gt 0 ] || set -- source symbols unit property kcheck failure golden examples e2e install
for part in "$@"; do
    if ! declare -F "part_$part" >/dev/null; then
        echo "check.sh: unknown part \"$part\"" >&2
        exit 2
    fi
    echo "== $part"
    "part_$part"
done
echo
for f in "${failures[@]}"; do echo "failed: $f"; done
echo "$passed $failed $skipped" >"$logs/tally"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
