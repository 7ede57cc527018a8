#!/usr/bin/env python3
"""The server over plain sockets: answers, streams, errors, clients that leave, hostile requests, many at once.

Needs only python3. Starts build/sibyl serve on a free port with the demo checkpoint and stops it with SIGTERM.
Environment: BUILD (output folder). Exit status 0: all checks passed.
"""
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
DEMO = os.path.join(ROOT, "demo")
QUESTION = "What day comes before Thursday?"
ANSWER = "Wednesday comes before Thursday."
failures = []
checks = 0


def check(ok, what):
    global checks
    checks += 1
    if not ok:
        failures.append(what)
        print("FAIL", what, flush=True)


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "sibyl"), "serve", "--port", "0", "--json", "--log", "warn", "-m", os.path.join(DEMO, "gemma4-demo"), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the server did not start: " + self.process.stderr.read())
        self.port = json.loads(line)["port"]

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def call(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        c.request(method, path, data, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        try:
            return r.status, json.loads(text), r
        except ValueError:
            return r.status, text.decode(errors="replace"), r

    def post(self, path, body, headers=None):
        return self.call("POST", path, body, headers)

    def metric(self, name):
        for line in self.call("GET", "/metrics")[1].splitlines():
            if line.startswith(name):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def idle(self, seconds=5.0):
        """Waits until nothing runs; the time it took, or None."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if self.metric("sibyl_num_requests_running") + self.metric("sibyl_num_requests_waiting") == 0:
                return time.monotonic() - start
            time.sleep(0.02)
        return None

    def alive(self):
        return self.process.poll() is None and self.call("GET", "/health")[0] == 200

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = -9
        err = self.process.stderr.read()
        return code, err


def chat(text=QUESTION, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def events(server, path, body, headers=None):
    """(event name, data) of a stream."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("POST", path, json.dumps(body), headers or {})
    r = c.getresponse()
    out = []
    name = None
    for raw in r.read().decode().split("\n"):
        if raw.startswith("event: "):
            name = raw[7:]
        elif raw.startswith("data: "):
            out.append((name, raw[6:] if raw[6:] == "[DONE]" else json.loads(raw[6:])))
            name = None
    c.close()
    return r, out


def raw(server, data, shutdown=False, timeout=5.0):
    """Sends bytes and reads until the end or the time is up."""
    s = server.connect()
    s.settimeout(timeout)
    try:
        s.sendall(data)
        if shutdown:
            s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    out = b""
    try:
        while True:
            b = s.recv(65536)
            if not b:
                break
            out += b
    except OSError:
        pass
    s.close()
    return out


def request(path, body, extra=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


# ---- answers ------------------------------------------------------------------------------------------------


def test_chat(s):
    status, a, _ = s.post("/v1/chat/completions", chat())
    check(status == 200 and a["choices"][0]["message"]["content"] == ANSWER, f"chat answers: {a}")
    check(a["choices"][0]["finish_reason"] == "stop", "chat finish_reason")
    u = a["usage"]
    check(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and u["completion_tokens"] > 3, f"usage adds up: {u}")
    status, b, _ = s.post("/v1/chat/completions", chat())
    check(b["usage"]["prompt_tokens_details"]["cached_tokens"] == u["prompt_tokens"] - 1, "a repeated prompt is reused")
    status, b, _ = s.post("/v1/chat/completions", chat(cache_prompt=False))
    check(b["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and b["choices"][0]["message"]["content"] == ANSWER, "cache_prompt false computes all")
    status, b, _ = s.post("/chat/completions", chat(max_tokens=2))
    check(b["choices"][0]["finish_reason"] == "length" and b["usage"]["completion_tokens"] == 2, f"max_tokens: {b}")
    status, b, _ = s.post("/v1/chat/completions", chat(stop=["before", "zzz"]))
    check(b["choices"][0]["message"]["content"] == "Wednesday comes " and b["choices"][0]["stop_reason"] == "before", f"stop: {b['choices']}")
    status, b, _ = s.post("/v1/chat/completions", chat(stop="before", include_stop_str_in_output=True))
    check(b["choices"][0]["message"]["content"] == "Wednesday comes before", "include_stop_str_in_output")
    status, b, _ = s.post("/v1/chat/completions", chat(n=3))
    check([c["message"]["content"] for c in b["choices"]] == [ANSWER] * 3 and [c["index"] for c in b["choices"]] == [0, 1, 2], f"n: {b}")
    texts = {json.dumps(s.post("/v1/chat/completions", chat(temperature=1.5, seed=7, max_tokens=12))[1]["choices"][0]["message"]) for _ in range(3)}
    check(len(texts) == 1, f"a seed repeats: {texts}")
    status, b, _ = s.post("/v1/chat/completions", chat(num_draft_tokens=0))
    check(b["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0 and b["choices"][0]["message"]["content"] == ANSWER, "drafting off")
    body = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Wednesday comes"}], "continue_final_message": True, "temperature": 0}
    status, b, _ = s.post("/v1/chat/completions", body)
    check(b["choices"][0]["message"]["content"].strip() == "before Thursday.", f"continue_final_message: {b}")


def test_stream(s):
    r, e = events(s, "/v1/chat/completions", chat(stream=True, stream_options={"include_usage": True}))
    check(r.getheader("content-type", "").startswith("text/event-stream"), "stream content type")
    data = [d for _, d in e]
    check(data[-1] == "[DONE]", "stream ends with [DONE]")
    check(data[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, "first chunk has the role")
    check("".join(d["choices"][0]["delta"].get("content", "") for d in data[:-2]) == ANSWER, "stream text")
    check(data[-2]["choices"] == [] and data[-2]["usage"]["completion_tokens"] > 3 and "timings" in data[-2], "usage chunk")
    check(data[-3]["choices"][0]["finish_reason"] == "stop" and data[-3]["choices"][0]["delta"] == {}, "finish chunk")
    check(len({d["id"] for d in data[:-1]}) == 1, "one id for all chunks")
    r, e = events(s, "/v1/chat/completions", chat(stream=True))
    check(all("usage" not in d for _, d in e[:-1]) and "timings" in e[-2][1], "no usage unless asked, timings on the last chunk")
    r, e = events(s, "/v1/chat/completions", chat(stream=True, stop="before"))
    check("".join(d["choices"][0]["delta"].get("content", "") for _, d in e[:-1]) == "Wednesday comes ", "stop in a stream")
    r, e = events(s, "/v1/completions", {"prompt": "Hello", "stream": True, "max_tokens": 4})
    check(e[-1][1] == "[DONE]" and e[0][1]["object"] == "text_completion", "raw stream")


def test_logprobs(s):
    for draft in (0, 4):
        _, a, _ = s.post("/v1/chat/completions", chat(logprobs=True, top_logprobs=2, num_draft_tokens=draft))
        entries = a["choices"][0]["logprobs"]["content"]
        check("".join(x["token"] for x in entries) == ANSWER, f"logprobs cover the text: {[x['token'] for x in entries]}")
        check(all(x["logprob"] < 0 and len(x["top_logprobs"]) == 2 and x["top_logprobs"][0]["logprob"] >= x["top_logprobs"][1]["logprob"] for x in entries), "logprob values")
        check(b"".join(bytes(x["bytes"]) for x in entries).decode() == ANSWER, "logprob bytes")
        if draft:
            check(same == entries, "logprobs do not depend on drafts")
        same = entries
    _, a, _ = s.post("/v1/chat/completions", chat(logprobs=True, stop="before"))
    check("".join(x["token"] for x in a["choices"][0]["logprobs"]["content"]).startswith("Wednesday comes"), "logprobs are cut with the text")
    check(len(a["choices"][0]["logprobs"]["content"]) < len(same), "no logprobs behind a stop string")
    _, a, _ = s.post("/v1/completions", {"prompt": "Hello", "max_tokens": 3, "logprobs": 2, "temperature": 0})
    l = a["choices"][0]["logprobs"]
    check(len(l["tokens"]) == len(l["token_logprobs"]) == len(l["text_offset"]) == len(l["top_logprobs"]), f"legacy logprobs: {l}")


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "set_timer", "description": "Set a timer in minutes.", "parameters": {
        "type": "object", "properties": {"minutes": {"type": "string"}}, "required": ["minutes"]}}}]


def test_tools(s):
    ask = chat("How is the weather in Boston today?", tools=TOOLS)
    _, a, _ = s.post("/v1/chat/completions", ask)
    c = a["choices"][0]
    check(c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, f"tool call: {c}")
    call = c["message"]["tool_calls"][0]
    check(call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"]) == {"city": "Boston"}, "tool arguments")
    r, e = events(s, "/v1/chat/completions", {**ask, "stream": True})
    deltas = [d["choices"][0]["delta"]["tool_calls"][0] for _, d in e[:-1] if d["choices"] and "tool_calls" in d["choices"][0]["delta"]]
    check(deltas[0]["function"]["name"] == "get_weather" and "name" not in deltas[1]["function"], "tool deltas")
    check(json.loads("".join(d["function"]["arguments"] for d in deltas)) == {"city": "Boston"}, "streamed arguments")
    _, a, _ = s.post("/v1/chat/completions", {**ask, "tool_choice": {"type": "function", "function": {"name": "set_timer"}}, "max_tokens": 40})
    calls = a["choices"][0]["message"].get("tool_calls", [])
    check(all(x["function"]["name"] == "set_timer" for x in calls), f"a forced call: {a['choices']}")
    _, a, _ = s.post("/v1/chat/completions", {**ask, "tool_choice": "none"})
    check("tool_calls" not in a["choices"][0]["message"], "tool_choice none")
    status, a, _ = s.post("/v1/chat/completions", chat(tool_choice="required"))
    check(status == 400 and a["error"]["param"] == "tool_choice", "required without tools")
    turn = {"messages": [{"role": "user", "content": "How is the weather in Boston today?"}, {"role": "assistant", "content": None, "tool_calls": [{**call, "id": None}]},
                         {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}], "tools": TOOLS, "max_tokens": 8}
    status, a, _ = s.post("/v1/chat/completions", turn)
    check(status == 200, f"a tool result goes back: {a}")


def test_messages(s):
    body = {"model": "default", "max_tokens": 50, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]}
    status, a, _ = s.post("/v1/messages?beta=true", body)
    check(status == 200 and a["content"] == [{"type": "text", "text": ANSWER}] and a["stop_reason"] == "end_turn", f"messages: {a}")
    status, n, _ = s.post("/v1/messages/count_tokens", body)
    check(n["input_tokens"] == a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"], f"count_tokens: {n} {a['usage']}")
    r, e = events(s, "/v1/messages", {**body, "stream": True})
    names = [x for x, _ in e]
    check(names[:2] == ["message_start", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"], f"event order: {names}")
    check("".join(d["delta"]["text"] for x, d in e if x == "content_block_delta") == ANSWER, "messages stream text")
    check(e[0][1]["message"]["usage"]["input_tokens"] + e[0][1]["message"]["usage"]["cache_read_input_tokens"] > 0, "message_start has the prompt's tokens")
    status, a, _ = s.post("/v1/messages", {**body, "stop_sequences": ["before"]})
    check(a["stop_reason"] == "stop_sequence" and a["stop_sequence"] == "before", "stop_sequence")
    tools = [{"name": "get_weather", "description": "Get the weather of a city.", "input_schema": TOOLS[0]["function"]["parameters"]},
             {"name": "set_timer", "description": "Set a timer in minutes.", "input_schema": TOOLS[1]["function"]["parameters"]}]
    ask = {**body, "tools": tools, "messages": [{"role": "user", "content": "How is the weather in Boston today?"}]}
    status, a, _ = s.post("/v1/messages", ask)
    check(a["stop_reason"] == "tool_use" and a["content"][0]["input"] == {"city": "Boston"}, f"tool_use: {a}")
    r, e = events(s, "/v1/messages", {**ask, "stream": True})
    check("".join(d["delta"]["partial_json"] for x, d in e if x == "content_block_delta") == '{"city":"Boston"}', "input_json_delta")
    back = {**ask, "messages": ask["messages"] + [{"role": "assistant", "content": a["content"]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": a["content"][0]["id"], "content": [{"type": "text", "text": "sunny"}]}, {"type": "text", "text": "Thanks."}]}], "max_tokens": 4}
    status, a, _ = s.post("/v1/messages", back)
    check(status == 200, f"tool_result: {a}")
    status, a, _ = s.post("/v1/messages", {"messages": []})
    check(status == 400 and a["type"] == "error" and a["error"]["type"] == "invalid_request_error", f"messages error: {a}")


def test_responses(s):
    status, a, _ = s.post("/v1/responses", {"input": QUESTION, "temperature": 0})
    check(status == 200 and a["status"] == "completed" and a["output"][0]["content"][0]["text"] == ANSWER, f"responses: {a}")
    status, g, _ = s.call("GET", "/v1/responses/" + a["id"])
    check(status == 200 and g["output"] == a["output"], "a stored response")
    status, b, _ = s.post("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "What day comes before Friday?"}]}], "previous_response_id": a["id"], "temperature": 0})
    check(status == 200 and b["usage"]["input_tokens"] > 2 * a["usage"]["input_tokens"] and b["previous_response_id"] == a["id"], f"previous_response_id: {b}")
    check(b["usage"]["input_tokens_details"]["cached_tokens"] >= a["usage"]["input_tokens"], "the next turn reuses the first")
    check(s.call("DELETE", "/v1/responses/" + a["id"])[0] == 200 and s.call("GET", "/v1/responses/" + a["id"])[0] == 404, "delete")
    check(s.post("/v1/responses", {"input": "x", "previous_response_id": "resp_none"})[0] == 404, "unknown previous_response_id")
    r, e = events(s, "/v1/responses", {"input": QUESTION, "temperature": 0, "stream": True})
    names = [x for x, _ in e]
    check(names[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"] and names[-1] == "response.completed", f"events: {names}")
    check([d["sequence_number"] for _, d in e] == list(range(len(e))), "sequence numbers")
    check(e[-1][1]["response"]["output"][0]["content"][0]["text"] == ANSWER, "completed has the text")
    flat = [{"type": "function", **t["function"]} for t in TOOLS]
    status, a, _ = s.post("/v1/responses", {"input": "How is the weather in Boston today?", "temperature": 0, "tools": flat})
    check(a["output"][0]["type"] == "function_call" and json.loads(a["output"][0]["arguments"]) == {"city": "Boston"}, f"function_call: {a['output']}")
    status, a, _ = s.post("/v1/responses", {"input": QUESTION, "max_output_tokens": 2})
    check(a["status"] == "incomplete" and a["incomplete_details"]["reason"] == "max_output_tokens", "incomplete")


def test_pictures(s):
    with open(os.path.join(DEMO, "pictures", "captions.jsonl")) as f:
        first = json.loads(f.readline())
    name = first.get("file") or first.get("picture")
    with open(os.path.join(DEMO, "pictures", os.path.basename(name)), "rb") as f:
        data = base64.b64encode(f.read()).decode()
    url = "data:image/png;base64," + data
    text = first.get("question", "What is in the picture?")
    _, a, _ = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]}], "temperature": 0, "max_tokens": 60})
    got = a["choices"][0]["message"]["content"] if "choices" in a else a
    check(got == first["answer"], f"a picture: {got} instead of {first['answer']}")
    _, b, _ = s.post("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, {"type": "text", "text": text}]}], "temperature": 0, "max_tokens": 60})
    check(b.get("content", [{}])[0].get("text") == first["answer"], f"a picture in messages: {b}")
    bad = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}]}]}
    for stream in (False, True):
        status, a, _ = s.post("/v1/chat/completions", {**bad, "stream": stream})
        check(status == 400, f"bytes that are no picture: {status} {a}")
    bad["messages"][0]["content"][0]["image_url"]["url"] = "http://example.com/x.png"
    check(s.post("/v1/chat/completions", bad)[0] == 400, "a remote picture is not fetched")


def test_structured(s):
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "age"], "additionalProperties": False}
    fmt = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}
    for temperature in (0, 1.5):
        texts = []
        for draft in (0, 4):
            _, a, _ = s.post("/v1/chat/completions", chat("Who are you?", temperature=temperature, seed=5, max_tokens=400, response_format=fmt, num_draft_tokens=draft))
            texts.append(a["choices"][0]["message"]["content"])
            o = json.loads(texts[-1])
            check(isinstance(o["name"], str) and isinstance(o["age"], int) and set(o) <= {"name", "age", "tags"}, f"valid: {o}")
            check(a["choices"][0]["finish_reason"] == "stop", "a whole document ends the answer")
        check(texts[0] == texts[1], f"drafts do not change a structured answer: {texts}")
    _, a, _ = s.post("/v1/chat/completions", chat("Hello!", response_format={"type": "json_object"}, max_tokens=60))
    check(a["choices"][0]["message"]["content"].startswith("{"), "json_object")
    _, a, _ = s.post("/v1/completions", {"prompt": "Hello", "guided_regex": "(yes|no) [0-9]{2}", "seed": 1})
    check(a["choices"][0]["text"][-3] == " " and a["choices"][0]["text"][:2] in ("ye", "no"), f"regex: {a['choices']}")
    _, a, _ = s.post("/v1/responses", {"input": "Hello!", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "boolean"}}}})
    check(a["output"][0]["content"][0]["text"] in ("true", "false"), "text.format")
    _, a, _ = s.post("/v1/chat/completions", chat("How is the weather in Boston today?", tools=TOOLS, response_format=fmt))
    check(a["choices"][0]["finish_reason"] == "tool_calls", "a call instead of the document, where there are tools")
    for f, word in (({"type": "xml"}, "xml"), ({"type": "json_schema"}, "schema"), ({"type": "json_schema", "schema": {"type": "number", "multipleOf": 2}}, "multipleOf")):
        status, a, _ = s.post("/v1/chat/completions", chat(response_format=f))
        check(status == 400 and word in a["error"]["message"] and a["error"]["param"] == "response_format", f"{f}: {a}")
    for pattern in ("(" * 60000, "a{1000}" * 500, "(?=x)"):
        check(s.post("/v1/chat/completions", chat(guided_regex=pattern))[0] == 400, f"pattern {pattern[:12]}")
    check(s.post("/v1/chat/completions", chat(guided_regex="a", response_format=fmt))[0] == 400, "two formats")


