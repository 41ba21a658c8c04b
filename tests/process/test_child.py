"""A child ends with its parent, also when it is stopped, and its end has a sentence."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cadence.process.child import AsyncChild, Child, Launch
from cadence.process.ended import PARENT_GONE, how_ended, is_stopped, why_silent
from cadence.process.framing import Frames, framed, receive
from cadence.process.messages import MessageError

ECHO = """
from cadence.process.framing import framed, receive
from cadence.process.parent import open_wire, watch_parent
wire = open_wire()
watch_parent(wire)
while message := receive(wire):
    wire.sendall(framed(message))
import time
time.sleep(3600)
"""
# A parent that starts the echo, waits until it answers, says its number and exits without a word to it. The echo has a
# session of its own: else the system may wake a stopped process whose group is orphaned.
PARENT = f"""
import os, signal
from cadence.process.child import Child, Launch
from cadence.process.framing import framed, receive
child = Child.start(Launch(({sys.executable!r}, "-c", {ECHO!r}), "echo", own_session=True))
child.wire.sendall(framed(b"hello"))
assert receive(child.wire) == b"hello"
STRIKE
print(child.pid, flush=True)
os._exit(0)
"""
WITHIN_S = 120.0


def echo() -> Launch:
    return Launch((sys.executable, "-c", ECHO), "the echo")


def is_gone(pid: int) -> bool:
    ends = time.monotonic() + WITHIN_S
    while time.monotonic() < ends:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_a_child_answers_over_its_wire_and_exits_when_that_ends() -> None:
    child = Child.start(echo())
    child.wire.sendall(framed(b"one") + framed(b"two"))
    assert [receive(child.wire), receive(child.wire)] == [b"one", b"two"]
    assert child.status is None
    child.wire.close()
    assert child.wait() == PARENT_GONE
    child.end()


@pytest.mark.parametrize("strike", ["", "os.kill(child.pid, signal.SIGSTOP)"], ids=["runs", "is stopped"])
def test_a_child_ends_with_its_parent(strike: str) -> None:
    command = [sys.executable, "-c", PARENT.replace("STRIKE", strike)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=WITHIN_S)
    assert is_gone(int(done.stdout))


def test_a_stopped_child_is_ended_and_named() -> None:
    child = Child.start(echo())
    os.kill(child.pid, signal.SIGSTOP)
    while not is_stopped(child.pid):
        time.sleep(0.001)
    assert why_silent("it", child.pid, 1.5, 60.0) == "it is stopped"
    child.end()
    assert child.status == -signal.SIGKILL


def test_an_event_loop_waits_for_a_child_and_kills_it() -> None:
    async def check() -> None:
        child, wire = await AsyncChild.start(echo())
        wire.close()
        assert await child.end(WITHIN_S) == f"the echo ended with status {PARENT_GONE}"
        child, wire = await AsyncChild.start(echo())
        with wire:
            assert await child.end(0.0) == "the echo was ended by SIGKILL"

    asyncio.run(check())


def test_a_command_that_does_not_exist_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc").is_dir() else 0
    with pytest.raises(OSError):
        Child.start(Launch(("/does/not/exist",), "nothing"))
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "it ended with status 0"),
        (-signal.SIGSEGV, "it was ended by SIGSEGV"),
        (-100, "it was ended by signal 100"),
        (None, "it cannot be killed"),
    ],
)
def test_each_end_has_a_sentence(status: int | None, said: str) -> None:
    assert how_ended("it", status) == said


def test_silence_ends_a_process_after_its_limit() -> None:
    own = os.getpid()
    assert why_silent("it", own, 59.0, 60.0) == ""
    assert why_silent("it", own, 60.5, 60.0) == "it gave no heartbeat for 60 s"


def test_messages_come_whole_whatever_the_stream_does_to_them() -> None:
    messages = [b"a", b"", b"x" * 1000]
    stream, frames, found = b"".join(map(framed, messages)), Frames(), []
    for at in range(len(stream)):
        frames.add(stream[at : at + 1])
        found += frames.take_all()
    assert found == messages and not len(frames)


def test_a_length_beyond_the_limit_is_an_error() -> None:
    frames = Frames(most=3)
    frames.add(framed(b"four"))
    with pytest.raises(MessageError, match="4 bytes; the most are 3"):
        frames.take()
