"""The forward pass of training: the architecture of DeepSeek-V4, all positions at once.

Activations are rounded to `dtype` where the reference rounds to bf16; sums are f32. Shapes: B rows,
T tokens (a multiple of 128), D hidden, H heads, d head dim, M streams, N entries, E experts.
"""

import math

import torch
import torch.nn.functional as F

from attention import JointAttention

HIDDEN = -1e30  # a score that no softmax sees; finite, so that a row without entries has no NaN


class Weights:
    """All trained values in one f32 vector, so that the optimiser and the rounding to bf16 are a
    few operations; beside it what gradients do not train."""

    def __init__(self, specs, tensors, device, dtype):
        from inventory import is_trained
        self.specs = specs
        self.dtype = dtype
        trained = [spec for spec in specs if is_trained(spec)]
        self._rounded = [spec for spec in trained if spec.dtype == "BF16"]
        self._exact = [spec for spec in trained if spec.dtype == "F32"]
        self._split = sum(spec.size for spec in self._rounded)
        order = self._rounded + self._exact
        vector = torch.cat([tensors[spec.name].reshape(-1) for spec in order])
        self.vector = vector.to(device).requires_grad_(True)
        self.fixed = {spec.name: tensors[spec.name].to(device) for spec in specs
                      if not is_trained(spec)}

    def by_element(self, value):
        """`value(spec)` of each element of the vector."""
        parts = [torch.full((spec.size,), float(value(spec)))
                 for spec in self._rounded + self._exact]
        return torch.cat(parts).to(self.vector.device)

    def tensors(self):
        """Name to tensor: matrices and norms rounded to bf16, then `dtype`; the rest f32."""
        rounded = self.vector[:self._split].to(torch.bfloat16).to(self.dtype)
        named = dict(self.fixed)
        for specs, vector in ((self._rounded, rounded), (self._exact, self.vector[self._split:])):
            for spec, part in zip(specs, vector.split([spec.size for spec in specs])):
                named[spec.name] = part.view(spec.shape)
        return named


def rms_norm(x, weight, eps):
    x32 = x.float()
    return (weight.float() * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps))).to(
        x.dtype)


def rope(x, cos, sin, inverse=False):
    """Rotates the last dims of f32 x [B, T, .., d] in interleaved pairs; cos, sin [T, pairs]."""
    pairs = cos.shape[1]
    shape = [1, x.shape[1]] + [1] * (x.dim() - 3) + [pairs]
    cos, sin = cos.view(shape), sin.view(shape)
    if inverse:
        sin = -sin
    turned = x[..., -2 * pairs:].reshape(*x.shape[:-1], pairs, 2)
    a, b = turned[..., 0], turned[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-2 * pairs], turned], -1)


def rope_frequencies(config, compressed):
    pairs = config.rope_dims // 2
    theta = config.compress_theta if compressed else config.theta
    freq = 1.0 / theta**(torch.arange(pairs, dtype=torch.float32) * 2 / config.rope_dims)
    if not compressed:
        return freq
    s = config.rope_scaling

    def dim_of(turns):
        length = s["original_max_position_embeddings"]
        return config.rope_dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = math.floor(dim_of(s["beta_fast"])), math.ceil(dim_of(s["beta_slow"]))
    ramp = ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return freq / s["factor"] * ramp + freq * (1 - ramp)


def product32(x, weight):
    """x weight^T with f32 operands: exact TF32 products where both hold bf16 values."""
    return x.float() @ weight.float().t()


