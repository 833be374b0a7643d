"""The lines that programs print, written after their sources with invented figures: fixed words, units and separators
are theirs. A line is a list of pieces; a piece with a figure is read only if all of it stands there."""
import dataclasses

from truth import GIB, GIGA, MIB, Figure


@dataclasses.dataclass
class Piece:
    text: str
    figure: Figure
    # The number has no unit: only what stands behind it shows that it is whole.
    needs_next: bool = False


@dataclasses.dataclass
class Place:
    step: int
    rank: int | None
    # What a prefix tells in place of a rank.
    process: str = ""


def piece(rng, place, low, high, digits, unit, factor, field, counts, of="now", *, glue=" ", step=True, needs_next=False,
          before="", behind="", **more):
    value = round(rng.uniform(low, high), digits)
    text = f"{before}{value:.{digits}f}{glue if unit else ''}{unit}{behind}"
    more.setdefault("rank", place.rank)
    if more["rank"] is None:
        more.setdefault("process", place.process)
    figure = Figure(field, counts, value * factor, 0.5 * 10**-digits * factor + 1, of,
                    step=place.step if step is True else step or None, **more)
    return Piece(text, figure, needs_next)


def throughput(rng, place, key, phase=""):
    count = rng.randint(200, 90000)
    return Piece(f"{key}: {count:,}", Figure("tps", "throughput", count, 0, "now", place.step, place.rank, phase=phase, process=place.process), True)


def titan(rng, place):
    size = round(rng.uniform(20, 78), 2)
    figure = Figure("memory", "reserved", size * GIB, 0.005 * GIB, "peak_since_line", place.step, place.rank, process=place.process)
    return [[f"[titan] 2026-03-02 10:11:{place.step % 60:02},131 - root - INFO - step: {place.step:2}  loss: {rng.random() * 9:8.5f}  "
             f"grad_norm: {rng.random():7.4f}  ", Piece(f"memory: {size:5.2f}GiB({100 * size / 79.18:.2f}%)", figure),
             "  ", throughput(rng, place, "tps"), "  tflops: 250.10  mfu: 25.29%"]]


def titan_old(rng, place):
    size = round(rng.uniform(20, 78), 2)
    figure = Figure("memory", "reserved", size * GIB, 0.005 * GIB, "peak_since_line", place.step, place.rank, process=place.process)
    return [[f"2024-09-02 10:11:12,131 - root - INFO - step: {place.step:2}  loss: {rng.random() * 9:7.4f}  ",
             Piece(f"memory: {size:5.2f}GiB({100 * size / 94.99:.2f}%)", figure), "  ", throughput(rng, place, "wps"), "  mfu: 41.20%"]]


def titan_retries(rng, place):
    count = place.step * 3
    figure = Figure("retries", "retries", count, 0, "peak_since_start", place.step, place.rank, process=place.process)
    return [[f"[titan] 2026-03-02 10:11:12,131 - root - WARNING - ", Piece(f"{count} CUDA memory allocation retries.", figure)],
            *titan(rng, place)]


def titan_validate(rng, place):
    size = round(rng.uniform(20, 78), 2)
    figure = Figure("memory", "reserved", size * GIB, 0.005 * GIB, "peak_since_line", place.step, place.rank, phase="validate",
                    process=place.process)
    return [[f"[titan] 2026-03-02 10:11:12,131 - root - INFO - validate step: {place.step:2}  loss: {rng.random() * 9:7.4f}  ",
             Piece(f"memory: {size:5.2f}GiB({100 * size / 79.18:.2f}%)", figure), "  ", throughput(rng, place, "tps", phase="validate")]]


def deepspeed_pieces(rng, place, phase, step):
    rest = {"phase": phase, "step": step}
    gap = " " * 9
    return [piece(rng, place, 1, 70, 2, "GB", GIB, "MA", "tensors", before="MA ", **rest), gap,
            piece(rng, place, 1, 70, 2, "GB", GIB, "Max_MA", "tensors", "peak_since_line", before="Max_MA ", **rest), gap,
            piece(rng, place, 1, 70, 1, "GB", GIB, "CA", "reserved", before="CA ", **rest), gap,
            piece(rng, place, 1, 70, 0, "GB", GIB, "Max_CA", "reserved", "peak_since_line", before="Max_CA ", **rest), " "]


