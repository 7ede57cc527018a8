#!/bin/bash
# tests/e2e/sdk_test.sh - sdk_test.mjs against build/sibyl serve. Needs node and the npm packages openai and @anthropic-ai/sdk, looked for
# in NODE_PATH (npm install --prefix DIR openai @anthropic-ai/sdk; NODE_PATH=DIR/node_modules); exit status 77 without them.
set -u
BUILD=${BUILD:-build}
cd "$(dirname "$0")/../.." || exit 1
command -v node >/dev/null || { echo "SKIP node is not installed"; exit 77; }
for package in openai @anthropic-ai/sdk; do
    node -e "require('$package')" 2>/dev/null || { echo "SKIP npm package $package is not in NODE_PATH"; exit 77; }
done
out=$(mktemp)
"$BUILD/sibyl" serve --port 0 --json --log warn -m demo/gemma4-demo --draft demo/gemma4-demo-assistant >"$out" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -f "$out"' EXIT
for _ in $(seq 200); do
    port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$out")
    [ -n "$port" ] && break
    kill -0 "$server" 2>/dev/null || { echo "the server did not start"; exit 1; }
    sleep 0.1
done
first=$(head -n 1 demo/pictures/captions.jsonl)
field() { node -e 'console.log(JSON.parse(process.argv[1])[process.argv[2]] ?? "")' "$first" "$1"; }
timeout 60 node tests/e2e/sdk_test.mjs "http://127.0.0.1:$port" "demo/pictures/$(basename "$(field file)")" "$(field question)" "$(field answer)"
