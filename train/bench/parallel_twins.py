#!/usr/bin/env python3
"""Data parallel and sharded training of plimsoll::train beside PyTorch's DistributedDataParallel and FSDP2
(fully_shard on each block and on the model), the same model on the same ranks and backend.

    train/bench/parallel_twins.py exact build/train/train/parallel_bench
    train/bench/parallel_twins.py speed build/train-release/train/parallel_bench --device cpu --ranks 2 4 --threads 4
    train/bench/parallel_twins.py timeline build/train-release/train/parallel_bench --device cuda --ranks 4

`exact`: 20 steps of a small GPT and MLP on 4 gloo ranks of the CPU from the same weights and batches (exchanged as
safetensors); prints how far losses and parameters are from Python's, relative; exit code 1 above 1e-6. `speed`:
milliseconds a step (the median of the slowest rank) and the peak of memory. With one rank Python runs as ranks do,
over the backend that is asked for; plimsoll::train sends nothing then. `check`: every form of Sharded on a device. `capture`: the
GPT of `speed` as a step file, for `plimsoll predict --fsdp 4`; needs the package plimsoll.
"""
import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import train_twins

STEPS, ROWS, BAR = 20, 16, 1e-6
# As train/bench/parallel_bench.cc has them.
SMALL_GPT = ["gpt", "--vocabulary", "64", "--context", "16", "--width", "32", "--layers", "3", "--heads", "4"]
TYPES = {torch.float32: "F32", torch.int64: "I64"}
# Ways of plimsoll::train, and what each is compared with.
TWINS = {"ddp": "ddp", "shard1": "ddp", "shard2": "fsdp", "shard3": "fsdp"}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(24, 32), nn.Linear(32, 16), nn.Linear(16, 7)))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)

    def loss(self, inputs, targets):
        return F.cross_entropy(self(inputs), targets)


class Loss(nn.Module):
    """What DistributedDataParallel calls: the model's loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *batch):
        return self.model.loss(*batch)


def small_model(name):
    return Mlp() if name == "mlp" else train_twins.Gpt(train_twins.arguments(SMALL_GPT))


def small_batch(name):
    if name == "mlp":
        return torch.randn(ROWS, 24), torch.randint(7, (ROWS,))
    return torch.randint(64, (ROWS, 16)), torch.randint(64, (ROWS, 16))


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    types = {name: dtype for dtype, name in TYPES.items()}
    tensors = {}
    for name, entry in json.loads(content[8:8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(content[begin:end]), dtype=types[entry["dtype"]]).view(entry["shape"])
    return tensors


def parallel(model, way):
    """The model as that way has it, and what to call for the loss. FSDP's root is what is called."""
    if way == "ddp":
        return DistributedDataParallel(Loss(model), gradient_as_bucket_view=True)
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.layers if isinstance(model, Mlp) else model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(Loss(model), mesh=mesh)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def python_exact(a):
    model = small_model(a.model)
    model.load_state_dict(read_safetensors(f"{a.folder}/{a.model}.safetensors"))
    batches = read_safetensors(f"{a.folder}/{a.model}.batches.safetensors")
    trained = parallel(model, a.way)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    rank, each = dist.get_rank(), ROWS // dist.get_world_size()
    for step in range(STEPS):
        mine = [batches[f"{step}.{part}"][rank * each:(rank + 1) * each] for part in ("inputs", "targets")]
        loss = trained(*mine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"{mean.item() / dist.get_world_size():.9g}")
    state = {name: whole(value) for name, value in model.state_dict().items()}
    if rank == 0:
        write_safetensors(f"{a.folder}/{a.way}.safetensors", state)


