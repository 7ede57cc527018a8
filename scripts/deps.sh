#!/bin/sh
# scripts/deps.sh [build|check|ci] - installs what is missing, and only that.
#
# `make demo` and `make check` call it first. A need is met when its probe succeeds, wherever
# the program or library came from; Debian's package is asked for only when it does not.
# With nothing missing it returns in some milliseconds and touches nothing.
#   build  compiler, make, pkg-config and the libraries that the engine links
#   check  also the test library and python3; python3-jinja2 when it can be had
#   ci     also clang
set -u
mode=${1:-build}
case $mode in build | check | ci) ;; *)
    echo "deps.sh: unknown argument \"$mode\", use build, check or ci" >&2
    exit 2 ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }
compiler=${CC:-gcc}
compiler=${compiler%% *}

modules="jansson:libjansson-dev libmd:libmd-dev libpcre2-8:libpcre2-dev libutf8proc:libutf8proc-dev
libjpeg:libjpeg62-turbo-dev libpng:libpng-dev libwebp:libwebp-dev libwebpdemux:libwebp-dev zlib:zlib1g-dev
libedit:libedit-dev"
[ "$mode" = build ] || modules="$modules cmocka:libcmocka-dev"

missing_packages() {
    have "$compiler" || echo gcc
    have ar || echo binutils
    have make || echo make
    echo '#include <stdio.h>' | "$compiler" -E - >/dev/null 2>&1 || echo libc6-dev
    have pkg-config || echo pkg-config
    names=
    for m in $modules; do names="$names ${m%%:*}"; done
    # shellcheck disable=SC2086 # a list of names
    if ! pkg-config --exists $names 2>/dev/null; then
        for m in $modules; do
            pkg-config --exists "${m%%:*}" 2>/dev/null || echo "${m#*:}"
        done
    fi
    if [ "$mode" != build ]; then have python3 || echo python3; fi
    if [ "$mode" = ci ]; then have clang || have clang-14 || echo clang; fi
}

missing=$(missing_packages | sort -u | tr '\n' ' ')
[ -z "$missing" ] && exit 0

if ! have apt-get; then
    echo "deps.sh: missing: ${missing}(names of Debian packages); this system has no apt-get, install them with its own package manager" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root="env"
elif have sudo; then
    as_root="sudo"
    [ -t 0 ] || as_root="sudo -n"
else
    echo "deps.sh: missing: ${missing}and this user is neither root nor has sudo; as root run: apt-get install $missing" >&2
    exit 1
fi

install() {
    # shellcheck disable=SC2086 # lists of words
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >/dev/null
}

echo "deps.sh: installing $missing"
$as_root apt-get -qq -o DPkg::Lock::Timeout=300 update || echo "deps.sh: the package lists could not be updated, going on with the old ones" >&2
# shellcheck disable=SC2086
if ! install $missing; then
    echo "deps.sh: apt-get could not install: $missing" >&2
    exit 1
fi
if [ "$mode" != build ] && ! python3 -c 'import jinja2' 2>/dev/null; then
    install python3-jinja2 2>/dev/null || echo "deps.sh: python3-jinja2 is not available; the tests that compare with it will say SKIP" >&2
fi
missing=$(missing_packages | sort -u | tr '\n' ' ')
if [ -n "$missing" ]; then
    echo "deps.sh: installed, but still not usable: $missing" >&2
    exit 1
fi
