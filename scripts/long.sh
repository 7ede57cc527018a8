#!/bin/bash
# scripts/long.sh PART... - the checks that take minutes: builds with other compilers and
# sanitizers, long properties, fuzzers. `make check-long` runs all, .ci/run some of them.
#
#   check     make check
#   clang     the whole tree with clang, warnings are errors
#   sanitize  unit tests with SAN (default address,undefined)
#   thread    unit tests with the thread sanitizer
#   property  make property
#   fuzz      each tests/fuzz/fuzz_*.c for FUZZ_SECONDS, from the folder that its comment names after "Seeds:"
#
# PART_SECONDS bounds one part (default 3600). The last line adds up all tallies.
set -u
PART_SECONDS=${PART_SECONDS:-3600} FUZZ_SECONDS=${FUZZ_SECONDS:-60} JOBS=${JOBS:-$(nproc)}
passed=0 failed=0 skipped=0
clang=$(command -v clang-14 || command -v clang || true)

bounded() { timeout -k 10 "$PART_SECONDS" "$@"; }
count() { # NAME COMMAND...: one check
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAIL $name"
    fi
}
skip() {
    skipped=$((skipped + 1))
    echo "SKIP $1"
}
add_tally() { # NAME FILE: a part that leaves no tally has failed
    local p f s
    if read -r p f s 2>/dev/null <"$2"; then
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        failed=$((failed + 1))
        echo "FAIL $1: no tally, it did not build or took longer than $PART_SECONDS s"
    fi
}
tallied() { # NAME BUILD COMMAND...
    local name=$1 file=$2/check/tally
    shift 2
    rm -f "$file"
    bounded "$@"
    add_tally "$name" "$file"
}

build_and_test() { # BUILD SAN
    make --no-print-directory -s -j"$JOBS" BUILD="$1" SAN="$2" OPT="-O1 -g" tests props &&
        BUILD=$1 SAN=$2 TEST_SECONDS=900 scripts/check.sh unit property
}
export -f build_and_test
export JOBS

part_check() { tallied check build make --no-print-directory check; }
part_clang() {
    if [ -z "$clang" ]; then
        skip "clang: not installed"
        return
    fi
    count "build with $clang without warnings" \
        bounded make --no-print-directory -s -j"$JOBS" CC="$clang" BUILD=build-clang WERROR=1 all tests props
}
part_sanitize() {
    local san=${SAN:-address,undefined}
    tallied "sanitizers $san" "build-${san//,/-}" bash -c 'build_and_test "$@"' _ "build-${san//,/-}" "$san"
}
part_thread() { tallied "thread sanitizer" build-thread bash -c 'build_and_test "$@"' _ build-thread thread; }
part_property() { tallied property build make --no-print-directory property; }
part_fuzz() {
    local f name seeds
    if ! compgen -G 'tests/fuzz/fuzz_*.c' >/dev/null; then
        skip "fuzz: no fuzzers in this tree"
        return
    fi
    if [ -z "$clang" ]; then
        skip "fuzz: clang is not installed"
        return
    fi
    if ! make --no-print-directory -s -j"$JOBS" CC="$clang" BUILD=build-fuzz SAN=fuzzer-no-link,address,undefined OPT="-O1 -g" fuzzers; then
        count "fuzzers build" false
        return
    fi
    for f in build-fuzz/fuzz/fuzz_*; do
        name=${f##*/}
        seeds=$(sed -n 's/.*Seeds: \([^ ]*[^ .]\).*/\1/p' "tests/fuzz/$name.c" | head -n 1)
        mkdir -p "build-fuzz/corpus/$name"
        # shellcheck disable=SC2086 # no seeds, no argument
        count "$name" bounded "$f" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
            -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name" $seeds
    done
}

[ $# -gt 0 ] || set -- check clang sanitize thread property fuzz
for part in "$@"; do
    if ! declare -F "part_$part" >/dev/null; then
        echo "long.sh: unknown part \"$part\"" >&2
        exit 2
    fi
    echo "== long: $part"
    "part_$part"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
