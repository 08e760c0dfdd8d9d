"""The Python SDK as a peer: reads one order a line, carries it out, and says in seconds how long it took."""

import json
import sys
import time

begun = time.perf_counter()
from e2b import Sandbox  # noqa: E402

loaded = time.perf_counter()
held = []
sandbox = None


def connect(id):
    global sandbox
    sandbox = Sandbox.connect(id)


def run(count):
    for _ in range(count):
        sandbox.commands.run("true")


def write(count):
    for at in range(count):
        sandbox.files.write(f"small/{at}", "x" * 1024)


def read(count):
    for at in range(count):
        sandbox.files.read(f"small/{at}")


def exactly(received, wanted):
    if received != wanted:
        raise ValueError(f"{received} of {wanted}")


def upload(bytes):
    piece = b"\x5a" * (1 << 20)
    sandbox.files.write("big", (piece for _ in range(bytes // len(piece))), request_timeout=0)


def download(bytes):
    stream = sandbox.files.read("noise", format="stream", request_timeout=0)
    exactly(sum(len(piece) for piece in stream), bytes)


def stdout(bytes):
    received = 0

    def count(data):
        nonlocal received
        received += len(data)

    cmd = f"dd if=/dev/zero bs=1M count={bytes >> 20} status=none"
    sandbox.commands.run(cmd, on_stdout=count, retain_output=False, timeout=0, request_timeout=0)
    exactly(received, bytes)


def list_all(count):
    listed, pages = 0, Sandbox.list()
    while pages.has_next:
        listed += len(pages.next_items())
    exactly(listed, count)


def hold(ids):
    held.extend(Sandbox.connect(id) for id in ids)


def reattach(id):
    Sandbox.connect(id).commands.run("true")


orders = {
    "connect": connect,
    "exec": run,
    "write": write,
    "read": read,
    "upload": upload,
    "download": download,
    "stdout": stdout,
    "list": list_all,
    "hold": hold,
    "reattach": reattach,
}

for line in sys.stdin:
    order = json.loads(line)
    name = order.pop("do")
    begin = time.perf_counter()
    try:
        orders[name](**order)
        print(json.dumps({"seconds": time.perf_counter() - begin, "loading": loaded - begun}), flush=True)
    except Exception as error:
        print(json.dumps({"failed": repr(error)}), flush=True)
