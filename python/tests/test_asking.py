"""What cuDNN is asked without a GPU: by a library that makes its answers up, and by the real one
where it is found (PLIMSOLL_CUDNN, or nvidia-cudnn beside this Python)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from plimsoll.asking import answers, cards, library
from plimsoll.asking.backend import Plan, Query, strides
from plimsoll.asking.questions import Asked, Place, collect, is_depthwise, key_of, query_of
from plimsoll.asking.recount import recounted
from plimsoll.asking.shapes import Convolution, Layout, shape_of
from plimsoll.base.gpus import named

H200 = cards.card_of("H200", named("H200"))

# One engine, whose workspace is a thousand bytes for each of the output's batch.
FAKE = """
#include <stdlib.h>
#include <string.h>
typedef struct { int kind; } D;
static long last;
size_t cudnnGetVersion(void) { return VERSION; }
int cudnnBackendCreateDescriptor(int kind, D** d) {
  *d = calloc(1, sizeof(D)); (*d)->kind = kind; return 0; }
int cudnnBackendDestroyDescriptor(D* d) { free(d); return 0; }
int cudnnBackendSetAttribute(D* d, int name, int type, long n, const long* v) {
  if (name == 902) last = v[0]; return 0; }
int cudnnBackendFinalize(D* d) { return 0; }
int cudnnBackendGetAttribute(D* d, int name, int type, long room, long* n, void* v) {
  *n = 1;
  if (name == 302 || name == 1303) *n = 0;
  if (name == 1301) *(long*)v = 7;
  if (name == 402) *(long*)v = 1000 * last;
  return 0; }
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A folder with a library; `fake(version)` compiles it."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler is here")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PLIMSOLL_CUDNN", str(tmp_path / "cudnn"))

    def make(version: int = 91900) -> Path:
        folder = tmp_path / "cudnn" / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "fake.c"
        source.write_text(FAKE)
        flags = ["-w", "-shared", "-fPIC", f"-DVERSION={version}"]
        subprocess.run(["cc", str(source), *flags, "-o", str(folder / "libcudnn.so.9")], check=True)
        return folder / "libcudnn.so.9"

    return make


def document(**more):
    """A convolution, forward and backward, of images of 8 x 8 at batches 2 and 3."""
    pair = [2, 3]
    input, weight = {"t": [1, 0, 0]}, {"t": [2, 1, 2]}
    settings = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    output = [{"t": [3, 2, 0]}]
    events = [
        ["step"],
        ["call", 0, -1, -1, 0, [input, weight, None, *settings], {}, output,
         [[3, [4096, 6144], 0]]],
        ["call", 1, -1, -1, 1, [{"t": [3, 2, 0]}, input, weight, [8], *settings,
                                [False, True, False]], {}, [], []],
    ]  # fmt: skip
    return {
        "schema": "plimsoll.step/1",
        "gpu": "H200",
        "batches": pair,
        "settings": {"cudnn_tf32": True, "deterministic": False},
        "strings": ["aten.convolution.default", "aten.convolution_backward.default"],
        "layouts": [
            ["float32", [pair, 4, 8, 8], [256, 64, 8, 1]],
            ["float32", [8, 4, 3, 3], [36, 9, 3, 1]],
            ["float32", [pair, 8, 8, 8], [512, 64, 8, 1]],
        ],
        "variants": [{"precision": "as_written", "events": events}],
        "notes": [],
        **more,
    }


def asked(made):
    answers.add_answers(made, made["notes"].append, 100)
    return made.get("asked")


# From the library to the file.


def test_answers_go_into_the_document(fake):
    fake()
    found = asked(document())
    assert found["gpu"] == "H200" and found["cudnn"] == "9.19.0"
    key, number, forward, data, weight = found["convolutions"][0].split("\t")
    assert key == "float32 nchw 4,8,8 8,3,3 1,1 1,1 1,1 1"
    batches = found["batches"][int(number)]
    assert {1, 2, 3, 64, 100} <= set(batches) and batches == sorted(batches)
    assert forward == f"1:1000 {batches[-1]}:{batches[-1] * 1000}"
    assert data == "", "no gradient of the input is asked for"
    assert weight == forward


