"""Scripts that train nothing: they evaluate, score, generate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from test_later import parts, steps  # noqa: E402
from test_script import captured, script  # noqa: E402

from plimsoll.base.place import Place  # noqa: E402
from plimsoll.events.event import Call, Free, Layout, NewStorage, PartBegin, Tensor  # noqa: E402
from plimsoll.events.pieces_of_run import Mark, NotEven, in_pieces  # noqa: E402
from plimsoll.scripts.command import main  # noqa: E402

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 100)
    def forward(self, ids, past=None):
        x = self.embed(ids)
        k, v = self.key(x), self.value(x)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        scores = (x @ k.transpose(1, 2)).softmax(-1)
        return self.head(scores @ v), (k, v)
model = Model().cuda().eval()
"""
LOOP = """
now = torch.randint(0, 100, (batch, 7)).cuda()
past, said = None, []
with torch.no_grad():
    for _ in range(40):
        logits, past = model(now, past)
        now = logits[:, -1].argmax(-1, keepdim=True)
        said.append(now)
        if (now == 2).all():
            break
print(torch.cat(said, 1).shape)
"""


def tokens(document: dict[str, Any]) -> int:
    """Rounds of the generation."""
    rounds = [part[1:] for part in parts(document) if part[0] == "generation"]
    return sum(known[0]["times"] if known else 1 for known in rounds)


def test_a_loop_of_ones_own_is_told_by_three_of_its_rounds(tmp_path: Path) -> None:
    told = captured(tmp_path, MODEL + LOOP, "{batch}").document
    assert steps(told) == 0
    seen = parts(told)
    assert seen[0] == ["prompt"] and tokens(told) == 39
    assert len(seen) < 10 and any(part[-1].get("grows") for part in seen if len(part) > 1)
    caches = [event for event in told["variants"][0]["events"] if event[:2] == ["label", "cache"]]
    assert caches, "keys and values are known to be a cache"


def test_what_is_left_out_changes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    from plimsoll.scripts import skipping

    short = captured(tmp_path, MODEL + LOOP, "{batch}").document
    monkeypatch.setattr(skipping, "_ALIKE", 1000)
    whole = captured(tmp_path, MODEL + LOOP, "{batch}").document
    assert tokens(short) == tokens(whole)

    def until_growing(document: dict[str, Any]) -> list[Any]:
        events = document["variants"][0]["events"]
        at = next(i for i, e in enumerate(events) if e[0] == "part" and len(e) > 2)
        return [event for event in events[:at] if event[0] != "part"]

    assert until_growing(short) == until_growing(whole)


def test_batches_of_an_evaluation_are_counted(tmp_path: Path) -> None:
    job = """
data = TensorDataset(torch.randn(96, 32), torch.randint(0, 8, (96,)))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda().eval()
outs = []
with torch.inference_mode():
    for x, y in DataLoader(data, batch_size=batch):
        outs.append(model(x.cuda()))
print(torch.cat(outs).shape)
"""
    told = captured(tmp_path, job, "{batch}").document
    assert steps(told) == 0
    assert [part[0] for part in parts(told)] == ["evaluation"] * 3 + ["other"]
    # 24 batches of 4 and 12 of 8, all but two of them.
    assert parts(told)[2][1] == {"times": [22, 10], "grows": True}


def test_over_a_length_too(tmp_path: Path) -> None:
    job = MODEL + LOOP.replace("(batch, 7)", "(batch, int(sys.argv[2]))")
    out = tmp_path / "job.step.json.gz"
    words = ["--lengths", "8,12,16", "--", "python", script(tmp_path, "import sys\n" + job)]
    assert fresh(main, ["-o", str(out), *words, "{batch}", "{length}"]).value == 0
    with gzip.open(out) as file:
        told = json.load(file)
    assert told["dimensions"] == ["batch", "length"] and tokens(told) == 39


def test_a_sequence_does_not_end_early(tmp_path: Path) -> None:
    job = MODEL + """
now = torch.randint(0, 100, (batch, 7)).cuda()
past, left = None, torch.ones(batch, dtype=torch.long, device="cuda")
with torch.no_grad():
    while True:
        logits, past = model(now, past)
        now = torch.multinomial(logits[:, -1].softmax(-1), 1)
        left = left * (now[:, 0] != 2).long()
        if left.max() == 0 or past[0].shape[1] >= 30:
            break
"""
    assert tokens(captured(tmp_path, job, "{batch}").document) == 23


def test_generate_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    job = """
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=96, bos_token_id=1, eos_token_id=2)
model = GPT2LMHeadModel(config).cuda().eval()
ids = torch.randint(3, 96, (batch, 5)).cuda()
out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=50, do_sample=True,
                     pad_token_id=0)
assert out.shape == (batch, 55), out.shape
"""
    told = captured(tmp_path, job, "{batch}").document
    assert parts(told)[0] == ["prompt"] and tokens(told) == 49
    assert any("to its last token" in note for note in told["notes"])


def test_what_depends_on_tokens_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    job = """
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=96, bos_token_id=1, eos_token_id=2)
model = GPT2LMHeadModel(config).cuda().eval()
ids = torch.randint(3, 96, (1, 5)).cuda()
model.generate(ids, max_new_tokens=8, prompt_lookup_num_tokens=3, pad_token_id=0)
model(torch.randint(3, 96, (batch, 5)).cuda())
"""
    out = str(tmp_path / "job.step.json.gz")
    ran = fresh(main, ["-o", out, "--", "python", script(tmp_path, job), "{batch}"])
    assert ran.value == 2 and "depends on the tokens" in ran.said


# Pieces.

_FLOAT = 4


def piece(number: int, size: int, frees: int) -> list[Any]:
    call = Call(
        "aten.cat.default",
        Place("a.py:1", "", 0),
        [],
        {},
        [Tensor(number, size, 0)],
        [NewStorage(number, _FLOAT * size, 0)],
    )
    return [call, *([Free(frees)] if frees else [])]


def rounds(sizes: list[int], more: int = 0) -> list[Any]:
    events: list[Any] = []
    marks = []
    for index, size in enumerate(sizes):
        if index:
            marks.append(Mark(len(events)))
        events += piece(index + 1, size, index)
    if more:
        marks[-1] = marks[-1]._replace(more=more)
    layouts = [Layout("float32", (n,), (1,)) for n in range(100)]
    return in_pieces(events, marks, layouts, set())


def test_rounds_that_grow_evenly_are_one_part() -> None:
    told = [event for event in rounds([9, 10, 11, 12, 13, 14]) if isinstance(event, PartBegin)]
    assert [(part.times, part.grows) for part in told] == [(1, False)] * 3 + [(3, True)]


def test_rounds_that_jump_are_told_one_by_one() -> None:
    told = [event for event in rounds([9, 10, 12, 11, 16, 14]) if isinstance(event, PartBegin)]
    assert len(told) == 6 and not any(part.grows for part in told)


def test_what_is_cut_short_has_to_be_even() -> None:
    assert rounds([9, 9, 10, 11, 12, 13], more=7)
    with pytest.raises(NotEven):
        rounds([9, 10, 12, 11, 16, 14], more=7)


def test_kernels_in_triton_are_not_launched(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    job = """
import triton
import triton.language as tl

@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)
    def forward(self, x):
        x = self.linear(x)
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        assert torch.equal(out, out)
        return out

with torch.no_grad():
    print(Model().cuda().eval()(torch.randn(batch, 32).cuda()).shape)
"""
    told = captured(tmp_path, job, "{batch}").document
    assert [part[0] for part in parts(told)] == ["evaluation"]
