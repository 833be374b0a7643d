"""Asks cuDNN, in a process of its own: what is loaded there stays there, and a library that fails
takes nothing with it. Started by answers.py. Reads one JSON document and writes a line for each
question as soon as it is answered."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from .backend import Cudnn, Query, Refused


def _answer(cudnn: Cudnn, row: list[Any], most: int | None) -> list[Any]:
    fields: Any = (tuple(field) if isinstance(field, list) else field for field in row)
    try:
        plans = list(itertools.islice(cudnn.plans(Query(*fields)), most))
    except Refused:
        return []
    return [[plan.engine, plan.workspace, sorted(plan.knobs.items())] for plan in plans]


def main() -> int:
    asked = json.load(sys.stdin)
    try:
        cudnn = Cudnn(asked["library"], asked["device"], asked["tf32"], asked["deterministic"])
    except (OSError, Refused, AttributeError) as error:
        print(json.dumps({"error": str(error)}))
        return 0
    print(json.dumps({"version": cudnn.version}), flush=True)
    for row in asked["queries"]:
        print(json.dumps(_answer(cudnn, row, asked["most_plans"])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
