"""Attention over the window and the compressed entries with one softmax and a sink.

One latent is key and value of all heads. Written with its own backward pass, so that of the large
arrays only the probabilities are kept.
"""

import torch

WINDOW = 128


def _window_mask(blocks, device):
    """[blocks, WINDOW, 1, 2 WINDOW] of bool: what query i of a block sees of the block before it
    and its own: the last WINDOW tokens, itself included."""
    query = torch.arange(WINDOW, device=device)[:, None]
    key = torch.arange(2 * WINDOW, device=device)[None]
    seen = (key > query) & (key <= query + WINDOW)
    mask = seen.expand(blocks, WINDOW, 2 * WINDOW).clone()
    mask[0, :, :WINDOW] = False
    return mask[:, :, None]


def _with_previous(kv):
    """[B, T, d] to [B * blocks, 2 WINDOW, d]: each block of keys behind the one before it."""
    rows, tokens, dim = kv.shape
    blocks = kv.view(rows, tokens // WINDOW, WINDOW, dim)
    before = torch.cat([torch.zeros_like(blocks[:, :1]), blocks[:, :-1]], 1)
    return torch.cat([before, blocks], 2).view(-1, 2 * WINDOW, dim)


def _without_previous(grad, rows):
    """The adjoint of _with_previous."""
    blocks = grad.view(rows, -1, 2 * WINDOW, grad.shape[-1])
    own = blocks[:, :, WINDOW:].clone()
    own[:, :-1] += blocks[:, 1:, :WINDOW]
    return own.reshape(rows, -1, grad.shape[-1])


def _product(a, b):
    """a b^T in f32. Of bf16 values TF32 products are exact."""
    return torch.bmm(a.float(), b.float().transpose(1, 2))


class JointAttention(torch.autograd.Function):
    """q [B, T, H, d], window keys [B, T, d], entries [B, N, d], mask bool [B or 1, T, N] of the
    entries a query sees, sink f32 [H]; T is a multiple of WINDOW. entries and mask may be None.
    Returns [B, T, H, d]."""

    @staticmethod
    def forward(ctx, q, kv, entries, mask, sink):
        rows, tokens, heads, dim = q.shape
        blocks = tokens // WINDOW
        scale = dim**-0.5
        seen = _window_mask(blocks, q.device)
        near = _product(q.reshape(rows * blocks, WINDOW * heads, dim), _with_previous(kv))
        near = near.mul_(scale).view(rows, blocks, WINDOW, heads, 2 * WINDOW)
        near.masked_fill_(~seen, float("-inf"))
        top = near.amax(-1).view(rows, tokens, heads)
        far = None
        if entries is not None:
            far = _product(q.reshape(rows, tokens * heads, dim), entries).mul_(scale)
            far = far.view(rows, tokens, heads, -1)
            far.masked_fill_(~mask[:, :, None], float("-inf"))
            top = torch.maximum(top, far.amax(-1))
        near = near.view(rows, tokens, heads, -1).sub_(top[..., None]).exp_()
        sink_mass = (sink - top).exp()
        total = near.sum(-1) + sink_mass
        near = near.to(q.dtype)
        out = torch.bmm(near.view(rows * blocks, WINDOW * heads, -1), _with_previous(kv))
        out = out.view(rows, tokens, heads, dim).float()
        if far is not None:
            far.sub_(top[..., None]).exp_()
            total = total + far.sum(-1)
            far = far.to(q.dtype)
            out += torch.bmm(far.view(rows, tokens * heads, -1), entries).view_as(out)
        out = out.div_(total[..., None]).to(q.dtype)
        ctx.save_for_backward(q, kv, entries, near, far, out, sink_mass / total, total)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, kv, entries, near, far, out, sink_share, total = ctx.saved_tensors
        rows, tokens, heads, dim = q.shape
        blocks = tokens // WINDOW
        scale = dim**-0.5
        grad = grad.contiguous()
        dot = (grad.float() * out.float()).sum(-1)
        grad_sink = -(dot * sink_share).sum((0, 1))

        def back(probs, keys, batch):
            """Gradients of one part's q and keys; probs [.., keys] before the division."""
            share = probs.float().div_(total[..., None])
            g = grad.view(batch, -1, dim)
            dscore = _product(g, keys).view_as(share).sub_(dot[..., None]).mul_(share).mul_(scale)
            dscore = dscore.to(q.dtype).view(batch, g.shape[1], -1)
            share = share.to(q.dtype).view_as(dscore)
            grad_q = torch.bmm(dscore, keys).view(q.shape)
            grad_keys = torch.bmm(dscore.transpose(1, 2), q.reshape(batch, -1, dim)).float()
            grad_keys += torch.bmm(share.transpose(1, 2), g)
            return grad_q, grad_keys

        grad_q, grad_kv = back(near, _with_previous(kv), rows * blocks)
        grad_kv = _without_previous(grad_kv, rows).to(kv.dtype)
        grad_entries = None
        if far is not None:
            far_q, grad_entries = back(far, entries, rows)
            grad_q = (grad_q.float() + far_q).to(q.dtype)
            grad_entries = grad_entries.to(entries.dtype)
        return grad_q, grad_kv, grad_entries, None, grad_sink
