"""What a worker does with nonsense; here it runs in a thread of this process."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from edgerun_hw.board_side import messages as msg
from edgerun_hw.board_side.worker import Worker
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.simulate.fake import FakeDevice


@pytest.fixture
def raw():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(Tlmm(FakeDevice()), theirs)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    ours.settimeout(100)
    yield ours
    ours.close()
    thread.join(100)
    theirs.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (b"\x00", "a message has 5"),
        (msg.encode(msg.Done()), "Done is no request"),
        (msg.encode(msg.Hello(99)), "speaks protocol 99"),
        (msg.encode(msg.Flush(3)), "no buffer 3"),
        (msg.encode(msg.Wait(0)), "command 0 was not submitted"),
        (msg.encode(msg.Allocate(64)), "comes with a memory file"),
        (bytes(msg.MAX_MESSAGE_BYTES + 10), "too long"),
    ],
)
def test_worker_gives_up_on_nonsense(raw, packet, message):
    raw.send(packet)
    _, reply = msg.decode(raw.recv(10_000))
    assert (msg.ERROR_KINDS[reply.error], message in reply.text) == ("worker", True), reply


def test_worker_wants_a_memory_file_of_the_right_size(raw):
    with open(os.memfd_create("small"), "r+b") as file:
        file.truncate(10)
        socket.send_fds(raw, [msg.encode(msg.Allocate(64))], [file.fileno()])
    _, reply = msg.decode(raw.recv(10_000))
    assert "at least its size" in reply.text


def test_a_file_that_cannot_be_mapped_takes_no_memory_of_the_device(raw, monkeypatch):
    taken: list[int] = []
    monkeypatch.setattr(Tlmm, "allocate", lambda overlay, nbytes: taken.append(nbytes))
    with open(os.memfd_create("unwritable"), "r+b") as file:
        file.truncate(64)
        readable = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        socket.send_fds(raw, [msg.encode(msg.Allocate(64))], [readable])
        os.close(readable)
    _, reply = msg.decode(raw.recv(10_000))
    assert "Permission denied" in reply.text and not taken


def test_worker_survives_a_fuzzed_session(raw):
    raw.send(os.urandom(50))
    raw.recv(10_000)


def test_worker_gives_up_on_a_buffer_that_was_handed_over(raw):
    with open(os.memfd_create("file"), "r+b") as file:
        file.truncate(64)
        socket.send_fds(raw, [msg.encode(msg.Allocate(64))], [file.fileno()])
    _, reply = msg.decode(raw.recv(10_000))
    raw.send(msg.encode(msg.Flush(reply.buffer, last=True)))
    raw.send(msg.encode(msg.Invalidate(reply.buffer)))
    _, reply = msg.decode(raw.recv(10_000))
    assert "handed this buffer over" in reply.text
