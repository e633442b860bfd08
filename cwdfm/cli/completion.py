"""`cwdfm completion SHELL`: print a script that completes commands, flags and their values."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cwdfm.cli import analyze, sample_prompts
from cwdfm.cli.main import COMMANDS
from cwdfm.cli.options import flag, parse, positional_first
from cwdfm.config import choices_of
from cwdfm.pretrained import bundled_models
from cwdfm.solver_config import SOLVERS
from cwdfm.train.recipes import RECIPES

# Each case matches "COMMAND PREVIOUS_WORD": a known flag completes to its values, any other word to
# the flags of the command. Without a match the shell completes file names (-o default). zsh runs
# the same script after `bashcompinit`.
SCRIPT = """\
_cwdfm() {
    local words="" current="${COMP_WORDS[COMP_CWORD]}"
    [ "$COMP_CWORD" = 1 ] && words="%s"
    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in
%s
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _cwdfm cwdfm"""
ZSH = "autoload -U compinit bashcompinit && compinit && bashcompinit"


@dataclass(frozen=True)
class Options:
    """Print a script that completes commands, flags and their values; see docs/guide.md."""

    shell: Literal["bash", "zsh"]  # SHELL (first argument)


def main(arguments: list[str]) -> None:
    """Run the command."""
    argv = positional_first("shell", arguments)
    shell = parse("completion SHELL", argv, lambda missing: Options(missing)).shell
    print(f"{ZSH}\n{script()}" if shell == "zsh" else script())


def script() -> str:
    """The bash completion script."""
    first_argument = {
        "train": list(RECIPES),
        "analyze": list(analyze.ANALYSES),
        "completion": ["bash", "zsh"],
    }
    first_argument |= dict.fromkeys(("sample", "perplexity"), bundled_models())
    configs = [solver.config for solver in SOLVERS.values()]
    extra: dict[str, list[type]] = {"sample": [sample_prompts.Options, *configs]}
    cases = []
    for command, entry in COMMANDS.items():
        module = import_module(f"cwdfm.cli.{entry.module}")
        classes = [analyze.Context, analyze.Updates] if module is analyze else [module.Options]
        classes += extra.get(command, [])
        values_of = dict(pair for options in classes for pair in _flags(options))
        cases += [(f'"{command} {name}"', values) for name, values in values_of.items() if values]
        if command in first_argument:
            cases.append((f'"{command} {command}"', first_argument[command]))
        cases.append((f'"{command} "*', list(values_of)))
    lines = [f'    {pattern}) words="{" ".join(items)}" ;;' for pattern, items in cases]
    return SCRIPT % (" ".join(COMMANDS), "\n".join(lines))


def _flags(options: type) -> Iterator[tuple[str, list[str]]]:
    """Yield the flags of a dataclass and of its nested dataclasses, each with its choices."""
    hints = get_type_hints(options)
    for field in fields(options):
        hint: Any = hints[field.name]
        alternatives = choices_of(field)
        for part in alternatives.values() or [hint]:
            if is_dataclass(part):
                yield from _flags(part)
        if alternatives or not is_dataclass(hint):
            yield flag(field.name), [*alternatives, *_choices(hint)]
        if hint is bool:
            yield flag(f"no_{field.name}"), []


def _choices(hint: Any) -> Iterator[str]:
    """Yield the values of a Literal, which may be part of a union."""
    for part in get_args(hint):
        if get_origin(hint) is Literal:
            yield str(part)
        else:
            yield from _choices(part)
