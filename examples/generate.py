#!/usr/bin/env python3
"""examples/generate.py - one answer through ctypes, with nothing but the shared library.

    SIBYL_LIBRARY=build/libsibyl.so python3 examples/generate.py demo/gemma4-demo "Subtract 17 from 25."

The structs below repeat include/sibyl/sibyl.h up to the last member that is used; the library fills and checks
struct_bytes, so the buffers have the size that packaging/abi.txt records. sib_abi_version() tells whether both agree.
"""
import ctypes as c
import json
import os
import sys

ABI = 1
OPTIONS_BYTES, REQUEST_BYTES, TOKEN_BYTES = 120, 192, 56


class Err(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 512)]


class Options(c.Structure):  # sib_options
    _fields_ = [("struct_bytes", c.c_size_t), ("model", c.c_char_p), ("rest", c.c_char * (OPTIONS_BYTES - 16))]


class Request(c.Structure):  # sib_request
    _fields_ = [("struct_bytes", c.c_size_t), ("max_tokens", c.c_int), ("temperature", c.c_double),
                ("rest", c.c_char * (REQUEST_BYTES - 24))]


class Token(c.Structure):  # sib_token
    _fields_ = [("id", c.c_int32), ("text", c.POINTER(c.c_char)), ("text_bytes", c.c_size_t), ("finish", c.c_int),
                ("rest", c.c_char * (TOKEN_BYTES - 28))]


def main(checkpoint, question):
    lib = c.CDLL(os.environ.get("SIBYL_LIBRARY", "libsibyl.so.1"))
    if lib.sib_abi_version() != ABI:
        sys.exit("generate.py: the library has another interface")
    err, options, request, token = Err(), Options(), Request(), Token()
    engine, session, ids, n_ids = c.c_void_p(), c.c_void_p(), c.POINTER(c.c_int32)(), c.c_size_t()

    def check(status):
        if status:
            sys.exit("generate.py: " + err.message.decode())

    lib.sib_options_init(c.byref(options))
    lib.sib_request_init(c.byref(request))
    options.model = checkpoint.encode()
    request.temperature = 0.0
    context = json.dumps({"messages": [{"role": "user", "content": question}]}).encode()
    check(lib.sib_open(c.byref(engine), c.byref(options), c.byref(err)))
    check(lib.sib_session_new(c.byref(session), engine, c.byref(err)))
    check(lib.sib_chat_tokens(engine, context, c.c_size_t(len(context)), 0, c.byref(ids), c.byref(n_ids), c.byref(err)))
    check(lib.sib_session_prompt(session, ids, n_ids, None, 0, c.byref(request), c.byref(err)))
    while token.finish == 0:
        check(lib.sib_session_next(session, c.byref(token), c.byref(err)))
        sys.stdout.buffer.write(token.text[: token.text_bytes])
    print()
    lib.sib_free(ids)
    lib.sib_session_free(session)
    lib.sib_close(engine)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: generate.py CHECKPOINT QUESTION")
    main(*sys.argv[1:])
