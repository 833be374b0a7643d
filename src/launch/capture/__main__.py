"""The Python package inside the program, unpacked beside the archive and started:

capture.zip -o STEP … -- python train.py        a script
capture.zip configuration -o STEP … -- PATH     a model by its config.json or its name
capture.zip models                              the names that are known
"""

import argparse
import gc
import sys
import zipfile
from pathlib import Path

archive = sys.path[0]
sys.path[0] = archive + ".files"
zipfile.ZipFile(archive).extractall(sys.path[0])


def capture_configuration(arguments):
    from plimsoll.__main__ import _capture, add_way
    from plimsoll.capturing.configuration import PREFIX
    from plimsoll.base.errors import CaptureError, in_two_lines

    parser = argparse.ArgumentParser()
    for name in ("-o", "--gpu", "--complaint", "--precision"):
        parser.add_argument(name)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--seq", type=int)
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

from plimsoll.script import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
