#!/usr/bin/env python3
"""Records the traces of this folder on a GPU, one process a job: record.py OUT [JOB…]

Each job is one that people write and that the other traces lack: detection, mixtures of experts, recurrent
networks, gradient penalties, compiled and captured steps, trainers, optimizers of one's own, generation,
C++ stacks. Beside OUT/<job>.pickle.xz stands <job>.json with what PyTorch itself counted: peaks, bytes of
parameters and buffers, what the optimizer holds, the error text, and `cause`, what the job was written to show.
"""
import json
import lzma
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

JOBS = {}


def job(cause, stacks="python", conf="", cap_gib=None, **more):
    def add(function):
        JOBS[function.__name__] = dict(function=function, cause=cause, stacks=stacks, conf=conf, cap_gib=cap_gib, **more)
        return function
    return add


def params_of(*modules):
    seen = {}
    for m in modules:
        for t in list(m.parameters()) + list(m.buffers()):
            if t.is_cuda:
                seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(seen.values())


class Truth(dict):
    def model(self, *modules):
        self["parameters"] = params_of(*modules)

    def optimizer(self, *optimizers):
        import torch
        total = 0
        for o in optimizers:
            for state in o.state.values():
                total += sum(t.numel() * t.element_size() for t in state.values() if torch.is_tensor(t) and t.is_cuda)
        self["optimizer_state"] = total


def gpt(layers=6, width=384, heads=6, vocab=8192, seq=256):
    import transformers as tf
    cfg = tf.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=seq)
    m = tf.GPT2LMHeadModel(cfg)
    m.config.use_cache = False
    return m


def tokens(batch, seq=256, vocab=8192):
    import torch
    return torch.randint(0, vocab, (batch, seq), device="cuda")


def train(t, model, loss_of, optimizer, steps=4):
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    t.optimizer(optimizer)


def detection(t, build):
    import torch
    model = build().cuda().train()
    t.model(model)
    opt = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def loss_of(step=[0]):
        step[0] += 1
        images, targets = [], []
        for i in range(2):
            h, w = 320 + 64 * ((step[0] + i) % 3), 320 + 64 * (i % 2)
            images.append(torch.rand(3, h, w, device="cuda"))
            xy = torch.rand(8, 2, device="cuda") * 150
            boxes = torch.cat([xy, xy + 20 + torch.rand(8, 2, device="cuda") * 100], 1)
            targets.append({"boxes": boxes, "labels": torch.randint(1, 20, (8,), device="cuda")})
        return sum(model(images, targets).values())
    train(t, model, loss_of, opt)


@job(None)
def faster_rcnn(t):
    import torchvision.models.detection as d
    detection(t, lambda: d.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21, min_size=320, max_size=512))


@job(None)
def retinanet(t):
    import torchvision.models.detection as d
    detection(t, lambda: d.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21, min_size=320, max_size=512))


@job(None)
def mixture_of_experts(t):
    import torch
    import torch.nn as nn

    class Moe(nn.Module):
        def __init__(self, width=512, experts=8):
            super().__init__()
            self.gate = nn.Linear(width, experts)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts))

        def forward(self, x):
            flat = x.reshape(-1, x.shape[-1])
            weight, chosen = self.gate(flat).softmax(-1).topk(2)
            out = torch.zeros_like(flat)
            for e, expert in enumerate(self.experts):
                rows, k = (chosen == e).nonzero(as_tuple=True)
                out = out.index_add(0, rows, expert(flat[rows]) * weight[rows, k, None])
            return x + out.view_as(x)

    model = nn.Sequential(nn.Embedding(8192, 512), Moe(), Moe(), Moe(), nn.Linear(512, 8192)).cuda()
    t.model(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    train(t, model, lambda: nn.functional.cross_entropy(model(tokens(8)).flatten(0, 1), tokens(8).flatten()), opt)


@job(None)
def packed_lstm(t):
    import torch
    import torch.nn as nn
    emb, lstm, head = nn.Embedding(8192, 256).cuda(), nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True).cuda(), nn.Linear(1024, 2).cuda()
    t.model(emb, lstm, head)
    opt = torch.optim.Adam([*emb.parameters(), *lstm.parameters(), *head.parameters()], 1e-4)

    def loss_of(step=[0]):
        step[0] += 1
        lengths = torch.randint(50, 200, (32,)).sort(descending=True).values
        packed = nn.utils.rnn.pack_padded_sequence(emb(tokens(32, int(lengths[0]))), lengths, batch_first=True)
        _, (h, _) = lstm(packed)
        return nn.functional.cross_entropy(head(torch.cat([h[-2], h[-1]], 1)), torch.randint(0, 2, (32,), device="cuda"))
    train(t, lstm, loss_of, opt)


