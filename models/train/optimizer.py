"""AdamW on one vector of weights, and the rule that evens out the experts' load."""

import torch

BETA1, BETA2, EPS = 0.9, 0.98, 1e-8
DECAY = 0.02
BIAS_STEP = 1e-3


class Optimizer:
    """Its update reads the rate and the two bias corrections from a tensor, so that it can be part
    of a CUDA graph."""

    def __init__(self, weights):
        vector = weights.vector
        self.weights = weights
        self.mean = torch.zeros_like(vector, requires_grad=False)
        self.square = torch.zeros_like(vector, requires_grad=False)
        self.rate = weights.by_element(lambda s: 0.5 if s.name.split(".")[-1].startswith("hc_")
                                       else 1.0)
        self.decay = weights.by_element(lambda s: DECAY * s.decay)
        self.steps = 0

    def next_hyper(self, rate):
        """What `update` wants of the next step, for a rate: f32 [3] on the CPU."""
        self.steps += 1
        return torch.tensor([rate, 1 / (1 - BETA1**self.steps), 1 / (1 - BETA2**self.steps)])

    @torch.no_grad()
    def update(self, grad, hyper):
        """One step; returns the gradient's norm before it is clipped to 1. A gradient that is not
        finite changes nothing but the moments' decay."""
        norm = grad.norm()
        finite = torch.isfinite(norm)
        scale = torch.where(finite, 1 / norm.clamp(min=1.0), torch.zeros_like(norm))
        grad = torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0) * scale
        self.mean.mul_(BETA1).add_(grad, alpha=1 - BETA1)
        self.square.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        step = self.mean * hyper[1] / ((self.square * hyper[2]).sqrt() + EPS)
        step += self.decay * self.weights.vector
        self.weights.vector.sub_(step * self.rate * hyper[0])
        return norm

    @torch.no_grad()
    def even_out(self, loads):
        """Raises the bias of experts with less than the mean load, lowers the others'."""
        biases = [t for name, t in self.weights.fixed.items() if name.endswith("gate.bias")]
        for bias, load in zip(biases, loads):
            bias.add_(torch.sign(load.mean() - load), alpha=BIAS_STEP)
