"""Parsl's interchange process, which exits when its parent process has ended.

Without this, killing the command with SIGKILL would leave the interchange and its workers behind.
"""

import os
import runpy
import threading
import time


def exit_with(parent: int) -> None:
    """Poll for the parent process."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=exit_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__")
