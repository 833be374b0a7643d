"""The command that starts a training script, taken apart: Python, launchers, the script itself."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from ..base.errors import CaptureError
from ..base.sizes import whole_number

PLACE = "{batch}"
#: Another word in braces is that of a length, by the name that the user gives it.
_PLACES = re.compile(r"\{([A-Za-z_]\w*)\}")


def words_of_script(command: list[str]) -> list[str]:
    """Of "python -u train.py ARGUMENTS": what stands behind Python and the launchers."""
    words = list(command)
    while words:
        name = Path(words[0]).name
        if name in _JUPYTER and any(word.endswith(".ipynb") for word in words):
            words = [next(word for word in words if word.endswith(".ipynb"))]
        elif name.startswith("python"):
            words = _behind_options(words[1:], _PYTHON_VALUES)
        elif name == "torchrun":
            words = _behind_launcher(words[1:])
        elif name == "accelerate" and words[1:2] == ["launch"]:
            words = _behind_launcher(words[2:])
        elif words[:2] == ["-m", "torch.distributed.run"]:
            words = _behind_launcher(words[2:])
        elif words[:2] == ["-m", "accelerate.commands.launch"]:
            words = _behind_launcher(words[2:])
        else:
            return words
    return words


#: What runs a notebook whole: `jupyter nbconvert --execute train.ipynb`.
_JUPYTER = ("jupyter", "jupyter-nbconvert", "ipython")
_PYTHON_VALUES = ("-W", "-X")
#: Switches of torchrun and accelerate launch, which take no value.
_SWITCHES = {
    "--standalone", "--no-python", "--run-path", "--multi-gpu", "--cpu", "--quiet", "--use-fsdp",
    "--use-deepspeed", "--debug", "--mps", "--tpu", "--same-network", "--enable-cpu-affinity",
}  # fmt: skip


def _behind_options(words: list[str], with_value: tuple[str, ...]) -> list[str]:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2:] if words[0] in with_value else words[1:]
    return words


def _behind_launcher(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        if words[0] in ("-m", "--module"):
            return ["-m", *words[1:]]
        alone = "=" in words[0] or words[0].replace("_", "-") in _SWITCHES
        words = words[1:] if alone else words[2:]
    return words


def ranks_of(command: list[str]) -> int:
    """Of the job that torchrun starts, of which the script is to find itself the first; 0 where it
    is started alone. What is left for torchrun to find out ("gpu", "1:4") is taken for 1."""
    if Path(command[0]).name != "torchrun" and "torch.distributed.run" not in command[:4]:
        return 0
    given = dict.fromkeys(("nnodes", "nproc-per-node"), "1")
    flags = command[: len(command) - len(words_of_script(command))]
    for word, following in zip(flags, [*flags[1:], ""]):
        name, equals, value = word.replace("_", "-").lstrip("-").partition("=")
        if word.startswith("--") and name in given:
            given[name] = value if equals else following
    return math.prod(whole_number(value) or 1 for value in given.values())


def name_of_length(command: list[str]) -> str | None:
    """What stands in braces besides the batch: the length of sequences, the side of images."""
    found = {name for word in command for name in _PLACES.findall(word)} - {PLACE[1:-1]}
    if len(found) > 1:
        raise CaptureError(
            f"{len(found)} words of the command stand in braces besides {PLACE}: "
            + ", ".join(sorted(found)),
            hint="One length can be varied beside the batch: {batch} and, say, {length}",
        )
    return found.pop() if found else None


def at_point(words: list[str], point: dict[str, int]) -> list[str]:
    """With sizes in place of their names."""
    for name, size in point.items():
        words = [word.replace(f"{{{name}}}", str(size)) for word in words]
    return words


def script_of(command: list[str]) -> list[str]:
    """Its words; an error where it is none."""
    words = words_of_script(command)
    if not words:
        raise CaptureError(
            "no script stands in the command",
            hint="Give it as you type it: python train.py --batch-size {batch}",
        )
    if words[0] != "-m" and not os.path.isfile(words[0]):
        what = "is not there" if words[0].endswith(".py") else "is no Python script"
        raise CaptureError(
            f"{words[0]} {what}",
            hint="Give the script itself, with environment variables before plimsoll: "
            "python train.py --batch-size {batch}",
        )
    return words
