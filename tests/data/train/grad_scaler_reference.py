"""What Python's torch.amp.GradScaler makes of a sequence of gradients, for grad_scaler_test.cc.

    python tests/data/train/grad_scaler_reference.py > train/grad_scaler_reference.h

Two parameters under SGD with momentum. The loss of a step is sum(c0 * p0) + sum(c1 * p1), so that
the gradients are the coefficients (times the scale); some steps have one that is not finite, in
one parameter or the other. Every fourth step unscales by itself and clips, as people do.
"""

import math

import torch

STEPS = 24
BAD = {0: math.inf, 3: math.nan, 4: -math.inf, 14: math.inf}


def coefficients(step):
    first = [math.sin(1.0 + 3 * step + i) for i in range(3)]
    second = [math.cos(2.0 + 5 * step + i) for i in range(2)]
    if step in BAD:
        (first if step % 2 else second)[1] = BAD[step]
    return first, second


def main():
    first = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    second = torch.tensor([1.0, 3.0], requires_grad=True)
    optimizer = torch.optim.SGD([first, second], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=1024.0, growth_factor=2.0, backoff_factor=0.25, growth_interval=3
    )
    rows = []
    for step in range(STEPS):
        c0, c1 = (torch.tensor(c) for c in coefficients(step))
        optimizer.zero_grad()
        scaler.scale((c0 * first).sum() + (c1 * second).sum()).backward()
        if step % 4 == 3:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([first, second], 0.5)
        before = first.detach().clone()
        scaler.step(optimizer)
        skipped = torch.equal(before, first.detach())
        scaler.update()
        tracker = scaler.state_dict()["_growth_tracker"]
        values = [*first.tolist(), *second.tolist()]
        text = ", ".join(f"{v:.9g}" for v in values)
        rows.append(
            f"    {{{scaler.get_scale():g}, {tracker}, {str(skipped).lower()}, {{{text}}}}},"
        )
    print("// Made by tests/data/train/grad_scaler_reference.py with torch", torch.__version__)
    print("#pragma once\n\n#include <array>\n\nnamespace plimsoll::train {\n")
    print("/// After each step.\nstruct GradScalerReference {\n  double scale;\n  int growth_tracker;")
    print("  bool skipped;\n  std::array<double, 5> parameters;\n};\n")
    print("inline constexpr GradScalerReference kGradScalerReference[] = {")
    print("\n".join(rows))
    print("};\n\n}  // namespace plimsoll::train")


if __name__ == "__main__":
    main()
