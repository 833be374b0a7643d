"""Steps of models by name that were captured before. What a capture depends on is what it is kept
by: the configuration, what was asked of it, the releases here, and this package itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Callable

from ..base.compiling import cache

#: The oldest goes.
_MOST = 64
_LIBRARIES = ("torch", "transformers")


def kept_or_made(asked: Any, path: str, make: Callable[[str], None]) -> None:
    """`asked`: all that the step depends on besides what is installed, as JSON has it. Writes the
    step file `path`, by `make` where it is not kept."""
    folder = cache() / "steps"
    kept = folder / f"{_key(asked)}.step.json{'.gz' if path.endswith('.gz') else ''}"
    with contextlib.suppress(OSError):
        if kept.exists():
            shutil.copyfile(kept, path)
            kept.touch()
            return
    make(path)
    with contextlib.suppress(OSError):  # without it the next one takes as long
        folder.mkdir(parents=True, exist_ok=True)
        made = kept.with_name(f".{kept.name}.{id(asked)}")
        shutil.copyfile(path, made)
        made.replace(kept)
        for old in sorted(folder.glob("*.step.json*"), key=lambda f: f.stat().st_mtime)[:-_MOST]:
            old.unlink()


def _key(asked: Any) -> str:
    releases = [sys.version]
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            releases.append(f"{library} {metadata.version(library)}")
    digest = hashlib.sha256(json.dumps([asked, releases], sort_keys=True).encode())
    package = Path(__file__).resolve().parent.parent
    for source in sorted(package.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]
