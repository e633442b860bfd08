"""Shell scripts in which some programs are Python functions of this process.

Starting `cwdfm` costs more than most commands do, and a function can see its arguments.
"""

import os
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

# A program writes its arguments and its standard input to a folder, and waits for its exit code.
_CALL = """
set -eu -o pipefail
call() {
    local folder code
    folder=$(mktemp -d "$CALLS/XXXXXX")
    printf '%s\\0' "$@" > "$folder/words"
    if [[ -p /dev/stdin ]]; then cat > "$folder/stdin"; else touch "$folder/stdin"; fi
    mkfifo "$folder/code"
    echo "$folder" >&"$REQUESTS"
    read -r code < "$folder/code"
    cat "$folder/stdout"
    return "$code"
}
"""


def run_script(
    script: str,
    programs: Collection[str],
    run: Callable[[list[str], bytes], tuple[int, str]],
    folder: Path,
    calls: Path,
) -> None:
    """Run a script by bash in `folder`; it stops at the first error.

    programs: the programs for which `run(words, standard_input)` is called instead, which returns
        the exit code and the standard output. Their files are kept in `calls`.
    """
    calls.mkdir(exist_ok=True)
    functions = "".join(f'{name}() {{ call {name} "$@"; }}\n' for name in programs)
    reading, writing = os.pipe()
    own = {"HOME": str(folder), "CALLS": str(calls), "REQUESTS": str(writing)}
    with (calls / "stderr").open("w+") as errors:
        bash = subprocess.Popen(
            ["bash", "-c", _CALL + functions + script],
            cwd=folder,
            env=os.environ | own,
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
        os.close(writing)
        try:
            with os.fdopen(reading) as requests:
                for line in requests:
                    place = Path(line.rstrip("\n"))
                    words = (place / "words").read_bytes().decode().split("\0")[:-1]
                    code, out = run(words, (place / "stdin").read_bytes())
                    (place / "stdout").write_text(out)
                    (place / "code").write_text(f"{code}\n")
        except BaseException:
            bash.kill()
            raise
        finally:
            bash.wait()
        errors.seek(0)
        assert bash.returncode == 0, f"{errors.read()}\n{script}"
