"""The six losses of a training row, and what the progress line shows.

a answers, b all other tokens, c where heads 0 and 1 of the ratio-4 layers should look, d the
indexer against the attention it stands for, e the indexer against the place of the needle, f the
words of a code, read from the output of each ratio-4 attention alone.

Why f: see README.md, the plateau.
"""

from dataclasses import dataclass

import torch

from model import rms_norm
from needles import ANSWER, ANSWER_POSITIONS, CODE, CODE_SLOTS, OTHER

HIDDEN = -1e30


@dataclass(frozen=True)
class LossWeights:
    answer: float
    attention: float
    kl: float
    ice: float
    lm: float
    word: float


METRICS = ["loss", "answer", "lm", "attention", "kl", "ice", "word", "norm"] + [
    f"slot{i}" for i in range(CODE_SLOTS)]


def _mean(values, weights):
    return (values * weights).sum() / weights.sum().clamp(min=1)


def _cross_entropy(logits, targets):
    return logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]


def token_losses(hidden, head, targets, kinds):
    """Losses a and b and the accuracy of each code slot
    f32 [CODE_SLOTS]."""
    logits = hidden.float() @ head.float().t()
    loss = _cross_entropy(logits, targets)
    code = (kinds >= CODE).float()
    answer = _mean(loss, code + 0.25 * (kinds == ANSWER).float())
    lm = _mean(loss, (kinds == OTHER).float())
    with torch.no_grad():
        right = (logits.argmax(-1) == targets).float()
        slots = [_mean(right, (kinds == CODE + slot).float()) for slot in range(CODE_SLOTS)]
    return answer, lm, torch.stack(slots)


def _gather_tokens(x, positions):
    """[B, T, ..] and [B, P] to [B, P, ..]."""
    index = positions.view(*positions.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
    return x.gather(1, index)


def _scores(q, keys, seen):
    """f32 [B, P, H, N] of q [B, P, H, d] and keys [B, N, d]; HIDDEN where not `seen` [B, P, N]."""
    rows, count, heads, dim = q.shape
    flat = q.float().reshape(rows, count * heads, dim)
    scores = torch.bmm(flat, keys.float().transpose(1, 2)).view(rows, count, heads, -1)
    return scores, ~seen[:, :, None]


def _attention_parts(layer, positions, window):
    """Log probabilities of each entry [B, P, H, N] under the dense softmax."""
    q = _gather_tokens(layer["q"], positions)
    scale = q.shape[-1]**-0.5
    token = torch.arange(layer["kv"].shape[1], device=q.device)
    at = positions[..., None]
    near, hidden = _scores(q, layer["kv"], (token <= at) & (token > at - window))
    near = (near * scale).masked_fill(hidden, HIDDEN).logsumexp(-1)
    far, hidden = _scores(q, layer["entries"], _seen_entries(layer, positions))
    far = (far * scale).masked_fill(hidden, HIDDEN)
    sink = layer["sink"].expand_as(near)
    total = torch.stack([near, far.logsumexp(-1), sink]).logsumexp(0)
    return far - total[..., None]


def _seen_entries(layer, positions):
    entry = torch.arange(layer["entries"].shape[1], device=positions.device)
    return entry < (positions[..., None] + 1) // 4


def _index_log_probs(layer, positions):
    """Log softmax of the index scores [B, P, N]."""
    q = _gather_tokens(layer["index_q"], positions)
    weight = _gather_tokens(layer["index_w"], positions)
    dots, hidden = _scores(q, layer["index_keys"], _seen_entries(layer, positions))
    scores = (dots.relu() * weight[..., None]).sum(2)
    return scores.masked_fill(hidden[:, :, 0], HIDDEN).log_softmax(-1)


def _needle_entries(needles, num_entries):
    """The two entries that contain a token: [B, A, 2]."""
    first = needles // 4
    return torch.stack([first, (first + 1).clamp(max=num_entries - 1)], -1)


def layer_losses(layer, batch, window):
    """Losses c, d and e of one ratio-4 layer."""
    positions, valid = batch["positions"], batch["valid"]
    log_probs = _attention_parts(layer, positions, window)
    entries = _needle_entries(batch["needles"], log_probs.shape[-1])
    here = log_probs[:, :ANSWER_POSITIONS, :2]
    here = here.gather(-1, entries[:, :, None].expand(-1, -1, 2, -1)).logsumexp(-1)
    attention = _mean(-here.mean(-1), valid)

    index = _index_log_probs(layer, positions)
    shares = log_probs.detach().exp().mean(2)
    mass = shares.sum(-1)
    wanted = shares / mass.clamp(min=1e-9)[..., None]
    divergence = (wanted * ((wanted + 1e-20).log() - index)).sum(-1)
    counted = torch.cat([valid, torch.ones_like(positions[:, ANSWER_POSITIONS:]).float()], 1)
    kl = _mean(divergence * (mass + 0.02), counted)
    ice = _mean(-index[:, :ANSWER_POSITIONS].gather(-1, entries).logsumexp(-1), valid)
    return attention, kl, ice


def word_loss(indexed, batch, named, norm_eps):
    """Loss f: the mean over the ratio-4 layers, of the two words of each code alone."""
    slot = torch.arange(ANSWER_POSITIONS, device=batch["valid"].device) % CODE_SLOTS
    is_word = (slot == 0) | (slot == CODE_SLOTS - 1)
    words = batch["valid"] * is_word
    target = batch["tokens"].gather(1, batch["needles"])
    total = 0
    for layer in indexed:
        out = _gather_tokens(layer["out"], batch["positions"][:, :ANSWER_POSITIONS]).float()
        hidden = rms_norm(out, named["norm.weight"], norm_eps)
        total += _mean(_cross_entropy(hidden @ named["head.weight"].float().t(), target), words)
    return total / len(indexed)


def all_losses(model, named, batch, weights, select):
    """The loss to minimise, its metrics (METRICS without the norm) and the expert loads."""
    tokens = batch["tokens"]
    hidden, indexed, loads = model.run(named, tokens[:, :-1], select)
    word = word_loss(indexed, batch, named, model.config.norm_eps)
    answer, lm, slots = token_losses(hidden, named["head.weight"], tokens[:, 1:], batch["kinds"])
    parts = [layer_losses(layer, batch, model.config.window) for layer in indexed]
    attention, kl, ice = (sum(values) / len(parts) for values in zip(*parts))
    loss = (weights.answer * answer + weights.lm * lm + weights.attention * attention +
            weights.kl * kl + weights.ice * ice + weights.word * word)
    shown = torch.stack([loss, answer, lm, attention, kl, ice, word]).detach()
    return loss, torch.cat([shown, slots]), loads
