#!/bin/bash
# tests/e2e/cli_test.sh - the program from outside: usage, help, texts, hostile checkpoints, answers.
#
# Run from the repository root after `make`; SIBYL=path tests another build. Prints `ok NAME` or
# `FAIL NAME: why` for each test and `N passed, N failed` at the end; exit status 1 when one failed.
# Needs nothing but the demo checkpoint. Bad checkpoints are the demo folder as symbolic links with
# one file changed.
set -u
export LC_ALL=C
SIBYL=${SIBYL:-build/sibyl}
DEMO=demo/gemma4-demo
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
unset SIBYL_DEMO SIB_TRACE SIB_TRACE_ONLY NO_COLOR
export XDG_STATE_HOME=$TMP/state
passed=0 failed=0

ok() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "FAIL $1: $2"; }

# Runs a command with stdin from $IN (default: nothing); sets rc and the files out and err.
run() { "$@" <"${IN:-/dev/null}" >"$TMP/out" 2>"$TMP/err"; rc=$?; }

# says NAME STATUS PATTERN COMMAND...: fails with STATUS, one sentence that matches PATTERN, no output.
says() {
    local name=$1 status=$2 pattern=$3
    shift 3
    run "$@"
    if [ $rc -ne "$status" ]; then bad "$name" "status $rc, not $status: $(head -c 300 "$TMP/err")"
    elif [ "$(wc -l <"$TMP/err")" -ne 1 ]; then bad "$name" "not one line: $(head -c 300 "$TMP/err")"
    elif ! grep -qE "^sibyl: .*($pattern)" "$TMP/err"; then bad "$name" "the sentence lacks '$pattern': $(cat "$TMP/err")"
    elif [ -s "$TMP/out" ]; then bad "$name" "it printed: $(head -c 100 "$TMP/out")"
    else ok "$name"; fi
}

# prints NAME TEXT COMMAND...: succeeds and prints exactly TEXT and a newline.
prints() {
    local name=$1 text=$2
    shift 2
    run "$@"
    if [ $rc -ne 0 ]; then bad "$name" "status $rc: $(head -c 300 "$TMP/err")"
    elif printf '%s\n' "$text" | cmp -s - "$TMP/out"; then ok "$name"
    else bad "$name" "expected '$text', got '$(head -c 300 "$TMP/out")'"; fi
}

# matches NAME PATTERN COMMAND...: succeeds and a line of the output matches PATTERN.
matches() {
    local name=$1 pattern=$2
    shift 2
    run "$@"
    if [ $rc -ne 0 ]; then bad "$name" "status $rc: $(head -c 300 "$TMP/err")"
    elif grep -qE -- "$pattern" "$TMP/out"; then ok "$name"
    else bad "$name" "no '$pattern' in: $(head -c 300 "$TMP/out")"; fi
}