def deepspeed(rng, place):
    phase = ["before forward", "after backward", "after initializing group 0"][place.step % 3]
    return [[phase], deepspeed_pieces(rng, place, phase, None),
            [piece(rng, place, 40, 400, 2, "GB,", GIB, "CPU Virtual Memory", "host", before="CPU Virtual Memory:  used = ", step=None),
             " percent = 20.4%"]]


def deepspeed_logger(rng, place):
    head = f"[2026-01-09 12:00:{place.step % 60:02},345] [INFO] [utils.py:78{{}}:see_memory_usage] "
    phase = "step # after optimizer"
    return [[head.format(1) + f"step {place.step} after optimizer"], [head.format(2), *deepspeed_pieces(rng, place, phase, place.step)],
            [head.format(3), piece(rng, place, 40, 400, 2, "GB,", GIB, "CPU Virtual Memory", "host",
                                   before="CPU Virtual Memory:  used = ", step=None), " percent = 20.4%"]]


def deepspeed_throughput(rng, place):
    return [[f"epoch=0/micro_step={place.step * 4}/global_step={place.step}, RunningAvgSamplesPerSec=10.4, CurrSamplesPerSec=10.6, ",
             piece(rng, place, 1, 70, 2, "GB", GIB, "MemAllocated", "tensors", glue="", before="MemAllocated="), ", ",
             piece(rng, place, 1, 70, 2, "GB", GIB, "MaxMemAllocated", "tensors", "peak_since_start", glue="", before="MaxMemAllocated=")]]


def deepspeed_timer(rng, place):
    names = [("mem_allocated", "tensors", "now"), ("max_mem_allocated", "tensors", "peak_since_start"),
             ("cache_allocated", "reserved", "now"), ("max_cache_allocated", "reserved", "peak_since_start")]
    return [[p for name, counts, of in names
             for p in (" | ", piece(rng, place, 1, 70, 4, "GB", GIB, name, counts, of, before=f"{name}: ", step=None))]]


def megatron(rng, place):
    rank = place.step % 4 * 8
    rest = {"rank": rank, "needs_next": True}
    fields = [("allocated", "tensors", "now"), ("max allocated", "tensors", "peak_since_start"), ("reserved", "reserved", "now"),
              ("max reserved", "reserved", "peak_since_start")]
    return [[f"[Rank {rank}] (after {place.step} iterations) memory (MB)"]
            + [p for name, counts, of in fields
               for p in (f" | {name}: ", piece(rng, place, 1000, 80000, 2, "", MIB, name, counts, of, **rest))]]


def megatron_save(rng, place):
    rest = {"rank": 3, "needs_next": True, "phase": "before save_checkpoint"}
    fields = [("allocated", "tensors", "now"), ("max allocated", "tensors", "peak_since_start"), ("reserved", "reserved", "now"),
              ("max reserved", "reserved", "peak_since_start"), ("total device memory used", "device_used", "now")]
    return [[f"[Rank 3] (before save_checkpoint for iteration {place.step}) memory (MB)"]
            + [p for name, counts, of in fields
               for p in (f" | {name}: ", piece(rng, place, 1000, 80000, 2, "", MIB, name, counts, of, **rest))]]


def megatron_theory(rng, place):
    return [["Theoretical memory footprints: ",
             piece(rng, place, 1000, 80000, 2, "MB", MIB, "weight and optimizer", "formula", before="weight and optimizer=", step=None), ", ",
             piece(rng, place, 1000, 80000, 2, "MB", MIB, "activation", "formula", before="activation=", step=None), ", ",
             piece(rng, place, 1000, 80000, 2, "MB", MIB, "total", "formula", before="total=", step=None)]]


def bridge(rng, place):
    rest = {"rank": 8, "needs_next": True}
    fields = [("mem-allocated", "tensors", "now"), ("mem-active", "active", "now"), ("mem-reserved", "reserved", "now"),
              ("mem-max-allocated", "tensors", "peak_since_start")]
    return [[f"[Rank 8] (after {place.step} iterations) memory (GB)"]
            + [p for name, counts, of in fields
               for p in (f" | {name}-gigabytes: ", piece(rng, place, 10, 80, 3, "", GIGA, name, counts, of, **rest))]
            + [" | mem-alloc-retires: ", piece(rng, place, 0, 9, 0, "", 1, "mem-alloc-retires", "retries", "peak_since_start", **rest)]]


