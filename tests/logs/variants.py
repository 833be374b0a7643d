"""Ways in which the same lines reach a log: by ranks, coloured, with progress bars, cut."""
import random

from formats import FORMATS, OWN_RANK, STEP_BEHIND, Piece, Place, bar
from truth import Log

STEPS = 6


def render(lines, prefix=""):
    """The text and its figures with where each ends in it."""
    text, ends = "", []
    for line in lines:
        text += prefix
        for part in line:
            text += part.text if isinstance(part, Piece) else part
            if isinstance(part, Piece):
                ends.append((part.figure, len(text) + (1 if part.needs_next else 0)))
        text += "\n"
    return text, ends


def blocks(rng, write, places):
    return [(place, write(rng, place)) for place in places]


def plain(name, rng):
    text, ends = render([line for _, lines in blocks(rng, FORMATS[name], [Place(s, None) for s in range(1, STEPS + 1)]) for line in lines])
    return text, [figure for figure, _ in ends]


def interleaved(name, rng, prefix_of, ranks=3):
    """The lines of several ranks, mixed, each rank's in its order."""
    queues = [[line for s in range(1, STEPS + 1) for line in FORMATS[name](rng, prefix_of(rank, s)[1])] for rank in range(ranks)]
    text, figures = "", []
    while any(queues):
        rank = rng.choice([i for i, queue in enumerate(queues) if queue])
        # A bar belongs to the line above it.
        line = queues[rank].pop(0)
        more, ends = render([line], prefix_of(rank, 0)[0])
        text += more
        figures += [figure for figure, _ in ends]
    return text, figures


def torchrun(name, rng):
    return interleaved(name, rng, lambda rank, step: (f"[rank{rank}]:", Place(step, rank)))


def srun(name, rng):
    return interleaved(name, rng, lambda rank, step: (f"{rank}: ", Place(step, rank)))


def ray(name, rng):
    return interleaved(name, rng, lambda rank, step: (f"\x1b[36m(WorkerDict pid={4711 + rank}, ip=10.0.0.5)\x1b[0m ",
                                                      Place(step, None, f"WorkerDict pid={4711 + rank}, ip=10.0.0.5")))


def coloured(name, rng):
    text, figures = plain(name, rng)
    out = ""
    for i, c in enumerate(text):
        # In front of words only, as programs do it.
        if c.isalpha() and i > 0 and text[i - 1] in " \n" and rng.random() < 0.3:
            out += rng.choice(["\x1b[31m", "\x1b[38;2;180;60;0m", "\x1b[0m", "\x1b[1;32m"])
        out += c
    return out, figures


def crlf(name, rng):
    text, figures = plain(name, rng)
    return text.replace("\n", "\r\n"), figures


def with_bars(name, rng):
    """Progress bars are drawn over and over in front of every line."""
    text, figures = plain(name, rng)
    out = ""
    for i, line in enumerate(text.splitlines(keepends=True)):
        out += "".join(f"\r{bar(i)}" for _ in range(3)) + "\r" + line
    return out, figures


def noisy(name, rng):
    """Among lines that speak of memory and tell none."""
    text, figures = plain(name, rng)
    noise = ["Loading checkpoint shards: done", "UserWarning: memory format is not channels_last", "freed the cache, reserved nothing",
             "memory: see above", "GPU memory is being profiled", "allocated port 29500", "took 3 GB/s", "torch.cuda.max_memory_allocated() is peak"]
    block = 60 if name in ("deepspeed", "deepspeed_logger", "torchtune_phase", "smi", "olmo", "axolotl") else 1
    out = ""
    for i, line in enumerate(text.splitlines(keepends=True)):
        if block == 1 and rng.random() < 0.5:
            out += rng.choice(noise) + "\n"
        out += line
    return "\n".join(noise) + "\n" + out, figures


def cut(name, rng):
    places = [Place(s, None) for s in range(1, STEPS + 1)]
    text, ends = render([line for _, lines in blocks(rng, FORMATS[name], places) for line in lines])
    at = rng.randint(len(text) // 2, len(text) - 1)
    begin = text.rfind("\n", 0, at) + 1
    return text[:at], [figure for figure, end in ends if end <= at], tuple(figure for figure, end in ends if begin < end <= at)


VARIANTS = {"plain": plain, "torchrun": torchrun, "srun": srun, "ray": ray, "coloured": coloured, "crlf": crlf, "bars": with_bars,
            "noisy": noisy, "cut": cut, "cut_again": cut}


def all_logs(seed=1):
    for name in FORMATS:
        for variant, make in VARIANTS.items():
            by_rank = variant in ("torchrun", "srun", "ray")
            if by_rank and (name in OWN_RANK or name in ("axolotl", "olmo")):
                continue
            if variant.startswith("cut") and name in STEP_BEHIND:
                continue
            # Its own bar tells the step; another's tells another.
            if variant == "bars" and name in ("axolotl", "own"):
                continue
            rng = random.Random(f"{seed} {name} {variant}")
            text, figures, *rest = make(name, rng)
            yield Log(f"{name}.{variant}", text, figures, may_be_missing=rest[0] if rest else ())
