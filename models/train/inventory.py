"""The tensors of a checkpoint: official names, shapes, types and how training starts them."""

import json
import math
import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Config:
    vocab: int
    dim: int
    heads: int
    head_dim: int
    rope_dims: int
    q_rank: int
    o_groups: int
    o_rank: int
    ratios: tuple
    window: int
    index_heads: int
    index_dim: int
    index_topk: int
    experts: int
    active_experts: int
    expert_dim: int
    hash_layers: int
    route_scale: float
    clamp: float
    streams: int
    sinkhorn_iters: int
    hc_eps: float
    norm_eps: float
    theta: float
    compress_theta: float
    rope_scaling: dict

    @property
    def layers(self):
        return len(self.ratios)


def read_config(model_dir):
    with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    for key, wanted in (("model_type", "deepseek_v4"), ("n_shared_experts", 1),
                        ("sliding_window", 128), ("scoring_func", "sqrtsoftplus"),
                        ("num_nextn_predict_layers", 0)):
        if c.get(key) != wanted:
            raise ValueError(f"{model_dir}/config.json: {key} is {c.get(key)!r}, not {wanted!r}")
    return Config(
        vocab=c["vocab_size"], dim=c["hidden_size"], heads=c["num_attention_heads"],
        head_dim=c["head_dim"], rope_dims=c["qk_rope_head_dim"], q_rank=c["q_lora_rank"],
        o_groups=c["o_groups"], o_rank=c["o_lora_rank"],
        ratios=tuple(c["compress_ratios"][:c["num_hidden_layers"]]), window=c["sliding_window"],
        index_heads=c["index_n_heads"], index_dim=c["index_head_dim"], index_topk=c["index_topk"],
        experts=c["n_routed_experts"], active_experts=c["num_experts_per_tok"],
        expert_dim=c["moe_intermediate_size"], hash_layers=c["num_hash_layers"],
        route_scale=c["routed_scaling_factor"], clamp=c["swiglu_limit"], streams=c["hc_mult"],
        sinkhorn_iters=c["hc_sinkhorn_iters"], hc_eps=c["hc_eps"], norm_eps=c["rms_norm_eps"],
        theta=c["rope_theta"], compress_theta=c["compress_rope_theta"],
        rope_scaling=c["rope_scaling"])


@dataclass(frozen=True)
class TensorSpec:
    name: str
    shape: tuple
    dtype: str     # as in the file: BF16, F32 or I64
    mean: object   # initial value: a number, or one for each element of the first axis
    std: object    # of normal noise around it, likewise
    decay: bool = False

    @property
    def size(self):
        return math.prod(self.shape)


def _linear(name, rows, columns, gain=1.0):
    return TensorSpec(name + ".weight", (rows, columns), "BF16", 0.0, gain / columns**0.5, True)


def _norm(name, size):
    return TensorSpec(name + ".weight", (size,), "BF16", 1.0, 0.0)


def _hyper_connection(prefix, c):
    m = c.streams
    identity = [3.0 * (j == k) for j in range(m) for k in range(m)]
    return [TensorSpec(prefix + "_fn", (2 * m + m * m, m * c.dim), "F32", 0.0, 0.01),
            TensorSpec(prefix + "_base", (2 * m + m * m,), "F32", [-1.0] * m + [0.0] * m + identity,
                       [0.5] * (2 * m) + [0.3] * (m * m)),
            TensorSpec(prefix + "_scale", (3,), "F32", 1.0, 0.0)]


def _compressor(prefix, c, ratio, width):
    rows = width * (2 if ratio == 4 else 1)
    return [_linear(prefix + ".wkv", rows, c.dim), _linear(prefix + ".wgate", rows, c.dim, 0.5),
            TensorSpec(prefix + ".ape", (ratio, rows), "F32", 0.0, 0.1),
            _norm(prefix + ".norm", width)]


def _attention(prefix, c, ratio):
    specs = [TensorSpec(prefix + ".attn_sink", (c.heads,), "F32", 0.0, 0.0),
             _linear(prefix + ".wq_a", c.q_rank, c.dim), _norm(prefix + ".q_norm", c.q_rank),
             _linear(prefix + ".wq_b", c.heads * c.head_dim, c.q_rank),
             _linear(prefix + ".wkv", c.head_dim, c.dim), _norm(prefix + ".kv_norm", c.head_dim),
             _linear(prefix + ".wo_a", c.o_groups * c.o_rank, c.heads * c.head_dim // c.o_groups),
             _linear(prefix + ".wo_b", c.dim, c.o_groups * c.o_rank, 0.7)]
    if ratio:
        specs += _compressor(prefix + ".compressor", c, ratio, c.head_dim)
    if ratio == 4:
        index = prefix + ".indexer"
        specs += [_linear(index + ".wq_b", c.index_heads * c.index_dim, c.q_rank),
                  _linear(index + ".weights_proj", c.index_heads, c.dim),
                  *_compressor(index + ".compressor", c, ratio, c.index_dim)]
    return specs


def _feed_forward(prefix, c, layer):
    specs = [_linear(prefix + ".gate", c.experts, c.dim)]
    if layer < c.hash_layers:
        specs.append(TensorSpec(prefix + ".gate.tid2eid", (c.vocab, c.active_experts), "I64", 0, 0))
    else:
        specs.append(TensorSpec(prefix + ".gate.bias", (c.experts,), "F32", 0.0, 0.0))
    for expert in [f"experts.{e}" for e in range(c.experts)] + ["shared_experts"]:
        specs += [_linear(f"{prefix}.{expert}.w1", c.expert_dim, c.dim),
                  _linear(f"{prefix}.{expert}.w2", c.dim, c.expert_dim, 0.7),
                  _linear(f"{prefix}.{expert}.w3", c.expert_dim, c.dim)]
    return specs


def tensor_specs(c):
    specs = [TensorSpec("embed.weight", (c.vocab, c.dim), "BF16", 0.0, 0.5)]
    for layer, ratio in enumerate(c.ratios):
        prefix = f"layers.{layer}"
        specs += [_norm(prefix + ".attn_norm", c.dim), _norm(prefix + ".ffn_norm", c.dim),
                  *_hyper_connection(prefix + ".hc_attn", c),
                  *_hyper_connection(prefix + ".hc_ffn", c),
                  *_attention(prefix + ".attn", c, ratio),
                  *_feed_forward(prefix + ".ffn", c, layer)]
    m = c.streams
    return specs + [TensorSpec("head.weight", (c.vocab, c.dim), "BF16", 0.0, 0.02, True),
                    _norm("norm", c.dim),
                    TensorSpec("hc_head_fn", (m, m * c.dim), "F32", 0.0, 0.01),
                    TensorSpec("hc_head_base", (m,), "F32", -1.0, 0.2),
                    TensorSpec("hc_head_scale", (1,), "F32", 1.0, 0.0)]


def is_trained(spec):
    """By gradient: not the expert biases, which follow the load, nor the hash table."""
    return spec.dtype != "I64" and not spec.name.endswith("gate.bias")


def initial_tensors(c, seed):
    """Name to tensor, f32 or i64, on the CPU."""
    rng = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in tensor_specs(c):
        if spec.dtype == "I64":
            first = torch.randint(c.experts, (c.vocab,), generator=rng)
            step = torch.arange(c.active_experts) * 3  # the second expert is a fixed step away
            tensors[spec.name] = (first[:, None] + step) % c.experts
            continue
        noise = torch.randn(spec.shape, generator=rng)
        mean, std = (torch.tensor(x, dtype=torch.float32) for x in (spec.mean, spec.std))
        tensors[spec.name] = mean + std * noise
    return tensors