def test_what_a_variable_holds_is_asked_about_too(fake):
    fake()
    held = document()
    # A fourth number says for how many calls a variable of a function holds the result.
    held["variants"][0]["events"][1][8][0].append(2)
    assert asked(held)["convolutions"] == asked(document())["convolutions"]


def test_under_benchmark_all_plans_are_asked_for(fake):
    fake()
    made = document(settings={"cudnn_benchmark": True})
    found = asked(made)
    assert found["searched"] == found["timed"] == found["convolutions"], "it has one engine"
    assert {2, 3, 64, 100} <= set(found["batches"][0])
    assert "counted as cuDNN says it for the H200" in made["notes"][-1]


def test_under_benchmark_a_note_says_that_the_search_is_not_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("PLIMSOLL_CUDNN", str(tmp_path))
    made = document(settings={"cudnn_benchmark": True})
    assert asked(made) is None
    assert "that is not counted" in made["notes"][-1]


def test_plans_of_all_engines_have_their_largest_workspace():
    plans = [Plan(1, 10, {}), *(Plan(2, 20, {}) for _ in range(9)), Plan(3, 30, {})]
    query = Query("float32", False, "forward", (2, 4, 8, 8), (8, 4, 3, 3), (2, 8, 8, 8),
                  (1, 1), (1, 1), (1, 1))  # fmt: skip
    assert answers._sizes(query, plans, H200) == [10, 20, 30]
    assert answers._sizes(query, [], H200) == []


def test_nothing_is_asked_where_there_is_no_library(monkeypatch, tmp_path):
    monkeypatch.setenv("PLIMSOLL_CUDNN", str(tmp_path))
    made = document()
    assert asked(made) is None and made["notes"] == []


def test_none_asks_nobody(fake, monkeypatch):
    fake()
    monkeypatch.setenv("PLIMSOLL_CUDNN", "none")
    assert library.find_library() is None


def test_a_card_that_is_not_known_is_not_asked_about(fake):
    fake()
    assert asked(document(gpu="Voodoo 2")) is None


@pytest.mark.parametrize("what", ["old", "broken", "no compiler"])
def test_a_note_says_why_there_is_no_answer(fake, monkeypatch, what):
    path = fake(90100 if what == "old" else 91900)
    if what == "broken":
        path.write_text("no library")
    if what == "no compiler":
        monkeypatch.setenv("PATH", "/nonexistent")
        monkeypatch.delenv("CC", raising=False)
    made = document()
    assert asked(made) is None
    assert len(made["notes"]) == 1 and "by rule" in made["notes"][0]
    if what == "old":
        assert "release 9.1, 9.8 is needed" in made["notes"][0]


def test_an_estimated_card_is_said_to_be_so(fake):
    fake()
    made = document(gpu="H100 SXM")
    assert asked(made)["gpu"] == "H100 SXM"
    assert "estimated" in made["notes"][0]


def test_a_calibration_tells_the_clusters_of_its_card(monkeypatch, tmp_path):
    path = tmp_path / "my.calibration"
    path.write_text(json.dumps({"gpu": "H100 SXM", "clusters": [132, 64, 36]}) + "\n")
    monkeypatch.setenv("PLIMSOLL_CALIBRATION", str(path))
    card = cards.card_of("H100 SXM", named("H100 SXM"))
    assert card.clusters == (132, 64, 36) and not card.clusters_are_estimated
    assert cards.card_of("H200", named("H200")).clusters[0] == 132
    path.write_text("something else\n")
    assert cards.card_of("H100 SXM", named("H100 SXM")).clusters_are_estimated


