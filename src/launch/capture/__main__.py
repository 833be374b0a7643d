"""The Python package inside the program, unpacked and started:

capture.zip -o STEP … -- python train.py        a script
capture.zip configuration -o STEP … -- PATH     a model by its config.json or its name
capture.zip models                              the names that are known
"""

import argparse
import contextlib
import gc
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

#: Packages that are kept: of this program, and of others that are used in turn. The oldest goes.
MOST = 4


def cache():
    """As plimsoll.base.compiling has it, which cannot be asked: what is once imported of the package
    inside the archive stays there, and its bytecode is kept nowhere."""
    named = os.environ.get("PLIMSOLL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll"


def unpacked(archive):
    """The folder of the package. It is kept, since what Python compiles of it, which takes a
    second, lies in it; where nothing can be kept it is beside the archive."""
    try:
        kept = cache() / "package" / hashlib.sha256(Path(archive).read_bytes()).hexdigest()[:32]
        if not kept.is_dir():
            keep(archive, kept)
        os.utime(kept)
        return kept
    except (OSError, RuntimeError):  # there may be no home
        beside = Path(archive + ".files")
        zipfile.ZipFile(archive).extractall(beside)
        return beside


def keep(archive, kept):
    """Whole or not at all: others may be at it too."""
    made = kept.with_name(f".{kept.name}.{os.getpid()}")
    zipfile.ZipFile(archive).extractall(made)
    with contextlib.suppress(OSError):
        made.rename(kept)
    shutil.rmtree(made, ignore_errors=True)
    others = sorted(kept.parent.glob("[!.]*"), key=lambda folder: folder.stat().st_mtime)
    for old in others[:-MOST]:
        shutil.rmtree(old, ignore_errors=True)


archive = sys.path[0]
sys.path[0] = str(unpacked(archive))


def capture_configuration(arguments):
    from plimsoll.__main__ import _capture, add_way
    from plimsoll.capturing.configuration import PREFIX
    from plimsoll.base.errors import CaptureError, in_two_lines

    parser = argparse.ArgumentParser()
    for name in ("-o", "--gpu", "--complaint", "--precision"):
        parser.add_argument(name)
    parser.add_argument("--optimizer", default="adamw")
    for name in ("--seq", "--around"):
        parser.add_argument(name, type=int)
    parser.add_argument("--over-lengths", action="store_true")
    add_way(parser)
    parser.add_argument("--assume", default="")
    parser.add_argument("--every-precision", dest="command", action="store_const", const="plan")
    parser.add_argument("path")
    asked = parser.parse_args(arguments)
    # Looking for garbage takes a tenth of the imports, which leave none.
    gc.disable()
    asked.model = PREFIX + asked.path
    try:
        _capture(asked, asked.o)
    except CaptureError as error:
        Path(asked.complaint).write_text(in_two_lines(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if sys.argv[1:2] == ["models"]:
    from plimsoll.models.names import listed

    print(listed())
    sys.exit(0)
if sys.argv[1:2] == ["configuration"]:
    sys.exit(capture_configuration(sys.argv[2:]))

try:
    from plimsoll.script import main
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit(1)  # the program says what is needed

sys.exit(main(sys.argv[1:]))
