"""What a made-up log says, figure by figure, and what plimsoll must read from it."""
import dataclasses
import json
import subprocess

KIB, MIB, GIB, GIGA = 1024, 1024**2, 1024**3, 10**9


@dataclasses.dataclass(frozen=True)
class Figure:
    """One printed figure: bytes as a program would have meant them, and how far its last digit may be off."""
    field: str
    counts: str
    value: float
    half: float = 0.0
    of: str = "now"
    step: int | None = None
    rank: int | None = None
    device: int | None = None
    phase: str = ""
    process: str = ""


@dataclasses.dataclass
class Log:
    name: str
    text: str
    figures: list
    file: str = "run.log"
    # Figures that are whole on a line that is not: the words that tell whose line it is may be missing.
    may_be_missing: tuple = ()


def explain(program, path):
    done = subprocess.run([program, "explain", "--json", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return json.loads(done.stdout), ""


def found(answer):
    """Every figure of an answer, as (field, counts, of, step, rank, device, phase, process, value)."""
    rows = []
    for series in answer.get("log", {}).get("series", []):
        if series["inferred"]:
            continue
        for step, value, line in series["points"]:
            rows.append((series["field"], series["counts"], series["of"], step, series["rank"], series["device"],
                         series["phase"], series["process"], value, line))
    return rows


def differences(log, answer):
    """What is missing, what is too much, in sentences."""
    rest = [row for row in found(answer)]
    wrong = []
    for figure in log.figures:
        for row in rest:
            field, counts, of, step, rank, device, phase, process, value, _ = row
            same = (field, counts, of, step, rank, device, phase, process) == (
                figure.field, figure.counts, figure.of, figure.step, figure.rank, figure.device, figure.phase,
                figure.process)
            if same and abs(value - figure.value) <= figure.half + 1:
                rest.remove(row)
                break
        else:
            if figure not in log.may_be_missing:
                wrong.append(f"missing: {figure}")
    wrong += [f"too much: {row}" for row in rest]
    return wrong
