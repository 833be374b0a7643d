import gc
import os
import signal
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# The package beside us, whether or not one is installed.
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "lab/python")]

# A shell that starts this in its background has Ctrl-C ignored in all of it, and test_life.py
# would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """PLIMSOLL_PYTHON_SHARD=1/6: every sixth file, from the second on, by night."""
    shard, _, shards = os.environ.get("PLIMSOLL_PYTHON_SHARD", "").partition("/")
    if shards:
        files = sorted({item.path for item in items})
        kept = set(files[int(shard) :: int(shards)])
        items[:] = [item for item in items if item.path in kept]


@pytest.fixture(scope="session", autouse=True)
def torchvision_or_not():
    """transformers imports torchvision where it finds one, even one built for another torch."""
    pytest.importorskip("torch")
    from zoo_jobs import torchvision_without_extension

    torchvision_without_extension()


@pytest.fixture(autouse=True)
def trials(request, monkeypatch):
    """What could be freed earlier is found by running the job again, several times: that is for
    test_release.py and test_release_edits.py. `trials(0)` ends it there."""
    from plimsoll.capturing import release

    def at_most(count):
        monkeypatch.setattr(release, "_MOST_TRIALS", count)

    if "release" not in request.node.path.name:
        at_most(0)
    return at_most


@pytest.fixture(scope="module", autouse=True)
def nothing_loaded_is_garbage(torchvision_or_not):
    """Each capture has the collector look through all there is, and torch alone is a lot."""
    gc.collect()
    gc.freeze()