def python_speed(a):
    device = torch.device(a.device)
    torch.manual_seed(1)
    model = train_twins.Gpt(train_twins.arguments(["gpt", *(f"--{name}={getattr(a, name)}" for name in SIZES)])).to(device)
    text = torch.randint(a.vocabulary, (a.rows, a.context + 1))
    batch = [text[:, :-1].contiguous().to(device), text[:, 1:].contiguous().to(device)]
    trained = parallel(model, a.way)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=True)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def step():
        loss = trained(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=a.way != "ddp")
        return loss.detach()

    for _ in range(3):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(a.steps):
        wait()
        dist.barrier()
        begin = time.perf_counter()
        loss = step()
        wait()
        times.append((time.perf_counter() - begin) * 1000)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    between = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    print(json.dumps({"ms": statistics.median(times), "fastest": min(times), "peak": peak, "between": between,
                      "loss": loss.item()}))


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run_ranks(ranks, threads, command):
    """What each rank printed."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.ExitStack() as stack:
        printed = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        processes = [subprocess.Popen(command, stdout=file, env={**os.environ, **shared, "RANK": str(rank),
                                                                 "LOCAL_RANK": str(rank)})
                     for rank, file in enumerate(printed)]
        while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
            time.sleep(0.05)
        if any(process.poll() for process in processes):
            # The others would wait for it.
            for process in processes:
                process.kill()
            sys.exit(f"{' '.join(command)} failed")
        for file in printed:
            file.seek(0)
        return [file.read() for file in printed]


def words(**values):
    return [f"{name}={value}" for name, value in values.items()]


def relative(found, right):
    return (torch.linalg.norm(found.double() - right.double()) / torch.linalg.norm(right.double())).item()


def flat(tensors):
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def exact(a):
    worst = 0.0
    print("| model | plimsoll::train | Python | losses | parameters |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in ("gpt", "mlp"):
            torch.manual_seed(5)
            write_safetensors(f"{folder}/{model}.safetensors", small_model(model).state_dict())
            batches = {}
            for step in range(STEPS):
                batches[f"{step}.inputs"], batches[f"{step}.targets"] = small_batch(model)
            write_safetensors(f"{folder}/{model}.batches.safetensors", batches)
            results = {}
            for way in ("python ddp", "python fsdp", *TWINS):
                name = way.split()[-1]
                told = words(way=name, model=model, folder=folder)
                program = [sys.executable, __file__, "rank", "exact"] if way != name else [a.bench, "exact"]
                printed = run_ranks(a.ranks[-1], 1, program + told)[0]
                losses = torch.tensor([float(line) for line in printed.split()], dtype=torch.float64)
                results[way] = losses, flat(read_safetensors(f"{folder}/{name}.safetensors"))
                os.remove(f"{folder}/{name}.safetensors")
            for way in TWINS:
                for python in ("python ddp", "python fsdp"):
                    off = [relative(found, right) for found, right in zip(results[way], results[python])]
                    worst = max(worst, *off)
                    print(f"| {model} | {way} | {python} | {off[0]:.1e} | {off[1]:.1e} |", flush=True)
    print(f"\n{a.ranks[-1]} ranks, {STEPS} steps, PyTorch {torch.__version__}: worst {worst:.1e}, bar {BAR:.0e}")
    return worst > BAR or math.isnan(worst)


SIZES = {"vocabulary": 50304, "context": 1024, "width": 768, "layers": 12, "heads": 12}


def speed(a):
    print(f"GPT of {a.layers} layers, width {a.width}, vocabulary {a.vocabulary}, {a.rows} × {a.context} tokens a rank, fp32; "
          f"{a.device}, {a.threads} threads a rank, PyTorch {torch.__version__}\n")
    print("| ranks | backend | plimsoll::train | ms | peak, MiB | Python | ms | peak, MiB | time | peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for ranks in a.ranks:
        for way in a.ways:
            told = {"way": way, "device": a.device, "backend": a.backend, "rows": a.rows, "steps": a.steps,
                    **{name: getattr(a, name) for name in SIZES}}
            twin = TWINS[way]
            results = {}
            # In turns: a machine is not equally quick at all times.
            for _ in range(a.rounds):
                for name, program in (("own", [a.bench, "speed", *words(**told)]),
                                      ("twin", [sys.executable, __file__, "rank", "speed",
                                                *words(**{**told, "way": twin})])):
                    lines = [json.loads(text.splitlines()[-1]) for text in run_ranks(ranks, a.threads, program)]
                    results.setdefault(name, []).append({key: max(line[key] for line in lines) for key in lines[0]})
            ms = {name: statistics.median(run["ms"] for run in runs) for name, runs in results.items()}
            peak = {name: max(run["peak"] for run in runs) / 2**20 for name, runs in results.items()}
            share = f"{100 * (peak['own'] / peak['twin'] - 1):+.1f} %" if peak["twin"] else "–"
            told_peak = f"{peak['twin']:.0f}" if peak["twin"] else "–"
            print(f"| {ranks} | {a.backend} | {way} | {ms['own']:.1f} | {peak['own']:.0f} | {twin} | {ms['twin']:.1f} | "
                  f"{told_peak} | {100 * (ms['own'] / ms['twin'] - 1):+.1f} % | {share} |", flush=True)
    return False


def capture(a):
    import plimsoll
    sizes = train_twins.arguments(["gpt", *(f"--{name}={getattr(a, name)}" for name in SIZES)])

    def batch(rows):
        text = torch.randint(a.vocabulary, (rows, a.context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    # The loss is inside of the model, as the ranks have it.
    plimsoll.capture(model=lambda: Loss(train_twins.Gpt(sizes)), make_batch=batch, gpu="H200", path=a.bench,
                     optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
                     loss=lambda model, *batch: model(*batch))
    return False


def check(a):
    print(run_ranks(a.ranks[-1], a.threads, [a.bench, "check", *words(device=a.device, backend=a.backend)])[0])
    return False


def timeline(a):
    for way in a.ways:
        told = words(way=way, device=a.device, backend=a.backend, rows=a.rows, **{name: getattr(a, name) for name in SIZES})
        print(run_ranks(a.ranks[-1], a.threads, [a.bench, "timeline", *told])[0], flush=True)
    return False


def rank(what, values):
    a = argparse.Namespace(**{name: int(value) if value.isdigit() else value
                              for name, value in (word.split("=", 1) for word in values)})
    dist.init_process_group(getattr(a, "backend", "gloo"))
    (python_exact if what == "exact" else python_speed)(a)
    dist.destroy_process_group()


def main():
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("exact", "speed", "timeline", "check", "capture"))
    parser.add_argument("bench", help="the program parallel_bench; of capture the file to write")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--ways", nargs="+", choices=TWINS, default=["ddp", "shard3"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of Python")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    ways = {"exact": exact, "speed": speed, "timeline": timeline, "check": check, "capture": capture}
    sys.exit(ways[a.what](a))


if __name__ == "__main__":
    main()
