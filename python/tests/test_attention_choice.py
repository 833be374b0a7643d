import json
from pathlib import Path

from plimsoll.base.gpus import capability
from plimsoll.knowledge.attention_choice import Case, kernel_of

_CASES = Path(__file__).resolve().parents[2] / "tests/data/operators/attention_choice.jsonl"


def test_the_program_and_the_package_choose_the_same_kernel():
    rows = [json.loads(line) for line in _CASES.read_text().splitlines()]
    assert len(rows) > 500
    for row in rows:
        card = capability(row["gpu"])
        assert card is not None, row["gpu"]
        release = tuple(int(part) for part in row["torch"].split("."))
        case = Case(**row["case"])
        assert kernel_of(case, card, release) == row["kernel"], row