def nemo(rng, place):
    rest = {"rank": 5, "step": None, "phase": "on_train_batch_end"}
    return [["on_train_batch_end rank: 5 mem: ", piece(rng, place, 1, 70, 9, "/", GIB, "mem", "tensors", **rest), " ",
             piece(rng, place, 1, 70, 9, "", GIB, "peak reserved", "reserved", "peak_since_start", needs_next=True, **rest)]]


def torchtune_phase(rng, place):
    rest = {"step": None, "phase": "Memory stats after model init"}
    return [["Memory stats after model init:"],
            ["\t", piece(rng, place, 1, 70, 2, "GiB", GIB, "peak memory active", "active", "peak_since_line", before="GPU peak memory active: ", **rest)],
            ["\t", piece(rng, place, 1, 70, 2, "GiB", GIB, "peak memory alloc", "tensors", "peak_since_line", before="GPU peak memory alloc: ", **rest)],
            ["\t", piece(rng, place, 1, 70, 2, "GiB", GIB, "peak memory reserved", "reserved", "peak_since_line", before="GPU peak memory reserved: ", **rest)]]


def torchtune_step(rng, place):
    fields = [("peak_memory_active", "active"), ("peak_memory_alloc", "tensors"), ("peak_memory_reserved", "reserved")]
    return [[f"Step {place.step} | loss:{rng.random() * 4} lr:2e-05 tokens_per_second_per_gpu:3110.2 "]
            + [p for name, counts in fields
               for p in (f"{name}:", piece(rng, place, 1, 70, 12, "", GIB, name, counts, "peak_since_line", needs_next=True), " ")]]


def accelerate(rng, place):
    rest = {"step": None, "phase": "train", "needs_next": True}
    return [["GPU Memory before entering the train : ", piece(rng, place, 1000, 9000, 0, "", MIB, "Memory before entering", "tensors", **rest)],
            ["GPU Memory consumed at the end of the train (end-begin): ",
             piece(rng, place, 10, 900, 0, "", MIB, "Memory consumed at the end of", "tensors", "change", **rest)],
            ["GPU Peak Memory consumed during the train (max-begin): ",
             piece(rng, place, 1000, 9000, 0, "", MIB, "Peak Memory consumed during", "tensors", "change", **rest)],
            ["GPU Total Peak Memory consumed during the train (max): ",
             piece(rng, place, 1000, 9000, 0, "", MIB, "Total Peak Memory consumed during", "tensors", "peak_since_line", **rest)],
            ["CPU Memory before entering the train : ",
             piece(rng, place, 1000, 9000, 0, "", MIB, "Memory before entering", "host", **rest | {"phase": "train"})]]


def hf_table(rng, place):
    names = [("init_mem_gpu_alloc_delta", "change", "init"), ("init_mem_gpu_peaked_delta", "peak_above_end", "init"),
             ("train_mem_gpu_alloc_delta", "change", "train"), ("train_mem_gpu_peaked_delta", "peak_above_end", "train"),
             ("eval_mem_gpu_peaked_delta", "peak_above_end", "eval")]
    lines = [["***** train metrics *****"], ["  epoch                      =        3.0"],
             ["  before_init_mem_gpu        =     ",
              piece(rng, place, 0, 900, 0, "MB", MIB, "before_init_mem_gpu", "tensors", glue="", step=None, phase="init")]]
    for name, of, phase in names:
        lines.append([f"  {name:26} = ", piece(rng, place, 0, 9000, 0, "MB", MIB, name, "tensors", of, glue="", step=None, phase=phase)])
    lines.append([f"  {'train_mem_cpu_alloc_delta':26} = ",
                  piece(rng, place, 0, 900, 0, "MB", MIB, "train_mem_cpu_alloc_delta", "host", "change", glue="", step=None, phase="train")])
    return lines


def bar(step):
    return f"{step:3}%|{'█' * (step // 10)}{' ' * (10 - step // 10)}| {step}/100 [00:31<09:42,  3.10s/it]"


def axolotl(rng, place):
    rest = {"needs_next": True}
    return [["{'loss': 1.02, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'memory/max_active (GiB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "max_active", "active", "peak_since_line", **rest), ", 'memory/max_allocated (GiB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "max_allocated", "tensors", "peak_since_line", **rest), ", 'memory/device_reserved (GiB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "device_reserved", "reserved", "peak_since_line", **rest), ", 'epoch': 0.1}"],
            [bar(place.step)]]


