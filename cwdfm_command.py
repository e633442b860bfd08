"""The command `cwdfm`: Ctrl-C ends it without a traceback also while the package is imported.

The import takes seconds, and starts with the package itself, so this module is outside of it.
"""

import signal


def main() -> None:
    """Import the package, then run the command."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not if the shell ignores the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cwdfm.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