def test_text_routes(s):
    _, a, _ = s.post("/tokenize", {"content": "Hello there", "with_pieces": True})
    ids = [t["id"] for t in a["tokens"]]
    check(s.post("/detokenize", {"tokens": ids})[1]["content"] == "Hello there", "tokenize and back")
    check("<|turn>user" in s.post("/apply-template", chat())[1]["prompt"], "apply-template")
    plain, marked = (s.post("/v1/chat/completions", chat(t, max_tokens=1))[1]["usage"]["prompt_tokens"] for t in ("a", "a<turn|>"))
    check(marked > plain + 1, "a special token in a message stays text")
    status, a, _ = s.post("/v1/chat/completions", chat("<|image|>", max_tokens=1))
    check(status == 200, f"nor does a message make a place for a picture: {a}")
    check(s.call("GET", "/v1/models")[1]["data"][0]["id"] == "gemma4-demo", "models")
    check(s.call("GET", "/v1/models/gemma4-demo")[1]["id"] == "gemma4-demo" and s.call("GET", "/v1/models/other")[0] == 404, "one model")
    status, text, r = s.call("GET", "/")
    check(status == 200 and "<" in text and "default-src 'none'" in r.getheader("content-security-policy"), "the page")
    check(s.call("GET", "/health")[1] == {"status": "ok"}, "health")
    for path in ("/props", "/slots", "/stats", "/version"):
        check(s.call("GET", path)[0] == 200, path)
    _, text, _ = s.call("GET", "/metrics")
    families = [l.split()[2] for l in text.splitlines() if l.startswith("# TYPE")]
    check(len(families) == len(set(families)) and "sibyl_time_to_first_token_seconds" in families, "metrics families")
    _, a, _ = s.post("/v1/completions", {"prompt": "<|turn>user\n" + QUESTION + "<turn|>\n<|turn>model\n", "temperature": 0})
    check(a["choices"][0]["text"] == ANSWER, f"raw completion: {a}")
    _, a, _ = s.post("/v1/completions", {"prompt": ids, "max_tokens": 1})
    check(a["usage"]["prompt_tokens"] == len(ids), "a prompt of ids")


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_errors(s):
    cases = [
        ("{", None), ('{"messages":[]}', "messages"), ('{"messages":5}', "messages"), ('{"messages":[{"role":"x","content":"a"}]}', "messages"),
        ('{"messages":[{"role":"user"}]}', "messages"), ('[1]', None), ('{"a":NaN}', None), ('{"messages":[{"role":"user","content":"a"}],"messages":[]}', None),
        (json.dumps(chat(temperature="hot")), "temperature"), (json.dumps(chat(temperature=-1)), "temperature"), (json.dumps(chat(max_tokens=0)), "max_tokens"),
        (json.dumps(chat(top_k=1.5)), "top_k"), (json.dumps(chat(logit_bias={"x": 1})), "logit_bias"), (json.dumps(chat(logit_bias={"99999999": 1})), "logit_bias"),
        (json.dumps(chat(stop=[1])), "stop"), (json.dumps(chat(stop=["a"] * 17)), "stop"), (json.dumps(chat(n=0)), "n"), (json.dumps(chat(n=17)), "n"),
        (json.dumps(chat(top_logprobs=3)), "top_logprobs"), (json.dumps(chat(logprobs=True, top_logprobs=21)), "top_logprobs"), (json.dumps(chat(unheard_of=1)), "unheard_of"),
        (json.dumps(chat(dry_multiplier=0.8)), "dry_multiplier"), (json.dumps(chat(draft_model="other")), "draft_model"), (json.dumps(chat(tools=5)), "tools"),
        (json.dumps(chat(chat_template_kwargs={"messages": []})), "chat_template_kwargs"), (json.dumps(chat(reasoning_effort="huge")), "reasoning_effort"),
        (json.dumps({"messages": [{"role": "user", "content": [{"type": "video"}]}]}), "messages"), (json.dumps(chat(adapters="x")), "adapters"),
    ]
    for body, param in cases:
        status, a, _ = s.post("/v1/chat/completions", body.encode())
        check(status == 400 and a["error"]["param"] == param and a["error"]["type"] == "invalid_request_error", f"{body[:80]}: {status} {a}")
    status, a, _ = s.post("/v1/chat/completions", chat(model="other"))
    check(status == 404 and a["error"]["code"] == "model_not_found", "unknown model")
    ok = chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto", top_k=5.0, stop=None, dry_multiplier=0, typical_p=1)
    check(s.post("/v1/chat/completions", ok)[0] == 200, "bookkeeping fields are accepted")
    status, a, r = s.post("/v1/chat/completions", chat("word " * 10000))
    check(status == 400 and a["error"]["code"] == "context_length_exceeded" and "4096" in a["error"]["message"], f"a 50 kB prompt: {status} {a}")
    check(r.getheader("x-should-retry") == "false", "a prompt that never fits is not retried")
    check(s.call("GET", "/nowhere")[0] == 404 and s.call("GET", "/v1/embeddings")[0] == 404, "unknown path")
    status, _, r = s.call("GET", "/v1/chat/completions")
    check(status == 405 and "POST" in r.getheader("allow"), "wrong method")
    check(s.call("GET", "/health", headers={"Origin": "http://evil.example"})[0] == 403, "a foreign origin")
    check(s.call("GET", "/health", headers={"Host": "evil.example"})[0] == 403, "a foreign host name")
    check(s.call("GET", "/", headers={"Origin": f"http://127.0.0.1:{s.port}"})[0] == 200, "the page's own origin")


