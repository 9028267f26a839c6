"""How do workers of a `DataLoader` survive a signal that a scheduler sends to all processes of a training?

A forked worker has the signal handlers of its training. A worker that is started in another way has none, so SIGUSR1,
SIGUSR2 and SIGHUP would end it, and with it the training that wants to save its state.

A started process inherits blocked signals, from the fork server or from a training that blocks them while its workers
start. Not every such process is a worker: a rank sets handlers of its own, which blocked signals would never reach.
"""

from __future__ import annotations

import functools
import signal
import threading
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen

from brand.pythonchild import JOB_SIGNALS


def protect_fork_server() -> None:
    """Start the fork server of multiprocessing if a process is about to be started by it, and have it ignore signals.

    Its end would be taken for the end of all workers. Its processes inherit the blocked signals until `on_started`.
    """
    if getattr(get_spawning_popen(), "method", None) == "forkserver":
        from multiprocessing import forkserver

        before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_started() -> None:
    """If multiprocessing is starting this process with blocked signals, have it ignore them, until it has handlers."""
    starting = getattr(current_process(), "_inheriting", False)
    if starting and not signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(JOB_SIGNALS):
        _ignore()


@functools.cache
def protect_worker() -> None:
    """Have this process, a worker of a training, ignore the signals for trainings that it has no handler for."""
    _ignore()


def _ignore() -> None:
    if JOB_SIGNALS and threading.current_thread() is threading.main_thread():
        for number in JOB_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, JOB_SIGNALS)
