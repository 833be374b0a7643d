"""Everything of plimsoll.calibrate that needs no GPU: operators run on the CPU, under a gauge that
makes its figures up."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import plimsoll
from plimsoll import calibrate as calibrate_function
from plimsoll.asking.shapes import Layout, Shape, reduced, shape_of
from plimsoll.measuring import context, host, networks
from plimsoll.measuring.calibrate import Gauge, cudnn_release, gpu_name, main, measure
from plimsoll.measuring.calibration_file import Calibration, file_lines
from plimsoll.measuring.calibration_work import batch_sizes, collect
from plimsoll.measuring.clusters import clusters

REPOSITORY = Path(__file__).resolve().parents[2]


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.again = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.line = nn.Conv1d(8, 6, 3, padding=1, dilation=2, groups=2)
        self.volume = nn.Conv3d(1, 4, (2, 3, 5), stride=(1, 2, 1), padding=(0, 1, 2))
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, output_padding=1)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.plain(x) + self.again(x)
        heads = self.linear(y).flatten(2).reshape(len(x), 4, -1, 8)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return (
            self.up(y).sum()
            + self.line(y.flatten(2)).sum()
            + self.volume(x.unsqueeze(1)).sum()
            + mixed.sum()
        )


@pytest.fixture(scope="module")
def step():
    return plimsoll.capture(
        Everything,
        lambda p: torch.optim.SGD(p, 0.1),
        lambda n: torch.randn(n, 3, 16, 16),
        lambda model, x: model(x),
        precisions=["bf16"],
    )


CONVOLUTIONS = [
    "nchw 3,16,16 8,3,3 2,2 1,1 1,1 1",
    "nchw 8,8,8 4,4,4 2,2 1,1 1,1 1 transposed",
    "nchw 8,1,64 6,1,3 1,1 0,1 1,2 2",
    "nchw 1,48,16 4,6,5 2,1 1,2 1,1 1",
]


def test_distinct_convolutions(step):
    work = collect(step.document, [2, 5])
    keys = [shape.key for shape in work.convolutions]
    assert keys == [f"{dtype} {c}" for dtype in ("float32", "bfloat16") for c in CONVOLUTIONS]
    assert all(batches == [2, 5] for _, batches in work.convolutions.values())
    up = next(how for shape, (how, _) in work.convolutions.items() if shape.transposed)
    assert up.input == (8, 8, 8) and up.weight == (8, 4, 4, 4)
    assert up.settings == ((2, 2), (1, 1), (1, 1), True, (1, 1), 1)


def test_distinct_calls_grow_with_the_batch(step):
    keys = [[call.key for call in calls] for calls in collect(step.document, [2, 5]).calls]
    assert [key for key, _ in keys if "float32" in key] == [
        "addmm float32 8:1 128,8:8,1 8,8:1,8",
        "attention float32 2,4,16,8:512,128,8,1 2,4,16,8:512,128,8,1 2,4,16,8:512,128,8,1 causal",
        "mm float32 128,8:8,1 8,8:8,1",
        "mm float32 8,128:1,8 128,8:8,1",
    ]
    assert keys[0][1] == "addmm float32 8:1 320,8:8,1 8,8:1,8"
    assert len(keys) == 8  # the same in bf16


def test_a_batch_at_which_a_tensor_would_vanish_is_left_out(step):
    document = json.loads(json.dumps(step.document))
    for layout in document["layouts"]:
        layout[1] = [[1, 2] if size == [2, 3] else size for size in layout[1]]
    batches = [batches for _, batches in collect(document, [1, 4]).convolutions.values()]
    assert batches == [[3]] * 8


def test_channels_last_is_taken_from_either_tensor():
    settings = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    plain = Layout("float16", (2, 4, 6, 8), (192, 48, 8, 1))
    last = Layout("float16", (2, 4, 6, 8), (192, 1, 32, 4))
    weight = Layout("float16", (5, 4, 3, 3), (36, 9, 3, 1))
    assert shape_of(plain, weight, settings).key == "float16 nchw 4,6,8 5,3,3 1,1 0,0 1,1 1"
    assert shape_of(last, weight, settings).key == "float16 nhwc 4,6,8 5,3,3 1,1 0,0 1,1 1"
    weight_last = weight._replace(strides=(36, 1, 12, 4))
    assert shape_of(plain, weight_last, settings).channels_last
    one = ((2,), (1,), (1,), False, (0,), 1)  # one entry holds for all
    assert shape_of(plain, weight, one).sizes[6:12] == (2, 2, 1, 1, 1, 1)


class MadeUp:
    """Runs on the CPU; the n-th measurement takes n bytes."""

    device = "cpu"

    def __init__(self, fails=lambda result: False, error=torch.cuda.OutOfMemoryError, time=True):
        self.torch = torch
        self.time = time
        self.fails = fails
        self.error = error
        self.runs = 0
        self.recovered = 0

    def __call__(self, function):
        self.runs += 1
        result = function()
        if self.fails(result):
            raise self.error("no memory\nand more")
        return self.runs, float(self.runs) if self.time else None, result

    def recover(self):
        self.recovered += 1


def measured(step, batches, gauge):
    made = Calibration("H200", "2.11.0", "9.19")
    measure(collect(step.document, batches), gauge, made)
    return made


def test_every_operator_runs(step):
    gauge = MadeUp()
    made = measured(step, [1, 2], gauge)
    assert made.notes == []
    # Three directions of 8 convolutions; 3 products and an attention with its backward, twice.
    assert gauge.runs == 2 * (3 * 8 + 2 * (3 + 2))
    assert {shape.key: taken for shape, taken in made.memory.items()}[
        "float32 " + CONVOLUTIONS[0]
    ] == {1: (1, 2, 3), 2: (4, 5, 6)}
    attention = [taken for key, taken in made.calls.items() if key.startswith("attention")]
    assert [len(taken) for taken in attention] == [2] * 4
    assert "2 convolutions" not in repr(made) and "8 convolutions" in repr(made)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_an_attention_that_nobody_differentiates_has_no_backward():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x):
            mask = x.new_ones(8, 8, dtype=torch.bool)
            attend = nn.functional.scaled_dot_product_attention
            return (attend(x, x, x, attn_mask=mask, scale=0.5) + self.bias).sum()

    step = plimsoll.capture(
        Frozen, None, lambda n: torch.randn(n, 2, 8, 8), lambda model, x: model(x)
    )
    made = measured(step, [3], MadeUp())
    ((key, taken),) = made.calls.items()
    sizes = "3,2,8,8:128,64,8,1"
    assert key == (f"attention float32 {sizes} {sizes} {sizes} mask=bool:8,8:8,1 no_grad scale=0.5")
    assert taken == [(1, 1.0)]


def test_out_of_memory_stops_at_that_batch(step):
    gauge = MadeUp(lambda result: torch.is_tensor(result) and result.shape[0] == 4)
    made = measured(step, [2, 4, 8], gauge)
    assert all(list(series) == [2] for series in made.memory.values())
    assert made.memory.keys() == made.times.keys()
    note = "float32 nchw 3,16,16 8,3,3 2,2 1,1 1,1 1 at 4: out of memory; not measured from here on"
    assert made.notes[0] == note
    assert gauge.recovered == len(made.notes)
    assert any(key.startswith("mm") for key in made.calls)


def test_what_the_gpu_refuses_is_told(step):
    made = measured(step, [2], MadeUp(lambda _: True, RuntimeError))
    assert not made.memory and not made.calls
    assert made.notes[0].endswith(" at 2: no memory; not measured from here on")


class StandIn:
    """As much of torch as the gauge asks: requests are counted, the clock is told."""

    def __init__(self, clock):
        self.cuda = self
        self.clock = list(clock)
        self.now = self.peak = 0

    def empty(self, *_, device):
        assert device == "cuda"

    def request(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)

    def reset_peak_memory_stats(self):
        self.peak = self.now

    def memory_stats(self):
        return {"requested_bytes.all.peak": self.peak, "requested_bytes.all.current": self.now}

    def Event(self, enable_timing):
        return self

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, _):
        return self.clock.pop(0)


@pytest.mark.parametrize("searches", [False, True])
def test_the_gauge_counts_what_is_gone_after_the_call(searches):
    torch = StandIn([0.5, 0.2, 0.3])  # milliseconds
    calls = []

    def operator():
        search = 5000 if not calls and searches else 0
        calls.append(1)
        for size in (100, 40, search, -40, -search):  # a result, a workspace
            torch.request(size)
        return "result"

    torch.request(1000)  # of somebody else
    assert Gauge(torch, True, searches)(operator) == (40, 300.0, "result")
    assert len(calls) == 4 + searches
    assert Gauge(torch, False, searches)(operator)[:2] == (40, None)


# The file.


def test_points_on_a_line_are_left_out():
    assert reduced([(1, 5)]) == [(1, 5)]
    assert reduced([(1, 10), (2, 20), (4, 40), (8, 80)]) == [(1, 10), (8, 80)]
    # As the reader interpolates: rounded down.
    assert reduced([(1, 0), (2, 3), (3, 7)]) == [(1, 0), (3, 7)]
    assert reduced([(1, 0), (2, 4), (3, 7)]) == [(1, 0), (2, 4), (3, 7)]


SHAPE = Shape("bfloat16", 1, (3, 8, 8, 4, 1, 1, 1, 1, 0, 0, 1, 1, 1), 0)


def test_the_file(tmp_path):
    made = Calibration("H200", "2.11.0", "9.19")
    made.memory = {
        SHAPE: {8: (0, 1, 2), 4: (0, 1, 3), 2: (0, 1, 3)},
        SHAPE._replace(dtype="float16"): {4: (0, 1, 3)},  # as bf16: one line for both
        SHAPE._replace(dtype="float32"): {2: (7, 8, 9)},
    }
    made.times = {SHAPE: {4: (1.24, 2.0, 3.0), 2: (1.0, 10.0, 1e5)}}
    made.calls = {"mm float32 2,2:2,1 2,2:2,1": [(0, 5.04)], "attention x": [(9, None), (8, None)]}
    made.write(tmp_path / "a.calibration")
    made.write(tmp_path / "a.calibration.gz")
    text = (tmp_path / "a.calibration").read_bytes()
    assert gzip.decompress((tmp_path / "a.calibration.gz").read_bytes()) == text
    lines = text.decode().splitlines()
    assert lines.pop() == f"crc32 {zlib.crc32(text[: text.rindex(b'crc32 ')]):08x}"
    assert lines == [
        '{"schema":"plimsoll.calibration/2","gpu":"H200","torch":"2.11.0","cudnn":"9.19",'
        '"batches":[[2],[2,4],[2,4,8]]}',
        "bfloat16 nhwc 3,8,8 4,1,1 1,1 0,0 1,1 1\t2\t2:0 8:0\t2:1 8:1\t2:3 4:3 8:2",
        "float32 nhwc 3,8,8 4,1,1 1,1 0,0 1,1 1\t0\t2:7\t2:8\t2:9",
        "time bfloat16 nhwc 3,8,8 4,1,1 1,1 0,0 1,1 1\t1\t2:1.0 4:1.2\t2:10.0 4:2.0"
        "\t2:100000.0 4:3.0",
        "time attention x\t9\t8",
        "time mm float32 2,2:2,1 2,2:2,1\t0 5.0",
    ]


def test_fp16_that_differs_keeps_its_line():
    half = SHAPE._replace(dtype="float16")
    for series in ({2: (1, 1, 1)}, {4: (0, 0, 0)}):
        lines = list(file_lines("T4", "2.4.0", "9.1", {SHAPE: {2: (0, 0, 0)}, half: series}))
        assert len(lines) == 4


def test_the_tool_writes_the_same(tmp_path):
    rows = tmp_path / "rows.jsonl"
    series = {2: (0, 5, 1), 4: (0, 5, 9)}
    row = ["bfloat16", True, list(SHAPE.sizes), False]
    # The same shape in two rows: joined.
    rows.write_text("".join(json.dumps([*row, [[n, *v]]]) + "\n" for n, v in series.items()))
    tool = [sys.executable, REPOSITORY / "tools" / "make_calibration", "H200", "2.11.0", "9.19"]
    done = subprocess.run([*tool, rows], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(file_lines("H200", "2.11.0", "9.19", {SHAPE: series}))


# Names and messages.


def test_names():
    names = {
        "NVIDIA H200": "H200",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "Tesla T4": "T4",
        "NVIDIA A100-SXM4-80GB": "A100 80GB SXM",
        "NVIDIA H100 80GB HBM3": "H100 SXM",
        "NVIDIA RTX A6000": "RTX A6000",
        "NVIDIA Something New": "Something New",
    }
    assert {name: gpu_name(name) for name in names} == names
    assert cudnn_release(91900) == "9.19"
    assert cudnn_release(90100) == "9.1"
    assert cudnn_release(8902) == "8.9"
    assert cudnn_release(None) == "none"


MIB = 1 << 20


class Card:
    """torch.cuda with a card of which `free` is left, reading by reading."""

    def __init__(self, monkeypatch, *free, reserved=()):
        self.free = list(free)
        self.reserved = list(reserved)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.free.pop(0), 80 << 30))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved.pop(0))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        zeros = torch.zeros
        monkeypatch.setattr(
            torch, "zeros", lambda *sizes, device=None, **more: zeros(*sizes, **more)
        )


def test_the_context_is_what_a_second_process_takes(monkeypatch):
    Card(monkeypatch, 60000 * MIB, 60000 * MIB)
    reading = context.Reading(59571 * MIB, 2 * MIB, 59400 * MIB, 60 * MIB)
    assert context.measured(torch, lambda: reading) == (427 * MIB, 540 * MIB)


@pytest.mark.parametrize(
    "after, reading",
    [
        (59900, (59571, 2, 59400, 60)),  # somebody took 100 MiB
        (60000, (60200, 2, 59400, 60)),  # somebody gave memory back
        (60000, (59571, 2, 59900, 60)),
    ],
)
def test_a_card_that_others_use_meanwhile(monkeypatch, after, reading):
    Card(monkeypatch, 60000 * MIB, after * MIB)
    with pytest.raises(plimsoll.CaptureError, match="others took or gave"):
        context.measured(torch, lambda: context.Reading(*(figure * MIB for figure in reading)))


def test_the_process_that_is_measured_trains(monkeypatch):
    card = Card(monkeypatch, 900, 700, reserved=[2, 60])
    assert context.read(torch, "cpu") == (900, 2, 700, 60)
    assert not card.free


def test_the_context_alone_is_a_file(monkeypatch, tmp_path, capsys):
    module = sys.modules["plimsoll.measuring.calibrate"]
    monkeypatch.setattr(module, "_torch_with_gpu", lambda: torch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(context, "measured", lambda torch: context.Context(427 * MIB, 540 * MIB))
    path = tmp_path / "card.calibration"
    assert main(["--context", str(path)]) == 0
    assert capsys.readouterr().out == (
        "RTX 4090: 427.0 MiB when CUDA starts, 540.0 MiB while training\n"
    )
    first, checksum = path.read_text().splitlines()
    header = json.loads(first)
    assert header["gpu"] == "RTX 4090" and header["batches"] == []
    assert header["context"] == {"bare": 427 * MIB, "training": 540 * MIB}
    assert checksum == f"crc32 {zlib.crc32((first + chr(10)).encode()):08x}"


def test_nothing_to_measure(tmp_path, capsys):
    with pytest.raises(plimsoll.CaptureError, match="nothing to measure"):
        plimsoll.calibrate()
    assert main([str(tmp_path / "file")]) == 2
    assert "there is nothing to measure" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_process_that_cannot_be_measured():
    with pytest.raises(plimsoll.CaptureError, match="the process that is measured failed"):
        context._in_a_fresh_process()


def test_names_are_those_of_the_catalogue():
    catalogue = (REPOSITORY / "src" / "hardware" / "catalogue.cc").read_text()
    known = set(re.findall(r'\{k\w+, "([^"]+)"', catalogue))
    module = sys.modules["plimsoll.measuring.calibrate"]
    assert len(known) > 40 and set(module._CATALOGUE.values()) <= known


def test_the_function_is_not_hidden_by_its_module():
    script = "import plimsoll.measuring.calibrate, plimsoll, sys; print(callable("
    script += "plimsoll.calibrate), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY / "python", capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert plimsoll.calibrate is calibrate_function


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu(step, tmp_path):
    step.write(tmp_path / "a.step.json.gz")
    for given in (step, tmp_path / "a.step.json.gz", str(tmp_path / "a.step.json.gz")):
        with pytest.raises(plimsoll.CaptureError, match="nothing to measure on") as caught:
            plimsoll.calibrate(given, path=tmp_path / "none")
        assert "copy the step file there" in str(caught.value)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("batches", [[], [0], [2, -1], [2.5], ["8"]])
def test_batches_that_are_none(step, batches):
    with pytest.raises(plimsoll.CaptureError, match="`batches` is"):
        plimsoll.calibrate(step, batches=batches)


def test_usual_batches(step):
    assert batch_sizes(step.document, None) == [1, 2, 3, 4, 8, 16, 32, 64]
    assert batch_sizes(step.document, (8, 4, 8)) == [4, 8]


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "is not a step file"),
        (b"[1]", "is not a step file"),
        (b'{"schema": "plimsoll.calibration/2"}', "is not a step file"),
        (b"\x1f\x8b\x08broken", "is not a step file"),
        (b"\xfd7zXZ\x00broken", "is not a step file"),
        (b"\x28\xb5\x2f\xfdpacked", "zstd -d"),
    ],
)
def test_files_that_are_no_steps(tmp_path, content, what):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(plimsoll.CaptureError, match=what):
        plimsoll.calibrate(tmp_path / "file")


def test_a_step_with_nothing_to_measure():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (x * self.scale).sum()

    step = plimsoll.capture(
        Scale, None, lambda n: torch.randn(n, 8), lambda model, x: model(x), steps=1
    )
    with pytest.raises(plimsoll.CaptureError, match="no convolution, attention or matrix"):
        plimsoll.calibrate(step)


class Driver:
    """A card on which the largest clusters are of eight blocks."""

    def __init__(self, status=0):
        self.status = status
        self.asked = []

    def __getattr__(self, name):
        assert name.startswith("cu")
        return lambda *_: self.status

    def cuOccupancyMaxActiveClusters(self, found, kernel, launch):
        launch = launch._obj
        size = launch.attributes[0].value[0]
        assert launch.attributes[0].id == 4 and launch.count == 1
        assert launch.grid[0] % size == 0 and launch.shared_memory == 200 << 10
        found._obj.value = 132 // size if size <= 8 else 0
        return self.status


class Cuda:
    def __init__(self, *capability):
        self.cuda = self
        self.get_device_capability = lambda: capability


def test_a_card_with_clusters_is_asked_how_many_it_holds():
    assert clusters(Cuda(9, 0), lambda name: Driver()) == (132, 66, 44, 33, 26, 22, 18, 16)
    assert clusters(Cuda(8, 9), lambda name: Driver()) == ()
    assert clusters(Cuda(9, 0), lambda name: Driver(status=1)) == ()

    def missing(name):
        raise OSError(name)

    assert clusters(Cuda(9, 0), missing) == ()


def test_the_clusters_stand_in_the_first_line():
    made = Calibration("H200", "2.13.0", "9.19")
    assert "clusters" not in json.loads(made.text().splitlines()[0])
    made.clusters = (132, 66)
    assert json.loads(made.text().splitlines()[0])["clusters"] == [132, 66]


def test_how_long_python_takes_follows_from_phases():
    """Of made-up steps: what they were made of comes out."""

    def step(calls, entries, lists, again=0):
        forward = host.Phase(host.Counted(calls, 0, 2 * calls), 30.0 * calls)
        # Each checkpoint repeats its calls and takes 400 µs besides.
        backward = host.Phase(
            host.Counted(2 * calls + again, 0, 4 * calls + 2 * again),
            20.0 * (2 * calls) + 30.0 * again + (networks.BLOCKS * 400.0 if again else 0.0),
        )
        update = host.Phase(host.Counted(lists, entries, 0), 40.0 * lists + 1.5 * entries)
        return host.Step(forward, backward, update, forward.us + backward.us + update.us + 250)

    sizes = (72, 96, 120)
    plain = [step(calls, 10 * calls, 8) for calls in sizes]
    few = [step(calls, 4 * calls, 3) for calls in sizes]
    again = [step(calls, 4 * calls, 3, calls) for calls in sizes]
    loops = [
        one._replace(optimizer=host.Phase(host.Counted(10 * calls, 0, 0), 90.0 * calls))
        for one, calls in zip(plain, sizes)
    ]
    found = host.fitted(plain, loops, few, again)
    assert found.forward == pytest.approx(30)
    assert found.backward == pytest.approx(20)
    assert (found.list, found.entry) == (pytest.approx(40), pytest.approx(1.5))
    assert found.loop == pytest.approx(9)
    assert found.step == pytest.approx(250)
    assert found.checkpoint + 16 * found.saved == pytest.approx(400)


def test_casts_take_what_a_call_of_the_backward_takes():
    forward = host.Phase(host.Counted(150, 0, 300, casts=50), 100 * 30.0 + 50 * 20.0)
    backward = host.Phase(host.Counted(200, 0, 400), 200 * 20.0)
    update = host.Phase(host.Counted(8, 80, 0), 440.0)
    step = host.Step(forward, backward, update, forward.us + backward.us + update.us)
    found = host.fitted([step], [step], [step], [step])
    assert (found.forward, found.backward) == (pytest.approx(30), pytest.approx(20))


@pytest.mark.parametrize("network", networks.ALL, ids=lambda network: network.__name__)
def test_what_the_host_is_timed_with_trains(network):
    """Blocks take what the one before gives, under autocast too, and all that they have learns."""
    blocks, sizes = network(torch)
    assert len(blocks) == networks.BLOCKS
    for autocast in (False, True):
        y = torch.randn(*sizes)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            for block in blocks:
                y = block(y)
        assert y.shape == sizes
        y.float().square().mean().backward()
    assert all(p.grad is not None for p in blocks.parameters())


def test_the_host_alone_is_a_file(monkeypatch, tmp_path, capsys):
    module = sys.modules["plimsoll.measuring.calibrate"]
    monkeypatch.setattr(module, "_torch_with_gpu", lambda: torch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    times = host.HostTimes(30, 20, 40, 1.5, 9, 250, 300, 12.5)
    monkeypatch.setattr(host, "measured", lambda torch: times)
    path = tmp_path / "machine.calibration"
    assert main(["--host", str(path)]) == 0
    assert "30 µs a call of the forward, 20 of the backward" in capsys.readouterr().out
    assert json.loads(path.read_text().splitlines()[0])["host"] == times._asdict()
