#!/usr/bin/env python3
"""Largest logit error of transformers in bfloat16 against the float32 golden cases: the yardstick of docs/NUMERICS.md.

usage: transformers_bf16.py CASE...      needs torch (CPU) and transformers 5.17 (PyPI); cases with text logits only

Prints for each case and attention implementation the largest absolute difference of prefill.logits and greedy.logits
(the reference's own tokens are fed, with a cache, one at a time).
"""
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file

torch.set_num_threads(1)


def errors(model, expected, prefix):
    ids = expected[prefix + "input_ids"].long()
    tokens = expected[prefix + "greedy.tokens"].long()
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True)
        prefill = (out.logits.float()[0] - expected[prefix + "prefill.logits"][0]).abs().max().item()
        greedy = (out.logits.float()[0, -1] - expected[prefix + "greedy.logits"][0]).abs().max().item()
        for i in range(len(tokens) - 1):
            out = model(input_ids=tokens[None, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
            greedy = max(greedy, (out.logits.float()[0, -1] - expected[prefix + "greedy.logits"][i + 1]).abs().max().item())
    return prefill, greedy


for case in sys.argv[1:]:
    config = json.load(open(os.path.join(case, "config.json")))
    expected = load_file(os.path.join(case, "expected.safetensors"))
    kind = getattr(transformers, config["architectures"][0])
    for attention in ("eager", "sdpa"):
        model = kind.from_pretrained(case, dtype=torch.bfloat16, attn_implementation=attention).eval()
        for prefix in ("", "text."):
            if prefix + "greedy.tokens" in expected:
                prefill, greedy = errors(model, expected, prefix)
                print(f"{os.path.basename(case.rstrip('/'))} {attention} prefill {prefill:.4g} greedy {greedy:.4g}", flush=True)