def axolotl_phase(rng, place):
    rank = place.rank if place.rank is not None else 0
    rest = {"step": None, "phase": "while training", "rank": rank}
    return [[f"[2024-05-05 09:00:00,000] [INFO] [axolotl.callbacks.on_step_end:126] [PID:77] [RANK:{rank}] GPU memory usage while training: ",
             piece(rng, place, 1, 30, 3, "GB (+", GIB, "usage", "tensors", glue="", **rest),
             piece(rng, place, 1, 30, 3, "GB cache", GIB, "cache", "cached", glue="", **rest), ", +",
             piece(rng, place, 0, 2, 3, "GB misc", GIB, "misc", "outside", glue="", **rest), ")"]]


def swift(rng, place):
    return [["{'loss': 1.02, 'token_acc': 0.71, 'learning_rate': 1e-05, 'memory(GiB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "memory(GiB)", "reserved", "peak_since_start", needs_next=True),
             f", 'train_speed(s/it)': 3.1, 'global_step/max_steps': '{place.step}/900'}}"]]


def swift_jsonl(rng, place):
    return [['{"loss": 1.02, "memory(GiB)": ',
             piece(rng, place, 10, 70, 2, "", GIB, "memory(GiB)", "reserved", "peak_since_start", needs_next=True),
             f', "global_step/max_steps": "{place.step}/900"}}']]


def llama_factory(rng, place):
    return [[f'{{"current_steps": {place.step}, "total_steps": 900, "loss": 1.2, "vram_allocated": ',
             piece(rng, place, 10, 70, 2, "", GIB, "vram_allocated", "tensors", "peak_since_start", needs_next=True), ', "vram_reserved": ',
             piece(rng, place, 10, 70, 2, "", GIB, "vram_reserved", "reserved", "peak_since_start", needs_next=True), "}"]]


def unsloth(rng, place):
    rest = {"step": None}
    return [["GPU = Tesla T4. Max memory = ", piece(rng, place, 14, 15, 3, "GB.", GIB, "Max memory", "device_total", **rest)],
            [piece(rng, place, 2, 8, 3, "GB of memory reserved.", GIB, "memory reserved", "reserved", "peak_since_start",
                   phase="before training", **rest)],
            [piece(rng, place, 8, 14, 3, "GB.", GIB, "Peak reserved memory", "reserved", "peak_since_start",
                   before="Peak reserved memory = ", **rest)],
            [piece(rng, place, 2, 6, 3, "GB.", GIB, "Peak reserved memory for training", "reserved", "change",
                   before="Peak reserved memory for training = ", **rest)],
            ["Peak reserved memory % of max memory = 67.9 %."]]


def habana(rng, place):
    return [[f"{{'loss': 1.2, 'step': {place.step}, 'memory_allocated (GB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "memory_allocated", "tensors", needs_next=True), ", 'max_memory_allocated (GB)': ",
             piece(rng, place, 10, 70, 2, "", GIB, "max_memory_allocated", "tensors", "peak_since_start", needs_next=True),
             ", 'total_memory_available (GB)': ",
             piece(rng, place, 94, 95, 2, "", GIB, "total_memory_available", "device_total", needs_next=True), "}"]]


def xtuner(rng, place):
    return [[f"Epoch 1 Step {place.step}/500 loss: 1.2 grad_norm: 0.9 ",
             piece(rng, place, 10, 70, 2, "GB", GIB, "max_memory", "tensors", "peak_since_start", before="max_memory: "), " ",
             piece(rng, place, 10, 70, 2, "GB", GIB, "reserved_memory", "reserved", "peak_since_start", before="reserved_memory: "), " tgs: 3110.2"]]


def prime_rl(rng, place):
    return [[f"Step {place.step} | Time: 3.20s | Loss: 1.2043 | ",
             piece(rng, place, 10, 70, 1, "GiB", GIB, "Peak Mem.", "reserved", "peak_since_start", before="Peak Mem. ")]]


def olmo(rng, place):
    return [[f"2026-03-02 10:11:12\tnode1:0\tolmo_core.train.callbacks.console_logger:81\tINFO\t[step={place.step}/500,epoch=1,eta=1:02:03]"],
            ["    train/CE loss=1.204"],
            ["    gpu_memory/GPU active mem (GiB)=", piece(rng, place, 10, 70, 2, "", GIB, "GPU active mem", "active", "peak_since_line", needs_next=True)],
            ["    gpu_memory/GPU active mem (%)=77.2"],
            ["    gpu_memory/GPU reserved mem (GiB)=",
             piece(rng, place, 10, 70, 2, "", GIB, "GPU reserved mem", "reserved", "peak_since_line", needs_next=True)]]


