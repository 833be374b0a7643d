"""A perceptron with an optimizer of its own: Shampoo, which takes roots of matrices every ten steps."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=25)
args = parser.parse_args()


def inverse_root(matrix, power):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=1e-6) ** (-1.0 / power)) @ vectors.t()


class Shampoo(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-2, every=10):
        super().__init__(parameters, {"lr": lr, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.dim() != 2:
                    p.add_(p.grad, alpha=-group["lr"])
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    for side, size in (("left", p.shape[0]), ("right", p.shape[1])):
                        state[side] = torch.eye(size, device=p.device) * 1e-3
                        state[side + "_root"] = torch.eye(size, device=p.device)
                state["step"] += 1
                state["left"].add_(p.grad @ p.grad.t())
                state["right"].add_(p.grad.t() @ p.grad)
                if state["step"] % group["every"] == 0:
                    state["left_root"] = inverse_root(state["left"], 4)
                    state["right_root"] = inverse_root(state["right"], 4)
                change = state["left_root"] @ p.grad @ state["right_root"]
                p.add_(change, alpha=-group["lr"])


torch.manual_seed(0)
width = 2048
layers = [nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
model = nn.Sequential(*layers).cuda()
optimizer = Shampoo(model.parameters())
for step in range(args.steps):
    x = torch.randn(args.batch, 1024).cuda()
    y = torch.randint(0, 10, (args.batch,)).cuda()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print("loss", loss.item())