class Model:
    def __init__(self, config, device, dtype):
        self.config = config
        self.device = device
        self.dtype = dtype
        self._tables = {}

    def _rope_table(self, compressed, tokens, stride=1):
        key = (compressed, tokens, stride)
        if key not in self._tables:
            position = torch.arange(0, tokens * stride, stride, dtype=torch.float32)
            angle = position[:, None] * rope_frequencies(self.config, compressed)
            self._tables[key] = (angle.cos().to(self.device), angle.sin().to(self.device))
        return self._tables[key]

    def run(self, named, tokens, select):
        """Streams of all positions, collapsed and normed: [B, T, D]. `select`: attend to the top-k
        entries only, as in use; else to all. Also what the losses need: for each ratio-4 layer a
        dict of its queries, keys and output, and for each score-routed layer the load f32 [E]."""
        config = self.config
        # A product with the one-hot rows: its gradient is a plain matrix product.
        onehot = (tokens[..., None] == torch.arange(config.vocab, device=tokens.device))
        embedded = onehot.to(self.dtype) @ named["embed.weight"]
        streams = embedded[:, :, None].expand(-1, -1, config.streams, -1)
        indexed, loads = [], []
        for layer, ratio in enumerate(config.ratios):
            prefix = f"layers.{layer}."
            part, post, comb = self._hc_pre(named, prefix + "hc_attn", streams)
            part = rms_norm(part, named[prefix + "attn_norm.weight"], config.norm_eps)
            part = self._attention(named, prefix + "attn.", ratio, part, select, indexed)
            streams = self._hc_post(part, streams, post, comb)
            part, post, comb = self._hc_pre(named, prefix + "hc_ffn", streams)
            part = rms_norm(part, named[prefix + "ffn_norm.weight"], config.norm_eps)
            part = self._feed_forward(named, prefix + "ffn.", layer, part, tokens, loads)
            streams = self._hc_post(part, streams, post, comb)
        pre = self._mixes(streams, named["hc_head_fn"])
        pre = torch.sigmoid(pre * named["hc_head_scale"] + named["hc_head_base"]) + config.hc_eps
        hidden = (pre[..., None] * streams.float()).sum(2).to(self.dtype)
        return rms_norm(hidden, named["norm.weight"], config.norm_eps), indexed, loads

    # Residual streams [B, T, M, D].

    def _mixes(self, streams, fn):
        flat = streams.flatten(2).float()
        factor = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (flat @ fn.t()) * factor

    def _hc_pre(self, named, prefix, streams):
        """The sub-layer's input [B, T, D], and post [B, T, M], comb [B, T, M, M]."""
        c, m = self.config, self.config.streams
        mix = self._mixes(streams, named[prefix + "_fn"])
        base, scale = named[prefix + "_base"], named[prefix + "_scale"]
        pre = torch.sigmoid(mix[..., :m] * scale[0] + base[:m]) + c.hc_eps
        post = 2 * torch.sigmoid(mix[..., m:2 * m] * scale[1] + base[m:2 * m])
        comb = (mix[..., 2 * m:] * scale[2] + base[2 * m:]).unflatten(-1, (m, m))
        comb = self._sinkhorn(comb)
        return (pre[..., None] * streams.float()).sum(2).to(self.dtype), post, comb

    def _sinkhorn(self, comb):
        eps = self.config.hc_eps
        comb = comb.permute(2, 3, 0, 1)  # [source, destination, B, T]: sums over leading axes
        comb = comb.softmax(1) + eps
        comb = comb / (comb.sum(0, keepdim=True) + eps)
        for _ in range(self.config.sinkhorn_iters - 1):
            comb = comb / (comb.sum(1, keepdim=True) + eps)
            comb = comb / (comb.sum(0, keepdim=True) + eps)
        return comb.permute(2, 3, 0, 1)

    def _hc_post(self, part, streams, post, comb):
        mixed = comb.transpose(2, 3) @ streams.float()
        return (post[..., None] * part.float()[:, :, None] + mixed).to(self.dtype)

    # Attention.

    def _attention(self, named, prefix, ratio, x, select, indexed):
        c = self.config
        rows, tokens, _ = x.shape
        cos, sin = self._rope_table(ratio > 0, tokens)
        latent = rms_norm(x @ named[prefix + "wq_a.weight"].t(), named[prefix + "q_norm.weight"],
                          c.norm_eps)
        q = (latent @ named[prefix + "wq_b.weight"].t()).view(rows, tokens, c.heads, -1).float()
        q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + c.norm_eps)
        q = rope(q, cos, sin).to(self.dtype)
        kv = rms_norm(x @ named[prefix + "wkv.weight"].t(), named[prefix + "kv_norm.weight"],
                      c.norm_eps)
        kv = rope(kv.float(), cos, sin).to(self.dtype)
        sink = named[prefix + "attn_sink"]
        entries = mask = None
        if ratio:
            entries = self._compress(named, prefix + "compressor.", ratio, x)
            visible = self._visible(tokens, ratio)
            mask = visible
        if ratio == 4:
            index = self._index(named, prefix + "indexer.", x.detach(), latent.detach(), cos, sin)
            if select and entries.shape[1] > c.index_topk:
                mask = self._select(index, visible)
            indexed.append(dict(index, q=q, kv=kv, entries=entries, sink=sink))
        out = JointAttention.apply(q, kv, entries, mask, sink)
        out = rope(out.float(), cos, sin, inverse=True).to(self.dtype)
        out = out.view(rows * tokens, c.o_groups, -1).transpose(0, 1)
        wo_a = named[prefix + "wo_a.weight"].view(c.o_groups, c.o_rank, -1)
        out = torch.bmm(out, wo_a.transpose(1, 2)).transpose(0, 1).reshape(rows, tokens, -1)
        out = out @ named[prefix + "wo_b.weight"].t()
        if ratio == 4:
            indexed[-1]["out"] = out
        return out

    def _visible(self, tokens, ratio):
        """[1, T, N] of bool: the entries that are complete at each position."""
        position = torch.arange(tokens, device=self.device)
        entry = torch.arange(tokens // ratio, device=self.device)
        return (entry < ((position + 1) // ratio)[:, None])[None]

    def _compress(self, named, prefix, ratio, x):
        """One key of each group of `ratio` tokens: [B, N, width]."""
        rows, tokens, _ = x.shape
        keys = product32(x, named[prefix + "wkv.weight"])
        keys = keys.view(rows, tokens // ratio, ratio, -1)
        scores = product32(x, named[prefix + "wgate.weight"]).view_as(keys)
        scores = scores + named[prefix + "ape"]
        if ratio == 4:  # the first half of the channels pools the group before
            keys, scores = _overlap(keys, 0.0), _overlap(scores, float("-inf"))
        pooled = (scores.softmax(2) * keys).sum(2).to(self.dtype)
        pooled = rms_norm(pooled, named[prefix + "norm.weight"], self.config.norm_eps)
        cos, sin = self._rope_table(True, tokens // ratio, ratio)
        return rope(pooled.float(), cos, sin).to(self.dtype)

    def _index(self, named, prefix, x, latent, cos, sin):
        c = self.config
        rows, tokens, _ = x.shape
        query = (latent @ named[prefix + "wq_b.weight"].t()).view(rows, tokens, c.index_heads, -1)
        query = rope(query.float(), cos, sin).to(self.dtype)
        weight = (x @ named[prefix + "weights_proj.weight"].t()).float()
        weight = weight * (c.index_dim * c.index_heads)**-0.5
        keys = self._compress(named, prefix + "compressor.", 4, x)
        return {"index_q": query, "index_w": weight, "index_keys": keys}

    @torch.no_grad()
    def _select(self, index, visible):
        """[B, T, N] of bool: the top-k entries by index score."""
        keys = index["index_keys"].float().transpose(1, 2)
        scores = None
        for head in range(self.config.index_heads):
            part = torch.bmm(index["index_q"][:, :, head].float(), keys).relu_()
            part.mul_(index["index_w"][:, :, head, None])
            scores = part if scores is None else scores.add_(part)
        scores.masked_fill_(~visible, float("-inf"))
        last = scores.topk(self.config.index_topk, -1, sorted=False)[0].amin(-1, keepdim=True)
        return visible & (scores >= last)

    # Experts.

    def _feed_forward(self, named, prefix, layer, x, tokens, loads):
        """All experts for all tokens, weighted by the mostly zero gates; the shared expert is one
        more with weight 1."""
        c = self.config
        names = [f"{prefix}experts.{e}." for e in range(c.experts)] + [prefix + "shared_experts."]
        w1, w3 = (torch.cat([named[f"{name}{part}.weight"] for name in names])
                  for part in ("w1", "w3"))
        w2 = torch.cat([named[name + "w2.weight"] for name in names], 1)
        gates = self._gates(named, prefix, layer, x, tokens, loads)
        gates = torch.cat([gates, torch.ones_like(gates[..., :1])], -1)
        gate = (x @ w1.t()).float().clamp(max=c.clamp)
        up = (x @ w3.t()).float().clamp(-c.clamp, c.clamp)
        act = (F.silu(gate) * up).unflatten(-1, (c.experts + 1, c.expert_dim))
        act = (act * gates[..., None]).flatten(-2).to(self.dtype)
        return act @ w2.t()

    def _gates(self, named, prefix, layer, x, tokens, loads):
        c = self.config
        scores = F.softplus(product32(x, named[prefix + "gate.weight"]), threshold=20).sqrt()
        with torch.no_grad():
            if layer < c.hash_layers:
                chosen = named[prefix + "gate.tid2eid"][tokens]
            else:
                biased = scores + named[prefix + "gate.bias"]
                chosen = biased.topk(c.active_experts, -1)[1]
            mask = torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
            if layer >= c.hash_layers:
                loads.append(mask.mean((0, 1)))
        gates = scores * mask
        return gates / gates.sum(-1, keepdim=True) * c.route_scale


def _overlap(x, fill):
    """[B, N, 4, 2 c] to [B, N, 8, c]: half A of the group before, then half B of the own one."""
    half = x.shape[-1] // 2
    before = x[:, :-1, :, :half]
    first = torch.full_like(x[:, :1, :, :half], fill)
    return torch.cat([torch.cat([first, before], 1), x[..., half:]], 2)