@job(None)
def wgan_gradient_penalty(t):
    import torch
    import torch.nn as nn
    c = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.LeakyReLU(0.2))
    u = lambda i, o: nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1), nn.ReLU())
    gen = nn.Sequential(nn.Linear(128, 512 * 16), nn.Unflatten(1, (512, 4, 4)), u(512, 256), u(256, 128), u(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1)).cuda()
    dis = nn.Sequential(c(3, 64), c(64, 128), c(128, 256), c(256, 512), nn.Flatten(), nn.Linear(512 * 16, 1)).cuda()
    t.model(gen, dis)
    og, od = torch.optim.Adam(gen.parameters(), 1e-4), torch.optim.Adam(dis.parameters(), 1e-4)
    for _ in range(4):
        for _ in range(2):
            real, fake = torch.rand(64, 3, 64, 64, device="cuda"), gen(torch.randn(64, 128, device="cuda")).detach()
            mix = torch.lerp(real, fake, torch.rand(64, 1, 1, 1, device="cuda")).requires_grad_()
            grad = torch.autograd.grad(dis(mix).sum(), mix, create_graph=True)[0]
            (dis(fake).mean() - dis(real).mean() + 10 * (grad.flatten(1).norm(dim=1) - 1).square().mean()).backward()
            od.step(); od.zero_grad()
        (-dis(gen(torch.randn(64, 128, device="cuda"))).mean()).backward()
        og.step(); og.zero_grad(); od.zero_grad()
    t.optimizer(og, od)


@job(None)
def compiled_gpt(t):
    import torch
    model = gpt().cuda()
    t.model(model)
    fast = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    x = tokens(8)
    train(t, model, lambda: fast(input_ids=x, labels=x).loss, opt)


@job("private_pools")
def graphed_resnet(t):
    import torch
    import torchvision
    model = torchvision.models.resnet18().cuda()
    t.model(model)
    x, y = torch.randn(64, 3, 160, 160, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
    opt = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.nn.functional.cross_entropy(model(x), y).backward(); opt.step(); opt.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        torch.nn.functional.cross_entropy(model(x), y).backward(); opt.step()
    for _ in range(5):
        g.replay()
    t.optimizer(opt)


class Rows:
    """A dataset of token rows."""
    def __init__(self, n=64, seq=256): self.n, self.seq = n, seq
    def __len__(self): return self.n
    def __getitem__(self, i):
        import torch
        x = torch.randint(0, 8192, (self.seq,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": x, "labels": x.clone()}


@job(None)
def hf_trainer(t):
    import tempfile
    import transformers as tf
    model = gpt()
    args = tf.TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=5, bf16=True,
                                report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_num_workers=2)
    trainer = tf.Trainer(model=model, args=args, train_dataset=Rows())
    t.model(model)
    trainer.train()
    t.model(model)
    t.optimizer(getattr(trainer.optimizer, "optimizer", trainer.optimizer))


@job(None)
def lightning_gpt(t):
    import torch
    try:
        import lightning as L
    except ImportError:
        import pytorch_lightning as L

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = gpt()
        def training_step(self, batch, i): return self.net(**batch).loss
        def validation_step(self, batch, i): self.log("v", self.net(**batch).loss)
        def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-4)
    lit = Lit()
    loader = torch.utils.data.DataLoader(Rows(32), 8)
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(lit, loader, torch.utils.data.DataLoader(Rows(8), 8))
    t["parameters"] = sum(p.numel() * 4 for p in lit.parameters()) + sum(b.numel() * b.element_size() for b in lit.buffers())
    t["optimizer_state"] = 2 * sum(p.numel() * 4 for p in lit.parameters())


@job("caught", cap_gib=3.0)
def accelerate_retries(t):
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size
    acc = Accelerator()

    @find_executable_batch_size(starting_batch_size=64)
    def inner(batch):
        acc.free_memory()
        model = gpt()
        opt = torch.optim.AdamW(model.parameters(), 1e-4)
        model, opt = acc.prepare(model, opt)
        t.model(model)
        for _ in range(3):
            x = tokens(batch)
            acc.backward(model(input_ids=x, labels=x).loss)
            opt.step(); opt.zero_grad()
        t.optimizer(opt.optimizer)
        t["batch"] = batch
    inner()


@job(None)
def own_adam(t):
    import torch
    model = gpt().cuda()
    t.model(model)
    first, second = {}, {}
    for step in range(5):
        x = tokens(8)
        model(input_ids=x, labels=x).loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p not in first:
                    first[p], second[p] = torch.zeros_like(p), torch.zeros_like(p)
                first[p].mul_(0.9).add_(p.grad, alpha=0.1)
                second[p].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.addcdiv_(first[p], second[p].sqrt().add_(1e-8), value=-1e-4)
                p.grad = None
    t["optimizer_state"] = sum(x.numel() * 4 for x in [*first.values(), *second.values()])


@job(None)
def own_adam_made_anew(t):
    import torch
    model = gpt().cuda()
    t.model(model)
    ps = list(model.parameters())
    first, second = [torch.zeros_like(p) for p in ps], [torch.zeros_like(p) for p in ps]
    for step in range(5):
        x = tokens(8)
        grads = torch.autograd.grad(model(input_ids=x, labels=x).loss, ps)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, grads)]
        second = [0.99 * v + 0.01 * g * g for v, g in zip(second, grads)]
        with torch.no_grad():
            for p, m, v in zip(ps, first, second):
                p -= 1e-4 * m / (v.sqrt() + 1e-8)
    t["optimizer_state"] = sum(x.numel() * 4 for x in [*first, *second])