def test_of_too_many_the_batches_of_all_are_cut(fake, monkeypatch):
    fake()
    monkeypatch.setattr(answers, "MOST_QUERIES", 6)
    assert asked(document())["batches"] == [[2, 3, 100]]


# Questions.


def convolution(input, weight, settings, dtype="float32"):
    given = Layout(dtype, input, tuple(strides(input, False)))
    kernel = Layout(dtype, weight, tuple(strides(weight, False)))
    return Convolution(shape_of(given, kernel, settings), input[1:], weight, settings)


def test_a_transposed_one_is_the_gradient_of_an_ordinary_one():
    how = convolution((4, 64, 28, 28), (64, 32, 2, 2), ((2, 2), (0, 0), (1, 1), True, (0, 0), 1))
    query = query_of(how, 4, "forward")
    assert query.direction == "backward_data"
    assert query.input == (4, 32, 56, 56) and query.output == (4, 64, 28, 28)
    assert query_of(how, 4, "backward_data").direction == "forward"
    assert query_of(how, 4, "backward_weight").direction == "backward_weight"
    assert key_of(how).endswith(" transposed")


def test_one_dimension_is_two_and_three_are_told_apart():
    line = convolution((4, 8, 100), (16, 8, 3), ((1,), (1,), (1,), False, (0,), 1))
    assert query_of(line, 4, "forward").input == (4, 8, 1, 100)
    assert query_of(line, 4, "forward").weight == (16, 8, 1, 3)
    settings = ((1, 2, 2), (1, 0, 0), (1, 1, 1), False, (0, 0, 0), 1)
    volume = convolution((2, 16, 4, 14, 14), (32, 16, 3, 1, 1), settings)
    assert key_of(volume) == "float32 ncdhw 16,4,14,14 32,3,1,1 1,2,2 1,0,0 1,1,1 1"
    assert query_of(volume, 2, "forward").output == (2, 32, 4, 7, 7)


def test_depthwise_is_left_to_the_rules():
    settings = ((1, 1), (1, 1), (1, 1), False, (0, 0), 32)
    assert is_depthwise(convolution((4, 32, 8, 8), (32, 1, 3, 3), settings))
    assert not is_depthwise(convolution((4, 32, 8, 8), (64, 4, 3, 3), (*settings[:5], 8)))
    made = document()
    made["layouts"][0][1][1] = 8
    made["layouts"][1][1][1] = 1
    for event in made["variants"][0]["events"][1:]:
        event[5][-1 if len(event[5]) == 9 else 9] = 8
    assert not collect(made)


def test_a_first_size_follows_the_batch_where_it_is_so_much_for_each_sample():
    how = convolution((4, 8, 100), (16, 8, 3), ((1,), (1,), (1,), False, (0,), 1))
    each = Asked(how, {"forward"}, {Place(2, 16), Place(3, 24)})
    assert [*each.own_batches([1, 5])] == [8, 40]
    other = Asked(how, {"forward"}, {Place(2, 16), Place(3, 17)})
    assert [*other.own_batches([1, 5])] == []


def test_an_evaluation_with_twice_the_samples_is_asked_about_too():
    how = convolution((4, 8, 100), (16, 8, 3), ((1,), (1,), (1,), False, (0,), 1))
    both = Asked(how, {"forward"}, {Place(4, 4), Place(8, 8), Place(4, 8), Place(8, 16)})
    assert [*both.own_batches([128])] == [128, 256]
    # One for each sample: its own size is not the batch's.
    assert [*Asked(how, {"forward"}, {Place(4, 1), Place(8, 1)}).own_batches([128])] == []


def test_points_of_a_length_are_asked_each_for_itself():
    over = document(
        schema="plimsoll.step/2",
        dimensions=["batch", "side"],
        points=[[2, 8], [3, 8], [2, 16]],
        numbers=[[2, 3, 2], [8, 8, 16]],
    )
    over["layouts"][0][1] = [[0], 4, [1], [1]]
    over["layouts"][0][2] = [256, 64, 8, 1]
    found = collect(over)
    assert {key.split()[2] for key in found} == {"4,8,8", "4,16,16"}
    assert found["float32 nchw 4,16,16 8,3,3 1,1 1,1 1,1 1"].places == {Place(2, 2)}


