"""Tables of which only the heading tells what is in the columns."""
import random

from truth import GIB, GIGA, MIB, Figure, Log


def smi_csv(rng, units):
    rows, figures = ["timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"], []
    unit = " MiB" if units else ""
    for i in range(5):
        for device in range(2):
            used = rng.randint(3, 81000)
            rows.append(f"2026/03/02 10:11:{i:02}.131, {device}, NVIDIA H100 80GB HBM3, {used}{unit}, 81559{unit}, 98{' %' if units else ''}")
            figures.append(Figure("memory.used [MiB]", "device_used", used * MIB, MIB, device=device))
            figures.append(Figure("memory.total [MiB]", "device_total", 81559 * MIB, MIB, device=device))
    return "\n".join(rows) + "\n", figures


def wandb(rng):
    rows, figures = ['"Step","run-a - system.gpu.0.memoryAllocatedBytes","run-a - system.gpu.0.memoryAllocatedBytes__MIN",'
                     '"run-a - system.gpu.0.memoryAllocatedBytes__MAX","run-a - system.gpu.0.memory"'], []
    for step in range(0, 100, 10):
        used = rng.randint(10**9, 8 * 10**10)
        rows.append(f'"{step}","{used}","{used - 5}","{used + 7}","12"')
        name = "system.gpu.0.memoryAllocatedBytes"
        figures.append(Figure(name, "device_used", used, 0, step=step, device=0, process="run-a"))
        figures.append(Figure(name + " (max)", "device_used", used + 7, 0, step=step, device=0, process="run-a"))
    return "\n".join(rows) + "\n", figures


def wandb_percent(rng):
    rows, figures = ['"Relative Time (Process)","run-a - system.gpu.1.memoryAllocated"'], []
    for i in range(10):
        share = round(rng.uniform(1, 99), 4)
        rows.append(f'"{i * 15}","{share}"')
        figures.append(Figure("system.gpu.1.memoryAllocated", "device_share", share * 100, 1, device=1, process="run-a"))
    return "\n".join(rows) + "\n", figures


def lightning(rng):
    head = "DeviceStatsMonitor.on_train_batch_start/"
    rows = [f"{head}allocated_bytes.all.current,{head}allocated_bytes.all.freed,{head}num_alloc_retries,{head}reserved_bytes.all.peak,epoch,step,train_loss"]
    figures = []
    for step in range(0, 60, 10):
        a, r = rng.randint(10**8, 10**10), rng.randint(10**10, 2 * 10**10)
        rows.append(f"{a},12345,{step // 20},{r},0,{step},")
        rows.append(f",,,,0,{step},1.25")
        rest = {"step": step, "phase": "on_train_batch_start"}
        figures += [Figure("allocated_bytes.all.current", "tensors", a, 0, **rest),
                    Figure("num_alloc_retries", "retries", step // 20, 0, "peak_since_start", **rest),
                    Figure("reserved_bytes.all.peak", "reserved", r, 0, "peak_since_start", **rest)]
    return "\n".join(rows) + "\n", figures


def tensorboard(rng):
    rows, figures = ["Wall time,Step,Value"], []
    for step in range(1, 12):
        size = rng.uniform(10, 70)
        rows.append(f"{1.7e9 + step},{step},{size}")
        figures.append(Figure("memory/max_reserved(gib)", "reserved", size * GIB, 2, "peak_since_line", step=step))
    return "\n".join(rows) + "\n", figures


def yolo(rng, header, program_factor):
    lines, figures = [], []
    for epoch in range(1, 6):
        lines.append(header)
        highest = 0
        line = ""
        for batch in range(1, 20):
            size = float(f"{rng.uniform(5, 15):.3g}")
            highest = max(highest, size)
            line += f"\r     {epoch}/100      {size:.3g}G      1.204       0.98      1.02        155        640: {batch * 5:3}%|█████     | {batch}/20 [00:01<00:02]"
        lines.append(line)
        lines.append("                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 4/4")
        figures.append(Figure("GPU_mem", "reserved", highest * program_factor, 0.0005 * highest * program_factor + 10**8, step=epoch))
    return "\n".join(lines) + "\n", figures


def dmon(rng):
    lines, figures = [], []
    for page in range(2):
        lines += ["# gpu     fb   bar1   ccpm    mem", "# Idx     MB     MB     MB      %"]
        for _ in range(4):
            for device in range(2):
                used = rng.randint(3, 81000)
                lines.append(f"    {device}  {used:5}      4      0     {rng.randint(0, 100):2}")
                figures.append(Figure("fb", "device_used", used * MIB, MIB, device=device))
    return "\n".join(lines) + "\n", figures


V8 = "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"
V5 = "\n      Epoch    GPU_mem   box_loss   obj_loss   cls_loss  Instances       Size"


def export_logs(seed=1):
    rng = random.Random(f"{seed} exports")
    cases = {"smi_csv": smi_csv(rng, True), "smi_csv_nounits": smi_csv(rng, False), "wandb": wandb(rng), "wandb_percent": wandb_percent(rng),
             "lightning_csv": lightning(rng), "yolo_v8": yolo(rng, V8, GIB), "yolo_v5": yolo(rng, V5, GIGA), "dmon": dmon(rng)}
    for name, (text, figures) in cases.items():
        yield Log(f"export.{name}", text, figures)
        yield Log(f"export.{name}.crlf", text.replace("\n", "\r\n"), figures)
    text, figures = tensorboard(rng)
    yield Log("export.tensorboard", text, figures, "run-a-tag-memory_max_reserved(GiB).csv")
