#!/bin/bash
# tests/e2e/server_test.sh - the server as curl sees it: answers, streams, uploads, keys, signals, the log. server_test.py goes deeper.
# Exit status 77 without curl.
set -u
BUILD=${BUILD:-build}
cd "$(dirname "$0")/../.." || exit 1
command -v curl >/dev/null || { echo "SKIP curl is not installed"; exit 77; }
dir=$(mktemp -d)
failed=0
fail() { echo "FAIL $1"; failed=1; }
printf 'first\nsecond\n' >"$dir/keys"
"$BUILD/sibyl" serve --port 0 --json -m demo/gemma4-demo --parallel 2 --api-key-file "$dir/keys" --log-file "$dir/log" --alias test-model >"$dir/out" 2>"$dir/err" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 200); do
    port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$dir/out")
    [ -n "$port" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$dir/err"; echo "the server did not start"; exit 1; }
    sleep 0.1
done
url=http://127.0.0.1:$port
ask='{"model":"test-model","temperature":0,"messages":[{"role":"user","content":"What day comes before Thursday?"}]'
get() { curl -sS --max-time 20 -H 'Authorization: Bearer second' "$@"; }

[ "$(curl -sS "$url/health")" = '{"status": "ok"}' ] || fail "health"
[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/models")" = 401 ] || fail "no key"
get "$url/v1/models" | grep -q '"id":"test-model"' || fail "models"
get "$url/v1/chat/completions" -d "$ask}" | grep -q '"content":"Wednesday comes before Thursday."' || fail "chat"
get -N "$url/v1/chat/completions" -d "$ask,\"stream\":true}" >"$dir/stream"
[ "$(tail -n 2 "$dir/stream" | head -n 1)" = 'data: [DONE]' ] || fail "the stream's end"
[ "$(grep -c '^data: {' "$dir/stream")" -ge 5 ] || fail "the stream's chunks"
get -H 'Transfer-Encoding: chunked' -H 'Content-Type: application/json' "$url/v1/chat/completions" -d "$ask}" | grep -q Wednesday || fail "a chunked upload"
get --http1.0 "$url/v1/chat/completions" -d "$ask}" | grep -q Wednesday || fail "HTTP/1.0"
head -c 3000000 /dev/zero | tr '\0' ' ' >"$dir/big"
printf '%s}' "$ask" >>"$dir/big"
get "$url/v1/chat/completions" --data-binary "@$dir/big" | grep -q Wednesday || fail "a 3 MB body with Expect: 100-continue"
[ "$(get -o /dev/null -w '%{http_code} %{num_connects}\n' "$url/version" -o /dev/null "$url/version" | tr '\n' ';')" = '200 1;200 0;' ] || fail "keep-alive"
[ "$(get -I -o /dev/null -w '%{http_code}' "$url/")" = 200 ] || fail "HEAD"
get "$url/v1/chat/completions" -d '{"messages":[{"role":"user","content":"a"}],"top_k":"x"}' | grep -q '"param":"top_k"' || fail "an error names its field"
get --max-time 0.3 -N "$url/v1/completions" -d '{"prompt":"a","stream":true,"ignore_eos":true,"max_tokens":4000}' >/dev/null 2>&1 # leaves
sleep 0.3
get "$url/metrics" | grep -q 'sibyl_num_requests_running{model="test-model"} 0' || fail "work stops when curl leaves"
if command -v promtool >/dev/null; then
    get "$url/metrics" | promtool check metrics >"$dir/prom" 2>&1 || { cat "$dir/prom"; fail "promtool"; }
fi

grep -q 'POST\|/v1/chat/completions 200' "$dir/log" || fail "the log has the requests"
mv "$dir/log" "$dir/log.1"
kill -HUP "$server"
sleep 0.1
get "$url/v1/models" >/dev/null
grep -q '/v1/models 200' "$dir/log" || fail "SIGHUP opens the log again"
grep -rqs 'Thursday\|second' "$dir/log" "$dir/log.1" && fail "the log has a prompt or a key"
kill -TERM "$server"
wait "$server" || fail "exit status after SIGTERM"

"$BUILD/sibyl" serve --host 0.0.0.0 --port 0 -m demo/gemma4-demo >"$dir/out" 2>"$dir/err" && fail "listens to everybody without a key"
grep -q -- '--api-key' "$dir/err" || fail "and says why not"
"$BUILD/sibyl" serve --port 0 --parallel 0 >/dev/null 2>&1
[ $? -eq 2 ] || fail "a wrong flag"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