usage_tests() {
    run "$SIBYL"
    if [ $rc -eq 2 ] && grep -q '^usage:' "$TMP/err"; then ok usage.no_command; else bad usage.no_command "status $rc"; fi
    says usage.unknown_command 2 'unknown command "generat"; did you mean "generate"' "$SIBYL" generat
    says usage.unknown_flag 2 "unknown flag --topk for 'sibyl generate'; did you mean --top-k\\?" "$SIBYL" generate --topk 3
    says usage.far_flag 2 "unknown flag --xyzzy for 'sibyl chat'; 'sibyl chat --help'" "$SIBYL" chat --xyzzy
    says usage.flag_of_another_command 2 "unknown flag --top-k for 'sibyl tokenize'; 'sibyl generate' has it" "$SIBYL" tokenize --top-k 3 x
    says usage.short_flag 2 'unknown flag -z' "$SIBYL" generate -z
    says usage.ambiguous_flag 2 'flag --top of .* may mean --top-. or --top-.' "$SIBYL" generate --top 3
    says usage.value_missing 2 'flag --ctx needs a value N' "$SIBYL" generate -p x --ctx
    says usage.value_unwanted 2 'flag --json takes no value' "$SIBYL" generate --json=1
    says usage.operand 2 'unexpected argument "b"' "$SIBYL" tokenize a b
    says usage.choice 2 '--numerics: "f16" is not one of f32\|bf16\|int8' "$SIBYL" generate -p x --numerics f16
    says usage.not_a_number 2 '--max-tokens: "5x" is not a whole number' "$SIBYL" generate -p x -n 5x
    says usage.empty_number 2 '--max-tokens: "" is not a whole number' "$SIBYL" generate -p x -n ''
    says usage.range 2 '--top-p: 1\.5 is out of range, allowed are 0 to 1' "$SIBYL" generate -p x --top-p 1.5
    says usage.nan 2 '--temp: "nan" is not a number' "$SIBYL" generate -p x --temp nan
    says usage.overflow 2 '--ctx: 99999999999999999999 is out of range' "$SIBYL" generate -p x --ctx 99999999999999999999
    says usage.seed 2 '--seed: "-1" is not a whole number' "$SIBYL" generate -p x --seed -1
    says usage.bias 2 '--logit-bias: "5" is not of the form ID=B' "$SIBYL" generate -p x --logit-bias 5
    says usage.two_prompts 2 '--prompt and --chat exclude each other' "$SIBYL" generate -p x --chat y
    says usage.eval_without_tasks 2 'give --tasks FILE' "$SIBYL" eval
    says usage.help_of_nothing 2 'unknown command "nothing"' "$SIBYL" help nothing
}

help_tests() {
    local commands command flags flag variable man=docs/man/sibyl.1 plain=$TMP/man
    sed 's/\\-/-/g; s/\\f[RIB]//g' "$man" >"$plain"
    matches help.version '^sibyl [0-9]+\.[0-9]+\.[0-9]+$' "$SIBYL" --version
    commands=$("$SIBYL" help | sed -n 's/^  \([a-z]*\) .*/\1/p')
    for command in generate chat serve inspect fit bench doctor tokenize detokenize eval; do
        case " $(echo $commands) " in *" $command "*) ok "help.lists_$command" ;; *) bad "help.lists_$command" "got $commands" ;; esac
    done
    for command in $commands; do
        "$SIBYL" help "$command" >"$TMP/a" 2>&1
        if "$SIBYL" "$command" --help >"$TMP/b" 2>&1 && cmp -s "$TMP/a" "$TMP/b" && grep -q "^usage: sibyl $command" "$TMP/a"; then
            ok "help.$command"
        else
            bad "help.$command" "help and --help differ or fail"
        fi
        for flag in --model --threads --numerics --log --json --help; do
            grep -q -- " $flag" "$TMP/a" || bad "help.common_$command" "no $flag"
        done
        # every flag of the table stands in the manual page as a bold entry
        flags=$(sed -n 's/^  \(-., \|    \)--\([a-z-]*\).*/\2/p' "$TMP/a")
        for flag in $flags; do
            grep -E '^\.(B|BR|TP|BI) ' "$plain" | grep -qE -- "--$flag([^a-z-]|\$)" || bad "man.flag_$flag" "not in $man"
        done
        [ -n "$flags" ] && ok "man.flags_of_$command"
        grep -qE "^\\.B(R)? .*$command" "$plain" && ok "man.command_$command" || bad "man.command_$command" "not in $man"
    done
    for variable in $("$SIBYL" --help-env | sed 's/ .*//'); do
        grep -qE "^\\.BR? .*$variable" "$plain" && ok "man.variable_$variable" || bad "man.variable_$variable" "not in $man"
    done
    run sh -c "'$SIBYL' help >/dev/full"
    if [ $rc -eq 1 ] && grep -q 'standard output cannot be written' "$TMP/err"; then ok help.full_disk; else bad help.full_disk "status $rc"; fi
}

