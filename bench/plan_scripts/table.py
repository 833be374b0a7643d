from pathlib import Path
def table(out: Path, results: Path) -> int:
    return 0