def litgpt(rng, place):
    return [[piece(rng, place, 10, 70, 2, "GB", GIGA, "Memory used", "tensors", "peak_since_start", before="Memory used: ", step=None)]]


def nanochat(rng, place):
    return [[piece(rng, place, 1000, 70000, 2, "MiB", MIB, "Peak memory usage", "tensors", "peak_since_start", glue="",
                   before="Peak memory usage: ", step=None)]]


def modded(rng, place):
    return [[piece(rng, place, 1000, 70000, 0, "MiB", MIB, "peak memory allocated", "tensors", "peak_since_start",
                   before="peak memory allocated: ", step=None), " ",
             piece(rng, place, 1000, 70000, 0, "MiB", MIB, "reserved", "reserved", "peak_since_start", before="reserved: ", step=None)]]


def mlx(rng, place):
    return [[f"Iter {place.step}: Train loss 1.203, Learning Rate 1.0e-05, It/sec 1.20, Tokens/sec 512.1, Trained Tokens 20480, ",
             piece(rng, place, 4, 90, 3, "GB", GIGA, "Peak mem", "tensors", "peak_since_start", before="Peak mem ")]]


def torchrec(rng, place):
    rest = {"step": None, "rank": 6, "glue": ""}
    return [["GPUMemoryStats: Rank 6: ", piece(rng, place, 0, 4, 0, ",", 1, "retries", "retries", "peak_since_start", before="retries=", **rest),
             " allocated= ", piece(rng, place, 100, 9000, 0, "mb", MIB, "allocated", "tensors", **rest), ", reserved= ",
             piece(rng, place, 100, 9000, 0, "mb", MIB, "reserved", "reserved", **rest), ", free= ",
             piece(rng, place, 100, 9000, 0, "mb", MIB, "free", "device_free", **rest), ", total= ",
             piece(rng, place, 80000, 81000, 0, "mb", MIB, "total", "device_total", **rest), ", used= ",
             piece(rng, place, 100, 9000, 0, "mb", MIB, "used", "device_used", **rest)]]


def detectron(rng, place):
    return [[f"[03/02 10:11:12 d2.utils.events]:  eta: 1:02:03  iter: {place.step}  total_loss: 1.2  time: 0.4012  last_time: 0.40  "
             "data_time: 0.0123  last_data_time: 0.01  lr: 0.001  ",
             piece(rng, place, 1000, 70000, 0, "M", MIB, "max_mem", "tensors", "peak_since_start", glue="", before="max_mem: ")]]


def detectron_stats(rng, place):
    return [[f" iter: {place.step}"]
            + [p for name, counts, of in [("max_reserved_mem", "reserved", "peak_since_line"), ("reserved_mem", "reserved", "now"),
                                          ("max_allocated_mem", "tensors", "peak_since_line"), ("allocated_mem", "tensors", "now")]
               for p in ("  ", piece(rng, place, 1000, 70000, 0, "MB", MIB, name, counts, of, glue="", before=f"{name}: "))]]


def mmengine(rng, place):
    step = 7330 + place.step
    return [[f"03/02 10:11:12 - mmengine - INFO - Epoch(train)  [2][{place.step:4}/7330]  lr: 1.0000e-03  eta: 1:02:03  time: 0.4012  "
             "data_time: 0.0123  memory: ",
             piece(rng, place, 1000, 70000, 0, "", MIB, "memory", "tensors", "peak_since_line", step=step, phase="train", needs_next=True),
             "  loss: 1.2043"]]


def mmcv(rng, place):
    return [[f"2022-03-02 10:11:12,131 - mmdet - INFO - Epoch [1][{place.step}/7330]\tlr: 1.000e-03, eta: 1:02:03, time: 0.401, "
             "data_time: 0.012, memory: ",
             piece(rng, place, 1000, 70000, 0, "", MIB, "memory", "tensors", "peak_since_start", phase="train", needs_next=True),
             ", loss: 1.2043"]]