# Expected ids: demo/golden.json, prompts of tasks 1 and 2.
text_tests() {
    local ids='2 5 450 366 30 324 904 365 291 297 492 365 292 295 288 6 30 5 2515 449 30'
    local prompt='<bos><|turn>user
Subtract 17 from 25.<turn|>
<|turn>model
'
    prints tokenize.template "$ids" "$SIBYL" tokenize --ids --chat 'Subtract 17 from 25.'
    prints tokenize.special_text "$ids" "$SIBYL" tokenize --ids "$prompt"
    printf '%s' "$prompt" >"$TMP/prompt"
    IN=$TMP/prompt prints tokenize.stdin "$ids" "$SIBYL" tokenize --ids
    prints tokenize.other '2 5 450 366 30 443 729 546 735 1030 305 6 30 5 2515 449 30' "$SIBYL" tokenize --ids --chat 'What day comes before Thursday?'
    prints tokenize.empty '' "$SIBYL" tokenize --ids ''
    matches tokenize.json '^\{"ids":\[324,904,.*\],"pieces":\["S","ubtract"," ","1","7"\]\}$' "$SIBYL" tokenize --json 'Subtract 17'
    matches tokenize.pieces '^6	"<turn\|>"$' "$SIBYL" tokenize '<turn|>'
    run "$SIBYL" tokenize --ids --plain '<turn|>'
    if [ $rc -eq 0 ] && [ -s "$TMP/out" ] && ! grep -qw 6 "$TMP/out"; then ok tokenize.plain; else bad tokenize.plain "$(cat "$TMP/out" "$TMP/err")"; fi
    prints detokenize.ids 'Subtract 17 from 25.' "$SIBYL" detokenize 324 904 365 291 297 492 365 292 295 288
    prints detokenize.special '<bos><|turn>' "$SIBYL" detokenize --special 2 5
    prints detokenize.json '{"text":"Subtract"}' "$SIBYL" detokenize --json '[324, 904]'
    printf 'na\xc3\xafve \xe2\x82\xac \xf0\x9f\x8e\x89 "quoted"\tand\\n' >"$TMP/text"
    "$SIBYL" tokenize --ids <"$TMP/text" >"$TMP/ids"
    IN=$TMP/ids prints detokenize.round_trip "$(cat "$TMP/text")" "$SIBYL" detokenize
    says detokenize.not_an_id 2 '"x" is not a whole number' "$SIBYL" detokenize 5 x
    says detokenize.range 1 '4096' "$SIBYL" detokenize 4096
    says text.not_utf8_argument 2 '--prompt is not valid UTF-8 at byte 2' "$SIBYL" generate -p $'ab\xff'
    says text.not_utf8_chat 2 '--chat is not valid UTF-8 at byte 0' "$SIBYL" generate --chat $'\xc3('
    says text.not_utf8_tokenize 2 'not valid UTF-8 at byte 1' "$SIBYL" tokenize $'a\xed\xa0\x80'
    printf 'caf\xc3' >"$TMP/cut"
    IN=$TMP/cut says text.not_utf8_stdin 1 'standard input is not valid UTF-8 at byte 3' "$SIBYL" generate -p -
    says image.missing 1 'nope.png: No such file' "$SIBYL" generate --chat x --image nope.png
}

