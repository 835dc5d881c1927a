"""Ctrl-C and SIGTERM: the first one ends a command in order, all others change nothing, and seconds later it is over.

Order is a courtesy: whatever a command was doing can be killed at any moment and done again. So what stands in the way
of it, such as a library that swallows exceptions, is not waited for.

A process that has done everything ends at once, too: Python would take every module apart first. With PyTorch that is a
quarter of the processor time of a short command.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import NoReturn

from personae.errors import Interrupted

PATIENCE = 5.0  # seconds for an orderly end


class _Ear:
    """What was heard by this process, and what it says when it goes."""

    line = "stopped before anything began"
    at_work = False  # until then there is nothing to put in order
    heard = False
    held = 0
    waiting = False
    code: int | None = None  # of a process that has ended in order


def listen() -> None:
    """To be called before anything is imported that takes long; in a shell's background, Ctrl-C stays unheard."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _hear)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_lose_patience, args=(reading,), daemon=True).start()
    sys.unraisablehook = _unraisable
    atexit.register(_end)  # the first that is registered is the last that is called


def begin_work() -> None:
    _Ear.at_work, _Ear.line = True, "stopped"


def stop_listening() -> None:
    """The command is done: what comes now must not disturb the end of its process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def ends(stop: SystemExit) -> None:
    """The process is about to end so. Threads are waited for, and what was registered for the end is called."""
    if stop.code is None or isinstance(stop.code, int):
        _Ear.code = stop.code or 0


def _end() -> None:
    if _Ear.code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return  # Python has words and an exit code of its own for that
    os._exit(_Ear.code)


@contextmanager
def interruptible(line: str) -> Iterator[None]:
    """Say this line if the work within is interrupted."""
    before, _Ear.line = _Ear.line, line
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(line) from None
    finally:
        _Ear.line = before


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that are started in here never hear Ctrl-C: it is for this one, which hears it when they are started.

    A process that is interrupted half-way through its start would print a traceback.
    """
    resource_tracker.ensure_running()  # a helper of multiprocessing's, whose start would undo what follows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # children inherit it
    _Ear.held += 1  # another thread may still be told
    try:
        yield
    finally:
        _Ear.held -= 1
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if _Ear.waiting and not _Ear.held:
            _Ear.waiting = False
            raise KeyboardInterrupt


def _hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
    if not _Ear.at_work:
        leave()
    if _Ear.heard:
        return
    _Ear.heard, _Ear.waiting = True, _Ear.held > 0
    if not _Ear.held:
        raise KeyboardInterrupt


def _lose_patience(signals: int) -> None:
    os.read(signals, 1)
    time.sleep(PATIENCE)
    leave()


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """An interrupt in a place from which no exception gets out, such as a destructor."""
    if problem.exc_type is KeyboardInterrupt:
        leave()
    sys.__unraisablehook__(problem)


def leave() -> NoReturn:
    """End at once, with the line that is due."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    os.write(2, f"{show_cursor}personae: {_Ear.line}\n".encode())
    os._exit(Interrupted.exit_code)
