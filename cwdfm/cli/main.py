"""`cwdfm VERB ...`: find the verb, and turn wrong input into a message and exit code 2."""

import sys
from collections.abc import Callable

from cwdfm.cli import sample, train
from cwdfm.errors import InputError
from cwdfm.train.loop import Diverged

VERBS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "train": (train.main, "train a model by a named recipe"),
    "sample": (sample.main, "draw sequences from a trained model"),
}


def main() -> None:
    """Entry point of the `cwdfm` command."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: cwdfm VERB ...\n\nverbs:")
        for name, (_, help_text) in VERBS.items():
            print(f"  {name:8} {help_text}")
        print("\n`cwdfm VERB --help` tells more about one.")
        sys.exit(0 if arguments else 2)
    if arguments[0] not in VERBS:
        fail(f"unknown verb {arguments[0]!r}; choose from {', '.join(VERBS)}")
    try:
        VERBS[arguments[0]][0](arguments[1:])
    except InputError as error:
        fail(str(error))
    except Diverged as error:
        fail(str(error), code=1)


def fail(message: str, code: int = 2) -> None:
    """Say what is wrong and leave."""
    print(f"cwdfm: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