@job("kv_cache")
def generation(t):
    import torch
    model = gpt(layers=12, width=768, heads=12, seq=1024).cuda().eval()
    model.config.use_cache = True
    t.model(model)
    with torch.no_grad():
        model.generate(tokens(16, 32), max_new_tokens=200, do_sample=False, pad_token_id=0)


@job(None, stacks="all")
def cpp_stacks_bert(t):
    import torch
    import transformers as tf
    model = tf.BertForMaskedLM(tf.BertConfig(num_hidden_layers=4, hidden_size=384, num_attention_heads=6, intermediate_size=1536, vocab_size=8192)).cuda().train()
    t.model(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    train(t, model, lambda: model(input_ids=tokens(8), labels=tokens(8)).loss, opt, 3)


@job("oom_backward", stacks="all", cap_gib=1.4)
def cpp_stacks_out_in_backward(t):
    grow_until_backward_dies(t)


@job("oom_backward", cap_gib=1.4)
def out_in_backward(t):
    grow_until_backward_dies(t)


def grow_until_backward_dies(t):
    import torch
    model = gpt(vocab=16384).cuda()
    t.model(model)
    opt = torch.optim.SGD(model.parameters(), 1e-4)
    for step in range(8):
        x = tokens(6 + 2 * step)
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        opt.step(); opt.zero_grad()
        t["steps"] = step + 1


@job("rounding", conf="roundup_power2_divisions:1")
def power_of_two_rounding(t):
    import torch
    import torchvision
    model = torchvision.models.resnet50().cuda()
    t.model(model)
    opt = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    x, y = torch.randn(40, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (40,), device="cuda")
    train(t, model, lambda: torch.nn.functional.cross_entropy(model(x), y), opt)


@job("leak")
def graph_in_a_list(t):
    import torch
    model = gpt().cuda()
    t.model(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    history = []
    for _ in range(5):
        x = tokens(8)
        out = model(input_ids=x, labels=x)
        out.loss.backward(retain_graph=True)
        opt.step(); opt.zero_grad()
        history.append(out.loss)
    t.optimizer(opt)


@job(None)
def ema_and_scaler(t):
    import copy
    import torch
    import torchvision
    model = torchvision.models.vit_b_16(image_size=112).cuda()
    ema = copy.deepcopy(model).requires_grad_(False)
    t.model(model, ema)
    opt, scaler = torch.optim.AdamW(model.parameters(), 1e-4), torch.amp.GradScaler()
    for _ in range(5):
        x, y = torch.randn(32, 3, 112, 112, device="cuda"), torch.randint(0, 1000, (32,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt); scaler.update(); opt.zero_grad()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 0.01)
    t.optimizer(opt)


@job(None)
def ddp_bucket_views(t):
    import torch
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    dist.init_process_group("gloo", rank=0, world_size=1)
    model = gpt().cuda()
    t.model(model)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    x = tokens(8)
    train(t, model, lambda: ddp(input_ids=x, labels=x).loss, opt)


@job(None)
def lora(t):
    import torch
    import torch.nn as nn
    model = gpt(layers=8, width=512, heads=8)
    model.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, base, rank=8):
            super().__init__()
            self.base = base
            self.a = nn.Parameter(torch.randn(base.weight.shape[0], rank) * 0.01)
            self.b = nn.Parameter(torch.zeros(rank, base.weight.shape[1]))
        def forward(self, x): return self.base(x) + x @ self.a @ self.b
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn)
        block.mlp.c_fc = Lora(block.mlp.c_fc)
    model.cuda()
    t.model(model)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
    train(t, model, lambda: model(input_ids=tokens(8), labels=tokens(8)).loss, opt)


