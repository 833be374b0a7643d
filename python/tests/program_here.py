"""The plimsoll program, for tests that ask it; they are skipped where it is not built."""

from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll import ProgramError
from plimsoll.answers.program import find

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SNAPSHOT = DATA / "kinds" / "out_in_backward.pickle.xz"
STEP = DATA / "steps" / "mlp_adamw_fp32.step.json.gz"
GPT2 = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"


def is_here() -> bool:
    try:
        find()
    except ProgramError:
        return False
    return True


needs_program = pytest.mark.skipif(not is_here(), reason="the plimsoll program is not here")
