"""The process of the command line: how its first moments and its end bear a signal.

Imported before anything else, so it imports next to nothing itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and leave the process with its exit code.

    Until the command line takes the signals itself there is nothing to take back: Ctrl-C ends the
    process as it ends one that is not Python's, without a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from durable_cache.service import cli

    try:
        code = cli.main()
    except SystemExit as exit_:  # of argparse
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Close what is open, write what is waiting, and end without dismantling the interpreter.

    A thread of Zenoh's that an interrupted call left behind may still ask for an interpreter that
    is half gone, and the process would die of a segmentation fault in place of its exit code.
    """
    with suppress(KeyboardInterrupt):  # of somebody who has no patience left
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