def fairseq(rng, place):
    return [[f'2022-03-02 10:11:12 | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "9.1", "num_updates": "{place.step}", '
             '"lr": "1e-05", "gb_free": "',
             piece(rng, place, 1, 30, 1, "", GIB, "gb_free", "not_tensors", "peak_since_line", needs_next=True), '", "wall": "61"}']]


def verl(rng, place):
    phase = ["After update_actor", "Before generate_sequences", "After offload_fsdp_model_to_cpu"][place.step % 3]
    rest = {"step": None}
    return [[f"{phase}, memory allocated (GB): ", piece(rng, place, 1, 70, 2, ",", GIB, "memory allocated", "tensors", glue="", phase=phase, **rest),
             " memory reserved (GB): ", piece(rng, place, 1, 70, 2, ",", GIB, "memory reserved", "reserved", glue="", phase=phase, **rest),
             " device memory used/total (GB): ", piece(rng, place, 1, 70, 2, "/", GIB, "device memory used", "device_used", glue="", phase=phase, **rest),
             piece(rng, place, 79, 80, 2, "", GIB, "device memory total", "device_total", needs_next=True, **rest)]]


def verl_step(rng, place):
    return [[f"step:{place.step} - actor/entropy:0.412 - actor/pg_loss:0.01 - perf/max_memory_allocated_gb:",
             piece(rng, place, 10, 70, 9, "", GIB, "max_memory_allocated", "tensors", "peak_since_start", needs_next=True),
             " - perf/max_memory_reserved_gb:",
             piece(rng, place, 10, 70, 9, "", GIB, "max_memory_reserved", "reserved", "peak_since_start", needs_next=True),
             " - perf/cpu_memory_used_gb:", piece(rng, place, 50, 500, 9, "", GIB, "cpu_memory_used", "host", needs_next=True),
             " - response_length/mean:812.0"]]


def verl_usage(rng, place):
    rest = {"step": None}
    return [["Memory usage [before cleanup]: ", piece(rng, place, 79, 80, 2, "GB", GIB, "Total", "device_total", before="Total: ", **rest), ", ",
             piece(rng, place, 1, 70, 2, "GB", GIB, "Allocated", "tensors", before="Allocated: ", phase="before cleanup", **rest), ", ",
             piece(rng, place, 1, 70, 2, "GB", GIB, "Reserved", "reserved", before="Reserved: ", phase="before cleanup", **rest), ", Cached: 30.20 GB"]]


def easy_r1(rng, place):
    used, total = round(rng.uniform(1, 70), 2), 79.11
    return [["After vllm offload: ",
             Piece(f"{used:.2f} GB / {total:.2f} GB.",
                   Figure("device memory used", "device_used", used * GIB, 0.005 * GIB, "now", None, place.rank, phase="After vllm offload",
                          process=place.process)),
             Piece("", Figure("device memory total", "device_total", total * GIB, 0.005 * GIB, "now", None, place.rank, process=place.process))]]


def nemo_rl(rng, place):
    rest = {"step": None, "phase": "before optimizer offload", "glue": ""}
    return [["GPU Memory before optimizer offload: ", piece(rng, place, 1, 70, 2, "GB allocated, ", GIB, "allocated", "tensors", **rest),
             piece(rng, place, 1, 70, 2, "GB reserved", GIB, "reserved", "reserved", **rest)]]


def gpumem(rng, place):
    rest = {"step": None, "rank": 2, "needs_next": True}
    fields = [("alloc", "tensors", "now"), ("max_alloc", "tensors", "peak_since_line"), ("reserved", "reserved", "now"),
              ("max_reserved", "reserved", "peak_since_line"), ("driver_used", "device_used", "now")]
    return [["[gpumem] tag=refit rank=2"]
            + [p for name, counts, of in fields
               for p in (f" {name}=", piece(rng, place, 1, 70, 2, "", GIB, name, counts, of, phase="refit", **rest))]
            + [" total=", piece(rng, place, 79, 80, 2, "", GIB, "total", "device_total", **rest)]]


def slime(rng, place):
    rest = {"step": None, "rank": 7, "needs_next": True}
    fields = [("free", "device_free"), ("used", "device_used"), ("allocated", "tensors"), ("reserved", "reserved")]
    return [["[Rank 7] Memory-Usage after wake_up: {'gpu': '7', 'total_GB': ",
             piece(rng, place, 79, 80, 2, "", GIB, "total", "device_total", **rest)]
            + [p for name, counts in fields
               for p in (f", '{name}_GB': ", piece(rng, place, 1, 70, 2, "", GIB, name, counts, phase="after wake_up", **rest))]
            + ["}"]]


