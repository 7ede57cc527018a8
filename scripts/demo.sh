#!/bin/bash
# scripts/demo.sh - what `make demo` shows: text, speculation, a picture, block diffusion, on the
# checkpoints under demo/. Each command is printed before it runs, so that it can be tried alone.
set -eu
sibyl=${BUILD:-build}/sibyl

show() {
    printf '\n$ sibyl'
    for a in "$@"; do
        case $a in
        *[!A-Za-z0-9_./-]*) printf " '%s'" "$a" ;;
        *) printf ' %s' "$a" ;;
        esac
    done
    printf '\n'
    "$sibyl" "$@"
}

target=demo/gemma4-demo
show generate -m $target --temp 0 --chat 'What are you?'
show generate -m $target --temp 0 --chat 'Answer in JSON with name, age and city. My friend Hugo from Boston is 45.' \
    --draft demo/gemma4-demo-assistant
show generate -m $target --temp 0 --image demo/pictures/01_384x384.png --chat 'Which shape is purple?'
show generate -m demo/diffusion-gemma-demo --seed 0 --chat 'What day comes before Thursday?'
show eval -m $target --tasks demo/tasks.jsonl --draft demo/gemma4-demo-assistant
printf '\nTry: %s chat\n' "$sibyl"
