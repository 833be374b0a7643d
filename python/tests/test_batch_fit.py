"""The largest and the fastest batch; a run on a GPU is stood in for here, and real in
test_real_gpu.py."""

from __future__ import annotations

import pytest
from program_here import DATA, GPT2, needs_program

torch = pytest.importorskip("torch")

import plimsoll
from plimsoll.capturing.optimizers import no_overflow
from plimsoll.measuring import batch_fit, gpu_run

JOB = (
    lambda: torch.nn.Linear(256, 256),
    lambda p: torch.optim.AdamW(p),
    lambda n: torch.randn(n, 256),
    lambda m, x: m(x).sum(),
)


@needs_program
def test_the_batch_is_that_of_the_program():
    found = plimsoll.fit_batch(GPT2, gpu="RTX 4090")
    batches = found.prediction.document["batches"]
    assert found.largest == batches["surely_fits"]["batch"] == 12
    assert found.fastest <= found.largest <= found.may_fit
    assert found.prediction.batch == found.fastest
    assert found.confirmed is None and found.known == "Predicted for RTX 4090; not run."
    assert "Batch 12 is the largest that fits for certain on RTX 4090" in str(found)
    assert "Batch 12" in found._repr_html_()


@needs_program
def test_the_fastest_fits_for_certain():
    vgg = DATA / "steps" / "vgg16_sgdm.step.json.gz"
    found = plimsoll.fit_batch(vgg, gpu="H200", budget="6622MiB")
    assert 0 < found.fastest <= found.largest
    assert found.prediction.document["limit"] == 6622 << 20
    assert found.samples_per_second > 0


@needs_program
def test_nothing_fits():
    found = plimsoll.fit_batch(GPT2, gpu="RTX 4090", budget="600MiB")
    assert found.largest == found.fastest == 0
    assert str(found).startswith("No batch fits for certain on RTX 4090 within 600.00 MiB")


@needs_program
def test_a_job_is_captured_and_a_run_confirms_it(monkeypatch):
    ran = []

    def measure(model, job, batch, budget, channels_last):
        ran.append((batch, budget, job.accumulate))
        return gpu_run.Measured("NVIDIA L4", batch, job.steps, 1, 2 << 20, 0.5)

    monkeypatch.setattr(batch_fit, "_gpu_here", lambda: "L4")
    monkeypatch.setattr(gpu_run, "measure", measure)
    found = plimsoll.fit_batch(*JOB, budget="1GiB", accumulate=2)
    assert ran == [(found.fastest, 1 << 30, 2)] and found.confirmed is True
    assert found.samples_per_second == 2 * found.fastest / 0.5  # a step has two passes
    assert "confirmed by 6 steps of batch" in found.known and "2.00 MiB reserved" in found.known
    # For another card nothing is run, unless that is asked for.
    assert plimsoll.fit_batch(*JOB, gpu="T4", budget="1GiB").confirmed is None and len(ran) == 1

    def fails(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried\nmore")

    monkeypatch.setattr(gpu_run, "measure", fails)
    found = plimsoll.fit_batch(*JOB, budget="1GiB")
    assert found.confirmed is False and "failed: CUDA out of memory. Tried" in found.known


@pytest.mark.parametrize("way", ["loss", "scaled", "train_step"])
def test_the_run_is_the_job_that_was_captured(way):
    """On the phantom device, where every figure is 0: the loop itself."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from plimsoll.world.device import phantom_device
    from plimsoll.world.model import building

    calls = []

    def loss(model, x):
        assert x.device.type == "cuda" and next(model.parameters()).device.type == "cuda"
        calls.append(x.shape[0])
        return model(x).sum()

    def train_step(model, optimizer, batch):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    options = {"accumulate": 2}
    if way == "scaled":
        options.update(autocast=torch.float16, scaler=True)
    if way == "train_step":
        options = {"train_step": train_step}
    with phantom_device("L4"), FakeTensorMode(allow_non_fake_inputs=True), building():
        given = None if way == "train_step" else loss
        job = gpu_run.job_of(JOB[1], JOB[2], given, **options)
        with no_overflow():
            found = gpu_run.measure(JOB[0], job, 5)
    assert calls == [5] * (6 if way == "train_step" else 12)
    assert found.batch == 5 and found.steps == 6 and found.gpu == "NVIDIA L4"


def test_a_card_is_needed(monkeypatch):
    monkeypatch.setattr(batch_fit, "_gpu_here", lambda: None)
    with pytest.raises(plimsoll.CaptureError, match="for which GPU"):
        plimsoll.fit_batch(*JOB)
    with pytest.raises(plimsoll.CaptureError, match="no GPU here to run on"):
        plimsoll.fit_batch(*JOB, gpu="L4", confirm=True)
    with pytest.raises(plimsoll.CaptureError, match="`make_batch` is missing"):
        plimsoll.fit_batch(JOB[0], gpu="L4")
    with pytest.raises(ValueError, match="is no size"):
        plimsoll.fit_batch(*JOB, gpu="L4", budget="lots")