def vllm(rng, place):
    rest = {"step": None}
    head = "INFO 03-02 10:11:12 [gpu_worker.py:298] "
    return [[head, "Model loading took ", piece(rng, place, 1, 70, 2, "GiB", GIB, "model weights", "weights", **rest), " memory and 3.100000 seconds"],
            [head, "Available KV cache memory: ", piece(rng, place, -5, 60, 2, "GiB", GIB, "KV cache", "kv_cache", **rest)],
            [head, "GPU KV cache size: ", Piece("449,104 tokens", Figure("KV cache size", "kv_tokens", 449104, 0, "now", None, place.rank,
                                                                         process=place.process))],
            [head, "Graph capturing finished in 21 secs, took ", piece(rng, place, 0, 3, 2, "GiB", GIB, "graphs", "graphs", **rest)]]


def vllm_v0(rng, place):
    rest = {"step": None, "glue": ""}
    return [["INFO 03-02 10:11:12 worker.py:232] the current vLLM instance can use total_gpu_memory (",
             piece(rng, place, 79, 80, 2, "GiB)", GIB, "total_gpu_memory", "device_total", **rest), " x gpu_memory_utilization (0.90) = ",
             piece(rng, place, 70, 72, 2, "GiB", GIB, "allowed", "allowed", **rest)],
            ["INFO 03-02 10:11:12 worker.py:232] model weights take ", piece(rng, place, 1, 30, 2, "GiB", GIB, "model weights", "weights", **rest),
             "; non_torch_memory takes ", piece(rng, place, 0, 1, 2, "GiB", GIB, "non_torch_memory", "outside", **rest),
             "; PyTorch activation peak memory takes ", piece(rng, place, 1, 3, 2, "GiB", GIB, "activation peak", "activations", **rest),
             "; the rest of the memory reserved for KV Cache is ", piece(rng, place, 20, 50, 2, "GiB", GIB, "KV cache", "kv_cache", **rest), "."]]


def vllm_debug(rng, place):
    rest = {"step": None}
    return [["DEBUG 03-02 10:11:12 [gpu_worker.py:201] ",
             piece(rng, place, 70, 79, 2, "GiB;", GIB, "initial free memory", "device_free", before="Initial free memory: ", **rest),
             " Requested memory: 0.90 (util), ", piece(rng, place, 70, 72, 2, "GiB", GIB, "allowed", "allowed", **rest)],
            ["DEBUG 03-02 10:11:12 [gpu_worker.py:220] Memory profiling takes 3.20 seconds. Total non KV cache memory: 16.44GiB; torch peak memory increase: ",
             piece(rng, place, 1, 2, 2, "GiB", GIB, "activation peak", "activations", glue="", **rest), "; non-torch forward increase memory: ",
             piece(rng, place, 0, 1, 2, "GiB", GIB, "non_torch_memory", "outside", glue="", **rest), "; weights memory: ",
             piece(rng, place, 10, 20, 2, "GiB", GIB, "model weights", "weights", glue="", **rest), "."]]


def vllm_sleep(rng, place):
    freed, kept = round(rng.uniform(10, 70), 2), round(rng.uniform(1, 9), 2)
    rank, process = place.rank, place.process
    return [["INFO 03-02 10:11:12 [gpu_worker.py:121] Sleep mode freed ",
             Piece(f"{freed:.2f} GiB memory, {kept:.2f} GiB memory is still in use",
                   Figure("freed", "engine_freed", freed * GIB, 0.005 * GIB, rank=rank, process=process)),
             Piece("", Figure("still in use", "engine_kept", kept * GIB, 0.005 * GIB, rank=rank, process=process)), "."]]


