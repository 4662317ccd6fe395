"""The process of `mini-infer` and `python -m mini_infer`: from its first line to its last, Ctrl+C ends it quietly."""

from __future__ import annotations

import atexit
import os
import signal

from mini_infer.commands.interrupt import exit_at_once


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not for `nohup`, which has it ignored
        signal.signal(signal.SIGINT, exit_at_once)
    from mini_infer.cli import main as run

    try:
        run()
    except SystemExit as end:
        atexit._run_exitfuncs()
        # Taking torch's modules apart would last longer than many an answer, and dies of signals.
        os._exit(end.code if isinstance(end.code, int) else 0)


if __name__ == "__main__":
    main()
