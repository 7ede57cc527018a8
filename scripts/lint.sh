#!/bin/bash
# scripts/lint.sh [cppcheck|tidy]... - static analysis over src/ with the rules of .clang-tidy and the suppressions below.
# A tool that is not installed is skipped. FILES="a.c b.c" limits tidy to some files. The last line is the tally.
#
# cppcheck suppressions: missingIncludeSystem (its own models of libc serve), unusedFunction (each file alone is a
# library's part), internalAstError (2.10 does not know compound literals of scalars), ctunullpointer (follows calls
# without their conditions). Everything else of warning, performance and portability must be clean or suppressed in the line
# with a reason.
set -u
passed=0 failed=0 skipped=0
flags="-std=c17 -D_GNU_SOURCE -Iinclude -Isrc $(pkg-config --cflags jansson libpcre2-8 libutf8proc libjpeg libpng libwebp libmd zlib 2>/dev/null)"

lint_cppcheck() {
    if ! command -v cppcheck >/dev/null; then
        skipped=$((skipped + 1))
        echo "SKIP cppcheck: not installed"
        return
    fi
    if cppcheck --quiet --std=c17 --language=c -D_GNU_SOURCE -D__x86_64__ -Iinclude -Isrc --enable=warning,performance,portability \
        --inline-suppr --suppress=missingIncludeSystem --suppress=unusedFunction --suppress=internalAstError --suppress=ctunullpointer \
        '-Djson_object_foreach(o,k,v)=for(k=0,v=0;v;)' '-Djson_array_foreach(a,i,v)=for(i=0,v=0;v;)' --error-exitcode=1 -j "${JOBS:-$(nproc)}" \
        $(find src -name '*.c' ! -path 'src/kernels/x86/*'); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}
lint_tidy() {
    local tidy
    tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
        skipped=$((skipped + 1))
        echo "SKIP clang-tidy: not installed"
        return
    }
    # Kernels of instruction set levels need flags of their own and hold nothing but arithmetic.
    # shellcheck disable=SC2086 # flags is a list
    if printf '%s\n' ${FILES:-$(find src -name '*.c' ! -path 'src/kernels/x86/*')} |
        xargs -P "${JOBS:-$(nproc)}" -I{} "$tidy" --quiet {} -- $flags 2>/dev/null; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

[ $# -gt 0 ] || set -- cppcheck tidy
for part in "$@"; do "lint_$part"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