# Sums that are split, against what an H200 took (cuDNN 9.19). The plans are cuDNN's.


@pytest.mark.parametrize(
    ("query", "plan", "took"),
    [
        (
            Query("bfloat16", False, "backward_weight", (12, 192, 112, 112), (112, 192, 5, 5),
                  (12, 112, 112, 112), (1, 1), (2, 2), (1, 1)),
            Plan(65, 93579503, {2: 9, 13: 1, 18: 1, 25: 0, 27: 5, 28: 1}), 99478099,
        ),
        (
            Query("float32", True, "forward", (16, 576, 40, 40), (480, 576, 3, 3),
                  (16, 480, 40, 40), (1, 1), (1, 1), (1, 1)),
            Plan(67, 2097363, {2: 3, 13: 0, 18: 0, 25: 0, 27: 1, 28: 2}), 17302259,
        ),
        (
            Query("float16", False, "forward", (32, 768, 28, 28), (96, 768, 3, 3),
                  (32, 96, 28, 28), (1, 1), (1, 1), (1, 1)),
            Plan(62, 0, {2: 0, 13: 1, 18: 0, 25: 0, 27: 4, 28: 2}), 12 * 8 * 65536 - 2 * 8 * 65536,
        ),
        (
            Query("float32", True, "backward_data", (6, 512, 16, 16), (1024, 512, 3, 3),
                  (6, 1024, 16, 16), (1, 1), (1, 1), (1, 1)),
            Plan(71, 131, {2: 0, 13: 0, 18: 0, 25: 0, 27: 4, 28: 1}), 6291807,
        ),
    ],
)  # fmt: skip
def test_partial_sums_are_counted_for_the_card(query, plan, took):
    assert abs(recounted(query, plan, H200) - took) <= 1024


def test_what_keeps_no_partial_sums_is_as_cudnn_says():
    query = Query("bfloat16", False, "forward", (12, 192, 112, 112), (112, 192, 5, 5),
                  (12, 112, 112, 112), (1, 1), (2, 2), (1, 1))  # fmt: skip
    knobs = {2: 0, 13: 1, 18: 0, 25: 1, 27: 8, 28: 1}
    assert recounted(query, Plan(62, 92596371, knobs), H200) == 92596371
    assert recounted(query, Plan(45, 5, {}), H200) == 5
    assert recounted(query, Plan(62, 5, {**knobs, 25: 0, 2: 99}), H200) == 5, "an unknown tile"


def test_how_cublas_splits_the_sum_of_a_weight_is_not_cudnns_to_tell():
    query = Query("float32", True, "backward_weight", (48, 96, 24, 24), (672, 96, 1, 1),
                  (48, 672, 24, 24), (1, 1), (0, 0), (1, 1))  # fmt: skip
    assert recounted(query, Plan(62, 0, {25: 2}), H200) is None
    assert recounted(query, Plan(62, 0, {25: 0}), H200) == 0
    assert recounted(query._replace(channels_last=False), Plan(62, 9, {25: 2}), H200) == 9


# The real one.


def test_the_real_library_says_what_was_measured(tmp_path, monkeypatch):
    path = library.find_library()
    if path is None:
        pytest.skip("no cuDNN is here: set PLIMSOLL_CUDNN to a folder with libcudnn.so.9")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    query = Query("bfloat16", False, "forward", (12, 192, 112, 112), (112, 192, 5, 5),
                  (12, 112, 112, 112), (1, 1), (2, 2), (1, 1))  # fmt: skip
    version, plans = answers.ask(path, H200, [query, query._replace(direction="backward_data")])
    assert version >= 90800 and all(plans)
    if version // 100 == 919:
        assert plans[0][0].workspace == 92596371  # measured on an H200
