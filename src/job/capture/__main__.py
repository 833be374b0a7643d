"""The Python package inside the program, unpacked beside the archive and started."""

import sys
import zipfile

archive = sys.path[0]
sys.path[0] = archive + ".files"
zipfile.ZipFile(archive).extractall(sys.path[0])

from plimsoll.script import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
