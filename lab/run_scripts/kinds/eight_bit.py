"""A Llama whose weights are kept in 8 bits by bitsandbytes, with adapters that are trained."""

import argparse

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("folder", help="made by eight_bit_model.py")
parser.add_argument("--batch", type=int, default=4)
args = parser.parse_args()

model = LlamaForCausalLM.from_pretrained(
    args.folder,
    quantization_config=BitsAndBytesConfig(load_in_8bit=True),
    device_map={"": 0},
    dtype=torch.float16,
)
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(5):
    tokens = torch.randint(0, 32000, (args.batch, 512)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
