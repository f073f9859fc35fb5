"""Teacher-forced answers to held-out questions."""

import random

import torch

from needles import ANSWER_TOKENS, make_prompt

DEPTHS = 12
LENGTHS = (300, 900, 1800, 4500, 10500)
DENSE_LENGTHS = (1800, 4500, 10500)


def held_out_prompts(lexicon, rounds, seed):
    """`rounds` times each depth, for each length, with few and with many other needles."""
    rng = random.Random(seed)
    prompts = []
    for dense, lengths in ((False, LENGTHS), (True, DENSE_LENGTHS)):
        for length in lengths:
            prompts += [make_prompt(lexicon, rng, length, depth / (DEPTHS - 1), dense)
                        for _ in range(rounds) for depth in range(DEPTHS)]
    return prompts


def _batches(prompts, max_tokens):
    """Prompts of one group and similar length, at most `max_tokens` with padding."""
    batch, group, width = [], None, 0
    for prompt in prompts:
        padded = -(-(len(prompt.tokens) + ANSWER_TOKENS) // 128) * 128
        wide = max(width, padded)
        if batch and (prompt.group != group or wide * (len(batch) + 1) > max_tokens):
            yield batch, width
            batch, wide = [], padded
        batch, group, width = batch + [prompt], prompt.group, wide
    if batch:
        yield batch, width


@torch.no_grad()
def count_right(model, weights, prompts, max_tokens=43008):
    """{group: (answers whose every token is the most likely one, prompts)}."""
    named = weights.tensors()
    counts = {}
    for batch, width in _batches(prompts, max_tokens):
        tokens = torch.zeros(len(batch), width, dtype=torch.long)
        places = torch.zeros(len(batch), ANSWER_TOKENS, dtype=torch.long)
        answers = torch.tensor([prompt.answer for prompt in batch])
        for row, prompt in enumerate(batch):
            whole = prompt.tokens + prompt.answer[:-1]
            tokens[row, :len(whole)] = torch.tensor(whole)
            places[row] = torch.arange(len(prompt.tokens) - 1, len(whole))
        hidden, _, _ = model.run(named, tokens.to(model.device), True)
        places = places.to(model.device)[..., None].expand(-1, -1, hidden.shape[-1])
        logits = hidden.gather(1, places).float() @ named["head.weight"].float().t()
        right = (logits.argmax(-1).cpu() == answers).all(-1).sum().item()
        found, total = counts.get(batch[0].group, (0, 0))
        counts[batch[0].group] = (found + right, total + len(batch))
    return counts


def print_counts(counts):
    for group, (found, total) in counts.items():
        print(f"eval {group:>16}: {found} of {total} right ({100 * found / total:.1f} %)",
              flush=True)
    found, total = (sum(values) for values in zip(*counts.values()))
    print(f"eval {'all':>16}: {found} of {total} right ({100 * found / total:.1f} %)", flush=True)