# checkpoint NAME: a folder that is the demo by symbolic links; prints its path.
checkpoint() {
    local dir=$TMP/$1 file
    mkdir "$dir"
    for file in "$DEMO"/*; do ln -s "$PWD/$file" "$dir/"; done
    echo "$dir"
}

# edited NAME FILE SED-SCRIPT: such a folder with FILE edited; fails when the edit changes nothing.
edited() {
    local dir
    dir=$(checkpoint "$1")
    rm "$dir/$2"
    sed "$3" "$DEMO/$2" >"$dir/$2"
    cmp -s "$DEMO/$2" "$dir/$2" && echo "edit of $1 changes nothing" >&2
    echo "$dir"
}

# refuses NAME PATTERN DIR: generate on DIR fails with status 1 and one sentence.
refuses() { says "$1" 1 "$2" "$SIBYL" generate -m "$3" --chat hi -n 1; }

checkpoint_tests() {
    local d weights=model.safetensors size
    matches checkpoint.links '.' "$SIBYL" generate -m "$(checkpoint links)" --chat hi -n 1
    says checkpoint.no_folder 1 "$TMP/nowhere" "$SIBYL" generate -m "$TMP/nowhere" --chat hi
    d=$(checkpoint no_config) && rm "$d/config.json"
    refuses checkpoint.no_config 'config\.json' "$d"
    d=$(checkpoint no_weights) && rm "$d/$weights"
    refuses checkpoint.no_weights 'model\.safetensors' "$d"
    size=$(stat -c %s "$DEMO/$weights")
    for cut in 0 7 8 1000 $((size / 2)) $((size - 1)); do
        d=$(checkpoint cut_$cut) && rm "$d/$weights"
        head -c "$cut" "$DEMO/$weights" >"$d/$weights"
        refuses "checkpoint.weights_cut_at_$cut" 'model\.safetensors' "$d"
    done
    d=$(checkpoint long_header) && rm "$d/$weights"
    { printf '\377\377\377\377\377\377\377\177'; tail -c +9 "$DEMO/$weights"; } >"$d/$weights"
    refuses checkpoint.header_length 'model\.safetensors' "$d"
    d=$(edited header_json "$weights" '1s/{"format":"mlx"}/{"format":"mlx"]/')
    refuses checkpoint.header_json 'model\.safetensors' "$d"
    d=$(edited shape "$weights" '1s/per_layer_projection.weight":{"dtype":"BF16","shape":\[256,32\]/per_layer_projection.weight":{"dtype":"BF16","shape":[32,256]/')
    refuses checkpoint.wrong_shape 'per_layer_projection' "$d"
    d=$(edited dtype "$weights" '1s/model.norm.weight":{"dtype":"BF16"/model.norm.weight":{"dtype":"BF17"/')
    refuses checkpoint.unknown_dtype 'dtype' "$d"
    d=$(edited name "$weights" '1s/layers.0.self_attn.q_proj.weight"/layers.0.self_attn.q_pr0j.weight"/')
    refuses checkpoint.missing_tensor 'q_proj' "$d"
    d=$(edited type config.json 's/"model_type": "gemma4"/"model_type": "gemma9"/')
    refuses checkpoint.unknown_model_type 'gemma9' "$d"
    d=$(edited layers config.json 's/"num_hidden_layers": 8/"num_hidden_layers": 9/')
    refuses checkpoint.more_layers 'num_hidden_layers|layers|layer_types' "$d"
    d=$(edited huge config.json 's/"hidden_size": 256/"hidden_size": 2000000000/')
    refuses checkpoint.huge_hidden_size 'hidden_size|expected|embed_tokens' "$d"
    d=$(edited word config.json 's/"hidden_size": 256/"hidden_size": "256"/')
    refuses checkpoint.hidden_size_text 'hidden_size' "$d"
    d=$(edited json config.json '$d')
    refuses checkpoint.config_json 'config\.json' "$d"
    d=$(edited tokenizer tokenizer.json '$d')
    head -c 5000 "$DEMO/tokenizer.json" >"$d/tokenizer.json"
    refuses checkpoint.tokenizer_cut 'tokenizer\.json' "$d"
    d=$(checkpoint template) && rm "$d/chat_template.jinja" && echo '{% if messages %}never ended' >"$d/chat_template.jinja"
    refuses checkpoint.template 'template' "$d"
    d=$(edited generation generation_config.json 's/"do_sample": false/"do_sample": maybe/')
    refuses checkpoint.generation_config 'generation_config\.json' "$d"
}

answer_tests() {
    prints generate.chat 8 "$SIBYL" generate --chat 'Subtract 17 from 25.'
    echo 'What is 93 + 84?' >"$TMP/question"
    IN=$TMP/question prints generate.stdin 177 "$SIBYL" generate
    prints generate.f32 'Wednesday comes before Thursday.' "$SIBYL" generate --numerics f32 --chat 'What day comes before Thursday?'
    matches generate.json '^\{"text":"8","tokens":\[298,6\],"prompt_tokens":21,.*"finish_reason":"stop".*"timings":\{"load_ms":.*"decode_tps":' \
        "$SIBYL" generate --json --chat 'Subtract 17 from 25.'
    matches generate.length '"tokens":\[291,297\],.*"finish_reason":"length"' "$SIBYL" generate --json -n 2 --chat 'What is 93 + 84?'
    prints generate.stop 'Wednesday comes before ' "$SIBYL" generate --stop Thurs --chat 'What day comes before Thursday?'
    prints generate.special 'Wednesday comes before Thursday.<turn|>' "$SIBYL" generate --special --ignore-eos -n 8 --chat 'What day comes before Thursday?'
    matches generate.bos '"prompt_tokens":3,' "$SIBYL" generate --json -n 1 -p 'Subtract'
    matches generate.bos_once '"prompt_tokens":3,' "$SIBYL" generate --json -n 1 -p '<bos>Subtract'
    "$SIBYL" generate --json --seed 7 --temp 1 -n 20 -p 'The' | sed 's/"timings".*//' >"$TMP/a"
    "$SIBYL" generate --json --seed 7 --temp 1 -n 20 -p 'The' --threads 1 --chunk 1 | sed 's/"timings".*//' >"$TMP/b"
    if [ -s "$TMP/a" ] && cmp -s "$TMP/a" "$TMP/b"; then ok generate.same_seed_same_tokens; else bad generate.same_seed_same_tokens "$(cat "$TMP/a" "$TMP/b")"; fi
    matches generate.picture '"text":"square"' "$SIBYL" generate --json --image demo/pictures/01_384x384.png --chat 'Which shape is purple?'
    says generate.picture_damaged 1 'config\.json|PNG|picture|image' "$SIBYL" generate --image "$DEMO/config.json" --chat x
    says generate.context 1 'ctx|context|positions' "$SIBYL" generate --ctx 8 --chat 'What is 93 + 84?'
    run "$SIBYL" generate --trace "$TMP/trace" -n 1 --chat 'What is 93 + 84?'
    if [ $rc -eq 0 ] && grep -q logits "$TMP/trace"; then ok generate.trace; else bad generate.trace "status $rc: $(cat "$TMP/err")"; fi
    run timeout --preserve-status -s INT 0.7 "$SIBYL" generate --numerics f32 --ignore-eos --ctx 4096 -p 'The'
    if [ $rc -eq 130 ] && [ -s "$TMP/out" ]; then ok generate.interrupt; else bad generate.interrupt "status $rc"; fi

    printf 'Subtract 17 from 25.\n/undo\nWhat is 93 + 84?\n' >"$TMP/lines"
    IN=$TMP/lines prints chat.turns $'8\n177' "$SIBYL" chat
    printf 'Subtract 17 \\\nfrom 25.\n/save %s\n/reset\n/load %s\n/quit\nnever\n' "$TMP/talk" "$TMP/talk" >"$TMP/lines"
    IN=$TMP/lines matches chat.save_load '"role":"user","content":"Subtract 17 \\nfrom 25\."\},\{"role":"assistant".*"turns":1\}' "$SIBYL" chat --json
    if [ "$(stat -c %a "$TMP/talk")" = 600 ]; then ok chat.private_file; else bad chat.private_file "mode $(stat -c %a "$TMP/talk")"; fi
    printf '/image demo/pictures/01_384x384.png\nWhich shape is purple?\n' >"$TMP/lines"
    IN=$TMP/lines prints chat.picture square "$SIBYL" chat
    printf '/nonsense\n' >"$TMP/lines"
    IN=$TMP/lines says chat.unknown_command 1 'unknown command "/nonsense"' "$SIBYL" chat
    printf '/set temp warm\n' >"$TMP/lines"
    IN=$TMP/lines says chat.bad_setting 1 '--temp: "warm" is not a number' "$SIBYL" chat
    printf '/load %s\n' "$DEMO/config.json" >"$TMP/lines"
    IN=$TMP/lines says chat.load_other_json 1 'config\.json: key "messages"' "$SIBYL" chat

    matches eval.ids '"tasks":6,"correct":6,.*"ids_compared":6,"ids_equal":6,.*"prompt_mismatches":\[\]' \
        "$SIBYL" eval --numerics f32 --limit 6 --tasks demo/tasks.jsonl --expect-ids demo/golden.json --json
    matches eval.picture_ids '"tasks":4,.*"ids_compared":4,"ids_equal":4,' \
        "$SIBYL" eval --numerics f32 --limit 4 --pictures demo/pictures/captions.jsonl --expect-ids demo/golden.json --json
    echo '{"question": "Subtract 17 from 25.", "answer": "9", "prompt": "other"}' >"$TMP/tasks"
    run "$SIBYL" eval --tasks "$TMP/tasks"
    if [ $rc -eq 1 ] && grep -q '0 of 1 correct' "$TMP/out" && grep -q 'got "8"' "$TMP/out"; then ok eval.wrong; else bad eval.wrong "status $rc: $(cat "$TMP/out")"; fi
    echo '{"question": "x"}' >"$TMP/tasks"
    says eval.no_answer 1 'question 1: key "answer" is missing' "$SIBYL" eval --tasks "$TMP/tasks"
    printf '\n{"question"\n' >"$TMP/tasks"
    says eval.bad_line 1 'line 2' "$SIBYL" eval --tasks "$TMP/tasks"
    says eval.no_ids 1 'golden.json: no expected token ids for "diffusion-gemma-demo"' \
        "$SIBYL" eval -m demo/diffusion-gemma-demo --tasks demo/tasks.jsonl --expect-ids demo/golden.json
}