@job("capacity", cap_gib=0.42)
def out_in_first_optimizer_step(t):
    import torch
    model = gpt(layers=8, width=512, heads=8).cuda()
    t.model(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    train(t, model, lambda: model(input_ids=tokens(1, 64), labels=tokens(1, 64)).loss, opt)


@job("eval_spike", cap_gib=2.2)
def out_in_evaluation(t):
    import torch
    import torchvision
    model = torchvision.models.resnet34().cuda()
    t.model(model)
    opt = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def loss_of(n=32):
        return torch.nn.functional.cross_entropy(model(torch.randn(n, 3, 160, 160, device="cuda")), torch.randint(0, 1000, (n,), device="cuda"))

    def evaluate():
        return [loss_of(128).item() for _ in range(4)]
    for _ in range(4):
        loss_of().backward()
        opt.step(); opt.zero_grad()
    t.optimizer(opt)
    evaluate()


@job(None)
def lbfgs_closure(t):
    import torch
    import torch.nn as nn
    model = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1024), nn.Tanh(), nn.Linear(1024, 10)).cuda()
    t.model(model)
    x, y = torch.randn(512, 1024, device="cuda"), torch.randint(0, 10, (512,), device="cuda")
    opt = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5)
    for _ in range(4):
        def closure():
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        opt.step(closure)


@job(None)
def checkpointed_accumulation(t):
    import torch
    model = gpt(layers=8)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.cuda().train()
    t.model(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(4):
        for _ in range(3):
            x = tokens(8)
            with torch.autocast("cuda", torch.bfloat16):
                (model(input_ids=x, labels=x).loss / 3).backward()
        opt.step(); opt.zero_grad()
    t.optimizer(opt)


@job(None)
def two_towers(t):
    import torch
    import torchvision
    image, text = torchvision.models.resnet18(num_classes=256).cuda(), gpt(layers=3).cuda()
    t.model(image, text)
    opt = torch.optim.AdamW([*image.parameters(), *text.parameters()], 1e-4)

    def loss_of():
        a = torch.nn.functional.normalize(image(torch.randn(48, 3, 128, 128, device="cuda")), dim=1)
        b = torch.nn.functional.normalize(text.transformer(tokens(48, 64)).last_hidden_state.mean(1)[:, :256], dim=1)
        return torch.nn.functional.cross_entropy(a @ b.T * 20, torch.arange(48, device="cuda"))
    train(t, image, loss_of, opt)


@job("limit", cap_gib=1.0, conf="expandable_segments:True")
def expandable_out_in_first_forward(t):
    import torch
    import torchvision
    model = torchvision.models.resnet50().cuda()
    t.model(model)
    opt = torch.optim.SGD(model.parameters(), 1e-3)
    x, y = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
    train(t, model, lambda: torch.nn.functional.cross_entropy(model(x), y), opt)


def run(name, out):
    import torch
    spec = JOBS[name]
    torch.manual_seed(0)
    if spec["cap_gib"]:
        torch.cuda.set_per_process_memory_fraction(spec["cap_gib"] * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=spec["stacks"])
    truth = Truth(spec={"id": name, "cause": spec["cause"], "stacks": spec["stacks"], "alloc_conf": spec["conf"], "cap_gib": spec["cap_gib"]},
                  torch=torch.__version__, gpu=torch.cuda.get_device_name(0))
    try:
        spec["function"](truth)
    except torch.cuda.OutOfMemoryError as e:
        truth["oom"] = str(e)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    truth["peak_allocated"], truth["peak_reserved"] = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    torch.cuda.memory._dump_snapshot(f"{out}/{name}.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    with open(f"{out}/{name}.pickle", "rb") as f, lzma.open(f"{out}/{name}.pickle.xz", "wb", preset=9) as x:
        x.write(f.read())
    os.remove(f"{out}/{name}.pickle")
    with open(f"{out}/{name}.json", "w") as f:
        json.dump(truth, f, indent=1)


def one(name, out):
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=JOBS[name]["conf"], TOKENIZERS_PARALLELISM="false")
    p = subprocess.run([sys.executable, __file__, "--one", name, out], env=env, capture_output=True, text=True, timeout=240)
    try:
        with open(f"{out}/{name}.json") as f:
            r = json.load(f)
        size = os.path.getsize(f"{out}/{name}.pickle.xz")
        print(f"{name:34s} {r['peak_allocated']:>12} {r['peak_reserved']:>12} {size:>9} {'ran out' if 'oom' in r else ''}", flush=True)
    except OSError:
        print(name, "FAILED", p.stderr[-600:], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        run(sys.argv[2], sys.argv[3])
    else:
        os.makedirs(sys.argv[1], exist_ok=True)
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda n: one(n, sys.argv[1]), sys.argv[2:] or JOBS))