def test_hostile(s):
    def status(data, **more):
        head = raw(s, data, **more).split(b"\r\n", 1)[0].split(b" ")
        return int(head[1]) if len(head) > 1 else 0

    good = request("/v1/chat/completions", chat())
    check(status(b"GET / HTTP/1.1\n\n") == 400, "bare line feeds")
    check(status(b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n") == 400, "two blanks")
    check(status(b"\x16\x03\x01\x02\x00\x01\x00\n") == 400, "a TLS hello")
    check(status(b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n") == 505, "HTTP/2.0")
    check(status(b"GET / HTTP/1.1\r\n\r\n") == 400, "no Host")
    check(status(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n") == 400, "two Hosts")
    check(status(b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n") == 400, "a blank before the colon")
    check(status(b"GET /health HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n") == 400, "a folded line")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n") == 411, "no length")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") == 400, "two framings")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef") == 400, "two lengths")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nabcde") == 400, "a signed length")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n") == 413, "a huge length")
    check(status(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n") == 501, "another encoding")
    for chunk in (b"zz\r\n", b"5\r\nabcdefgh\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"\r\n", b"5;" + b"x" * 999):
        check(status(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk) in (400, 413), f"chunk {chunk[:20]}")
    check(status(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: " + b"y" * 40000 + b"\r\n\r\n") == 431, "a huge head")
    check(status(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 200 + b"\r\n") == 431, "200 header lines")
    deep = b"[" * 60000 + b"]" * 60000
    check(status(request("/v1/chat/completions", b'{"messages":' + deep + b"}", "Connection: close\r\n")) == 400, "60,000-deep JSON")
    big = request("/v1/chat/completions", b'{"messages":[{"role":"user","content":"' + b"a" * 10_000_000 + b'"}]}', "Connection: close\r\n")
    check(status(big, timeout=20) == 400, "a 10 MB body")
    big = request("/v1/chat/completions", b"\x00" * 10_000_000, "Connection: close\r\n")
    check(status(big, timeout=20) == 400, "10 MB of zeros")
    # slow but honest: one byte at a time
    c = s.connect()
    for i in range(len(good)):
        c.sendall(good[i:i + 1])
    check(b"200 OK" in c.recv(65536), "one byte at a time")
    c.close()
    chunked = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = b'{"content":"Hello"}'
    chunked += b"".join(b"1;x=y\r\n" + body[i:i + 1] + b"\r\n" for i in range(len(body))) + b"0\r\nTrailer: x\r\n\r\n"
    check(b'"tokens"' in raw(s, chunked), "chunks of one byte")
    # pipelining: three requests in one write, answered in order
    three = request("/tokenize", {"content": "Hello"}) + good + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    out = raw(s, three)
    check(out.count(b"HTTP/1.1 200") == 3 and out.index(b'"tokens"') < out.index(b"Wednesday") < out.index(b'"status"'), "pipelined requests")
    check(b"200 OK" in raw(s, b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), "empty lines before a request")
    out = raw(s, b"GET /health HTTP/1.0\r\n\r\n")
    check(b"200 OK" in out and b"Connection: close" in out, "HTTP/1.0")
    out = raw(s, b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(json.dumps(chat(stream=True))) + json.dumps(chat(stream=True)).encode())
    check(b"[DONE]" in out and b"chunked" not in out, "a stream over HTTP/1.0")
    c = s.connect()
    c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 19\r\n\r\n")
    check(c.recv(1000).startswith(b"HTTP/1.1 100"), "100-continue")
    c.sendall(body)
    check(b"200 OK" in c.recv(65536), "the body after 100-continue")
    c.close()
    check(s.alive(), "alive after hostile requests")


# ---- clients that leave ---------------------------------------------------------------------------------------------


LONG = {"prompt": "Count: one two three", "max_tokens": 4000, "ignore_eos": True, "temperature": 1, "seed": 1}


def test_leaving(s):
    slots = 4
    # streaming, not streaming, half-closed: each with bytes of a further request behind it
    for name, body, how in (("streaming", {**LONG, "stream": True}, "close"), ("waiting for the whole", LONG, "close"), ("half-closed", LONG, "half"), ("reset", {**LONG, "stream": True}, "reset")):
        c = s.connect()
        c.sendall(request("/v1/completions", body) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(100):
            if s.metric("sibyl_num_requests_running") == 1:
                break
            time.sleep(0.01)
        else:
            check(False, f"{name}: never ran")
        if how == "half":
            c.shutdown(socket.SHUT_WR)
        elif how == "reset":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            c.close()
        else:
            c.close()
        took = s.idle()
        check(took is not None and took < 0.5, f"{name}: noticed after {took}")
        c.close()
    # queued behind full slots
    busy = []
    for _ in range(slots):
        c = s.connect()
        c.sendall(request("/v1/completions", LONG))
        busy.append(c)
    for _ in range(100):
        if s.metric("sibyl_num_requests_running") == slots:
            break
        time.sleep(0.01)
    c = s.connect()
    c.sendall(request("/v1/completions", LONG))
    for _ in range(100):
        if s.metric("sibyl_num_requests_waiting") == 1:
            break
        time.sleep(0.01)
    check(s.metric("sibyl_num_requests_waiting") == 1, "one request waits")
    c.close()
    start = time.monotonic()
    while s.metric("sibyl_num_requests_waiting") and time.monotonic() - start < 3:
        time.sleep(0.01)
    took = time.monotonic() - start
    check(took < 0.5, f"a queued client that leaves: noticed after {took:.3f} s")
    for c in busy:
        c.close()
    check(s.idle() is not None, "all slots are free again")
    check(s.post("/v1/chat/completions", chat())[1]["choices"][0]["message"]["content"] == ANSWER, "answers as before")


def test_many(s):
    asks = [chat(f"What day comes before {d}?", stream=i % 2 == 0, max_tokens=24) for i, d in enumerate(["Monday", "Tuesday", "Thursday", "Friday", "Sunday"])]
    asks += [{"messages": [{"role": "user", "content": t}], "temperature": 1.2, "seed": i, "max_tokens": 24} for i, t in enumerate(["Hello!", "Add 12 and 30.", "Count to five."])]
    asks.append(chat("Say again: " + "the quick brown fox jumps over the lazy dog " * 30, max_tokens=16))

    def ask(body):
        if body.get("stream"):
            return "".join(d["choices"][0]["delta"].get("content", "") for _, d in events(s, "/v1/chat/completions", body)[1][:-1])
        return s.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]

    solo = [ask(a) for a in asks]
    wrong = []

    def client(k):
        for i in range(6):
            j = (k * 7 + i * 5) % len(asks)
            try:
                if ask(asks[j]) != solo[j]:
                    wrong.append(j)
            except Exception as e:  # a refusal or a cut connection is as wrong as another text
                wrong.append(repr(e))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not wrong, f"answers of {len(threads)} clients at once equal those alone: {wrong[:5]}")


def test_limits():
    s = Server("--parallel", "1", "--queue", "1", "--api-key", "secret", "--api-key", "other", "--allowed-origins", "http://good.example")
    key = {"Authorization": "Bearer secret"}
    check(s.call("GET", "/health")[0] == 200, "health needs no key")
    for h in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secrett"}, {"Authorization": "secret"}, {"X-Api-Key": ""}):
        check(s.call("GET", "/v1/models", headers=h)[0] == 401, f"refused with {h}")
    for h in (key, {"X-Api-Key": "other"}):
        check(s.call("GET", "/v1/models", headers=h)[0] == 200, f"allowed with {h}")
    status, _, r = s.call("GET", "/health", headers={"Origin": "http://good.example"})
    check(status == 200 and r.getheader("access-control-allow-origin") == "http://good.example" and r.getheader("vary") == "Origin", "an allowed origin")
    check(s.call("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://good.example"})[0] == 204, "preflight")
    held = []
    for _ in range(2):
        c = s.connect()
        c.sendall(request("/v1/completions", LONG, "X-Api-Key: secret\r\n"))
        held.append(c)
        time.sleep(0.3)
    status, a, r = s.post("/v1/chat/completions", chat(), key)
    check(status == 429 and a["error"]["code"] == "queue_full" and r.getheader("retry-after"), f"a full queue: {status} {a}")
    status, a, r = s.post("/v1/messages", chat(), key)
    check(status == 529 and a["error"]["type"] == "overloaded_error", f"a full queue for messages: {status} {a}")
    for c in held:
        c.close()
    time.sleep(0.3)
    check(s.post("/v1/chat/completions", chat(), key)[0] == 200, "room again")
    # SIGTERM lets a running answer finish and takes no new one
    c = s.connect()
    c.sendall(request("/v1/completions", {**LONG, "max_tokens": 300}, "X-Api-Key: secret\r\n"))
    time.sleep(0.2)
    s.process.send_signal(signal.SIGTERM)
    out = b""
    while b"}" not in out[-3:]:
        b = c.recv(65536)
        if not b:
            break
        out += b
    check(b"200 OK" in out and b'"completion_tokens":300' in out, "a draining server finishes its answers")
    code, err = s.process.wait(20), s.process.stderr.read()
    check(code == 0, f"exit status {code} {err[-500:]}")


def main():
    s = Server("--parallel", "4", "--draft", os.path.join(DEMO, "gemma4-demo-assistant"))
    for test in (test_chat, test_stream, test_logprobs, test_tools, test_messages, test_responses, test_pictures, test_structured, test_text_routes, test_errors, test_hostile, test_leaving, test_many):
        start = time.monotonic()
        try:
            test(s)
        except Exception as e:
            check(False, f"{test.__name__}: {e!r}")
            import traceback
            traceback.print_exc()
        print(f"{test.__name__:20} {time.monotonic() - start:6.2f} s", flush=True)
    check(s.alive(), "alive at the end")
    code, err = s.stop()
    check(code == 0, f"exit status {code} {err[-2000:]}")
    test_limits()
    print(f"{checks - len(failures)} of {checks} checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
