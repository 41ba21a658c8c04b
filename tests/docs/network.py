"""A network of the test's own, where port 8000 is free: the documents name that port, and they are run as they are."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

PORT = 8000
_HOLD = """
import fcntl, socket, struct, sys
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
fcntl.ioctl(control, 0x8914, up)  # SIOCSIFFLAGS
print("up", flush=True)
sys.stdin.read()
"""


class Network:
    """`enter` is put before commands that use it. Without namespaces it is the machine's own network."""

    def __init__(self) -> None:
        self.enter: list[str] = []
        self._holder: subprocess.Popen[str] | None = None
        if shutil.which("unshare") and shutil.which("nsenter"):
            self._open()

    def _open(self) -> None:
        command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", _HOLD]
        pipe = subprocess.PIPE
        holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "up":
            holder.wait(timeout=120)
            return
        self._holder = holder
        self.enter = ["nsenter", "--preserve-credentials", "--user", "--net", "--target", str(holder.pid), "--"]

    @property
    def has_port(self) -> bool:
        if self.enter:
            return True
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", PORT))
            except OSError:
                return False
        return True

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate(timeout=120)
