"""Three steps of a 70 B Llama under `fully_shard`, for one rank of 64:

    torcharena rehearse --world-size 64 --rank 0 --steps 3 llama70b_fsdp.py

Meta initialisation, bf16, AdamW, one sequence of 4096 tokens a rank, activations checkpointed."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=80)
parser.add_argument("--width", type=int, default=8192)
parser.add_argument("--tokens", type=int, default=4096)
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=options.width,
    intermediate_size=options.width * 7 // 2,
    num_hidden_layers=options.layers,
    num_attention_heads=options.width // 128,
    num_key_value_heads=max(1, options.width // 1024),
    vocab_size=128256,
    max_position_embeddings=8192,
    use_cache=False,
    attn_implementation="sdpa",
)
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_(0, 0.02)
model.gradient_checkpointing_enable(
    gradient_checkpointing_kwargs={"use_reentrant": False}
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(options.steps):
    tokens = torch.randint(0, config.vocab_size, (1, options.tokens), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}, loss {loss.item():.3f}", flush=True)
    if options.steps == step + 1:
        stats = torch.cuda.memory_stats()
        print(f"peak {stats['requested_bytes.all.peak']}", flush=True)
dist.destroy_process_group()