def sglang(rng, place):
    rest = {"step": None, "rank": 3}
    head = "[2026-03-02 10:11:12 TP3] "
    return [[head, "Load weight begin. ", piece(rng, place, 70, 79, 2, "GB", GIB, "avail mem", "device_free", before="avail mem=",
                                                phase="Load weight begin", **rest)],
            [head, "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, ",
             piece(rng, place, 50, 70, 2, "GB", GIB, "avail mem", "device_free", before="avail mem=", phase="Load weight end", **rest), ", ",
             piece(rng, place, 10, 20, 2, "GB", GIB, "mem usage", "weights", "change", before="mem usage=", phase="Load weight end", **rest), "."],
            [head, "KV Cache is allocated. #tokens: ", piece(rng, place, 1000, 90000, 0, ",", 1, "tokens", "kv_tokens", glue="", **rest), " ",
             piece(rng, place, 10, 30, 2, "GB", GIB, "K size", "kv_cache", before="K size: ", **rest), ", ",
             piece(rng, place, 10, 30, 2, "GB", GIB, "V size", "kv_cache", before="V size: ", **rest)],
            [head, "max_total_num_tokens=", piece(rng, place, 1000, 90000, 0, ",", 1, "max_total_num_tokens", "kv_tokens", glue="", **rest),
             " chunked_prefill_size=8192, max_prefill_tokens=16384, ",
             piece(rng, place, 1, 9, 2, "GB", GIB, "available_gpu_mem", "device_free", before="available_gpu_mem=", **rest)]]


def smi(rng, place):
    lines = [["+-----------------------------------------------------------------------------------------+"],
             ["| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |"],
             ["|=========================================+========================+======================|"]]
    for device in range(2):
        used = rng.randint(3, 81000)
        rest = {"rank": place.rank, "device": device, "process": place.process}
        lines += [[f"|   {device}  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |"],
                  ["| N/A   34C    P0             112W /  700W |  ",
                   Piece(f"{used:6}MiB /  81559MiB |", Figure("Memory-Usage", "device_used", used * MIB, MIB / 2, "now", None, **rest)),
                   Piece("", Figure("total", "device_total", 81559 * MIB, MIB / 2, "now", None, **rest)),
                   "     98%      Default |"], ["|                                         |                        |             Disabled |"]]
    lines.append(["| Processes:                                                                              |"])
    used = rng.randint(300, 9000)
    lines.append([Piece(f"|    1   N/A  N/A      4711      C   python                                   {used:6}MiB |",
                        Figure("process", "process", used * MIB, MIB / 2, "now", None, place.rank, device=1, process="pid=4711"))])
    return lines


def own(rng, place):
    return [[f"[train] step {place.step}: allocated ", piece(rng, place, 1, 70, 2, "GB", GIB, "allocated", "tensors"), ", reserved ",
             piece(rng, place, 1, 70, 2, "GB", GIB, "reserved", "reserved"), ", loss 1.23"]]


# Name to writer; and whether a prefix may name the rank, or the line itself does; whether it may be cut anywhere.
FORMATS = {
    "titan": titan, "titan_old": titan_old, "titan_retries": titan_retries, "titan_validate": titan_validate,
    "deepspeed": deepspeed, "deepspeed_logger": deepspeed_logger, "deepspeed_throughput": deepspeed_throughput,
    "deepspeed_timer": deepspeed_timer, "megatron": megatron, "megatron_save": megatron_save, "megatron_theory": megatron_theory,
    "bridge": bridge, "nemo": nemo, "torchtune_phase": torchtune_phase, "torchtune_step": torchtune_step, "accelerate": accelerate,
    "hf_table": hf_table, "axolotl": axolotl, "axolotl_phase": axolotl_phase, "swift": swift, "swift_jsonl": swift_jsonl,
    "llama_factory": llama_factory, "unsloth": unsloth, "habana": habana, "xtuner": xtuner, "prime_rl": prime_rl, "olmo": olmo,
    "litgpt": litgpt, "nanochat": nanochat, "modded": modded, "mlx": mlx, "torchrec": torchrec, "detectron": detectron,
    "detectron_stats": detectron_stats, "mmengine": mmengine, "mmcv": mmcv, "fairseq": fairseq, "verl": verl, "verl_step": verl_step,
    "verl_usage": verl_usage, "easy_r1": easy_r1, "nemo_rl": nemo_rl, "gpumem": gpumem, "slime": slime, "vllm": vllm,
    "vllm_v0": vllm_v0, "vllm_debug": vllm_debug, "vllm_sleep": vllm_sleep, "sglang": sglang, "smi": smi, "own": own,
}
# Their lines name the rank, or the table is of all.
OWN_RANK = {"megatron", "megatron_save", "bridge", "nemo", "torchrec", "gpumem", "slime", "sglang", "smi", "axolotl_phase"}
# A step that stands behind the figure, or is told by another line, is lost where the log is cut.
STEP_BEHIND = {"axolotl", "swift", "swift_jsonl", "titan_retries"}