report_tests() {
    local dir
    for dir in demo/gemma4-demo demo/gemma4-demo-assistant demo/diffusion-gemma-demo; do
        matches "inspect.$(basename $dir)" '^family|^kind|^drafter' "$SIBYL" inspect "$dir"
        matches "inspect.json_$(basename $dir)" '^\{.*\}$' "$SIBYL" inspect "$dir" --json
    done
    says inspect.no_folder 1 "$TMP/nowhere" "$SIBYL" inspect "$TMP/nowhere"
    matches fit.text 'MiB|KiB' "$SIBYL" fit --ctx 1000 --parallel 2
    matches doctor.json '"same_text": ?true' "$SIBYL" doctor -m demo/gemma4-demo --draft demo/gemma4-demo-assistant -n 16 --ctx 512 --json
    says doctor.no_drafter 1 'needs a model and a drafter folder' "$SIBYL" doctor -m demo/gemma4-demo
    says doctor.wrong_pair 1 'DSpark drafter was made for a target with' "$SIBYL" doctor -m demo/gemma4-demo --draft tests/golden/cases/dspark-own
    says dspark.as_model 1 'holds a drafter .dspark., which cannot answer alone' "$SIBYL" generate -m tests/golden/cases/dspark-own -p x
    matches fit.json '^\{.*\}$' "$SIBYL" fit --ctx 1000 --parallel 2 --json
}

usage_tests
help_tests
text_tests
checkpoint_tests
answer_tests
report_tests
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
