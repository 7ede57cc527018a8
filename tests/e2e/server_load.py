#!/usr/bin/env python3
"""Load on a server of its own: CLIENTS clients for SECONDS seconds over the demo checkpoint, every answer compared with the one given alone.

    tests/e2e/server_load.py [CLIENTS [SECONDS [FLAG...]]]        default: 64 clients, 60 s, --parallel 16 --ctx 1024

Prints requests, deliberate refusals (429), wrong answers and other errors, time to first token and between tokens (p50, p99), and the
growth of the server's resident memory after the first quarter. Exit status 1 on a wrong answer, an error or growth above 2 %.
Not part of `make check`: it keeps every processor busy.
"""
import json
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
from server_test import Server, chat  # noqa: E402

clients = int(sys.argv[1]) if len(sys.argv) > 1 else 64
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
flags = sys.argv[3:] or ["--parallel", "16", "--ctx", "1024"]
questions = ["What day comes before Thursday?", "Add 12 and 30.", "Hello!", "Count to five.", "What day comes before Monday?", "Subtract 17 from 25."]
bodies = [chat(q, stream=True, max_tokens=48, **({} if i % 2 else {"temperature": 1.1, "seed": i})) for i, q in enumerate(questions)]
bodies.append(chat("Say again: " + "the quick brown fox jumps over the lazy dog " * 40, stream=True, max_tokens=16))


class Client:
    """One keep-alive connection; http.client would cost more than the server does."""

    def __init__(self, port):
        self.port = port
        self.socket = None
        self.rest = b""

    def ask(self, body):
        """Status, text, seconds to the first token, seconds between tokens."""
        data = json.dumps(body).encode()
        if not self.socket:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=60)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.rest = b""
        start = time.monotonic()
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        out, times = self.rest, []
        while b"\r\n\r\n" not in out:
            out += self.read()
        head, out = out.split(b"\r\n\r\n", 1)
        status = int(head.split(b" ")[1])
        if status != 200:
            n = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(out) < n:
                out += self.read()
            self.rest = out[n:]
            return status, "", 0, []
        seen = 0
        while True:
            if out.find(b'"content":"', seen) >= 0:
                times.append(time.monotonic())
            seen = len(out)
            if b"\r\n0\r\n\r\n" in out:
                break
            out += self.read()
        body, self.rest = out.split(b"\r\n0\r\n\r\n", 1)
        text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in body.split(b"\n") if line.startswith(b"data: {"))
        return status, text, times[0] - start, [y - x for x, y in zip(times, times[1:])]

    def read(self):
        b = self.socket.recv(65536)
        if not b:
            raise ConnectionError("closed")
        return b


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] * 1e3 if values else 0.0


def main():
    server = Server(*flags)
    alone = [Client(server.port).ask(b)[1] for b in bodies]
    end = time.monotonic() + seconds
    done, refused, wrong, errors, first, between = [0], [0], [0], [], [], []
    lock = threading.Lock()

    def run(k):
        c = Client(server.port)
        i = k
        while time.monotonic() < end:
            i += 1
            try:
                status, text, t, gaps = c.ask(bodies[i % len(bodies)])
            except Exception as e:
                errors.append(repr(e))
                c = Client(server.port)
                continue
            with lock:
                if status == 200:
                    done[0] += 1
                    wrong[0] += text != alone[i % len(bodies)]
                    first.append(t)
                    between.extend(gaps)
                elif status == 429:
                    refused[0] += 1
                else:
                    errors.append(status)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(clients)]
    for t in threads:
        t.start()
    time.sleep(seconds / 4)
    early = server.metric("process_resident_memory_bytes")
    for t in threads:
        t.join()
    late = server.metric("process_resident_memory_bytes")
    tokens = server.metric("llamacpp:tokens_predicted_total")
    code, err = server.stop()
    growth = 100 * (late / early - 1)
    print(f"{clients} clients, {seconds:g} s: {done[0]} answers ({done[0] / seconds:.1f}/s, {tokens / seconds:.0f} tokens/s), {refused[0]} refused, {wrong[0]} wrong, {len(errors)} errors {errors[:3]}")
    print(f"first token ms: p50 {quantile(first, .5):.1f} p99 {quantile(first, .99):.1f}; between tokens ms: p50 {quantile(between, .5):.1f} p99 {quantile(between, .99):.1f}")
    print(f"resident memory {late / 2**20:.1f} MiB, growth {growth:.2f} %; exit status {code} {err[-300:]}")
    return 1 if wrong[0] or errors or growth > 2 or code else 0


if __name__ == "__main__":
    sys.exit(main())
