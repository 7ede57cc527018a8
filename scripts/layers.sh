#!/bin/sh
# scripts/layers.sh [SRC] - checks that includes point down: every #include "..." in SRC (default src)
# against SRC/layers.txt. `scripts/layers.sh --self-test` checks that planted violations are found.
#
#   - a folder includes itself, sibyl/ (the public header) and what its line in layers.txt lists
#   - models/X never includes models/Y; headers directly in models/ (family.h) are for all that may include models
#   - families (models/X/...) and drafters (all but the contract drafters/drafter.h) are named
#     outside their folder by engine/registry.c alone
set -eu

check() {
    find "$1" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | sort | (cd "$1" && awk -v root="$1/" '
        function bad(text) { printf "%s:%d: %s\n", file, line, text; violations++ }
        BEGIN {
            while ((getline row < "layers.txt") > 0) {
                if (row ~ /^[ \t]*(#|$)/) continue
                n = split(row, part, /[: \t]+/)
                known[part[1]] = 1
                for (i = 2; i <= n; i++) if (part[i] != "") allowed[part[1], part[i]] = 1
            }
            if (length(known) == 0) { print root "layers.txt: missing or empty"; exit 1 }
        }
        {
            file = $0
            path = substr(file, length(root) + 1)
            split(path, at, "/")
            from = at[1]
            line = 0
            if (path ~ /\// && !(from in known)) {
                bad("folder \"" from "\" is not in layers.txt")
                next
            }
            while ((getline text < path) > 0) {
                line++
                if (text !~ /^[ \t]*#[ \t]*include[ \t]*"/) continue
                split(text, quoted, "\"")
                target = quoted[2]
                if (target !~ /\//) { bad("\"" target "\" does not start with its folder"); continue }
                family = split(target, to, "/") > 2 && to[1] == "models"
                drafter = to[1] == "drafters" && target != "drafters/drafter.h"
                if (target ~ /(^|\/)\.\.?\//)
                    bad("\"" target "\" climbs")
                else if ((family || drafter) && from != to[1] && path != "engine/registry.c")
                    bad("\"" target "\": only engine/registry.c names families and drafters")
                else if (family && from == "models" && at[2] != to[2])
                    bad("\"" target "\": a model does not include another model")
                else if (to[1] != from && to[1] != "sibyl" && !((from, to[1]) in allowed))
                    bad("\"" target "\": " from "/ may not include " to[1] "/")
            }
            close(path)
        }
        END { exit violations > 0 }')
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree/base" "$tree/ops" "$tree/engine" "$tree/models/a" "$tree/models/b" "$tree/drafters" "$tree/stray"
    printf '# comment\nbase:\nops: base\nmodels: base ops\ndrafters: base\nengine: base models drafters\n' >"$tree/layers.txt"
    printf '#include "base/x.h"\n#include "sibyl/sibyl.h"\n#include <stdio.h>\n' >"$tree/ops/good.c"
    printf '#include "models/a/a.h"\n#include "drafters/d.h"\n' >"$tree/engine/registry.c"
    printf '#include "models/family.h"\n#include "drafters/drafter.h"\n' >"$tree/engine/registry.h"
    printf '#include "models/a/a.h"\n#include "models/family.h"\n#include "ops/o.h"\n' >"$tree/models/a/good.c"
    printf '#include "drafters/d.h"\n' >"$tree/drafters/good.c"
    if ! check "$tree"; then
        echo "layers.sh: the self-test's clean tree was refused" >&2
        exit 1
    fi
    printf '#include "ops/o.h"\n' >"$tree/base/up.c"
    printf '\n  # include "models/b/b.h"\n' >"$tree/models/a/other.c"
    printf '#include "models/a/a.h"\n' >"$tree/engine/engine.c"
    printf '#include "models/a/a.h"\n' >"$tree/drafters/model.h"
    printf '#include "base/../ops/o.h"\n' >"$tree/base/climb.h"
    printf '#include "x.h"\n' >"$tree/base/bare.c"
    printf '#include "models/a/a.h"\n' >"$tree/models/top.h"
    printf '#include "base/x.h"\n' >"$tree/stray/s.c"
    found=$(check "$tree" || true)
    for want in base/up.c:1 models/a/other.c:2 engine/engine.c:1 drafters/model.h:1 base/climb.h:1 base/bare.c:1 models/top.h:1 stray/s.c:0; do
        case $found in
        *"$tree/$want:"*) ;;
        *)
            echo "layers.sh: the planted violation $want was not found" >&2
            exit 1
            ;;
        esac
    done
    if [ "$(echo "$found" | wc -l)" -ne 8 ]; then
        printf 'layers.sh: expected 8 violations, found:\n%s\n' "$found" >&2
        exit 1
    fi
}

if [ "${1:-}" = --self-test ]; then self_test; else check "${1:-src}"; fi
