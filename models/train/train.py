#!/usr/bin/env python3
"""Trains the bundled model anew on one GPU: see README.md."""

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass

import torch

import checkpoint
import evaluate
from feeder import WORKERS, Feeder
from inventory import initial_tensors, read_config, tensor_specs
from losses import METRICS, LossWeights
from model import Model, Weights
from needles import CODE_SLOTS, Lexicon, RowSpec, read_prompts
from optimizer import Optimizer
from step import Step

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRESS_S = 5.0
RESERVE_S = 20.0        # of the time limit, for evaluation and files
LEARNED_ACCURACY = 0.95   # of the worst code slot
PLATEAU_STEPS = 600     # a code slot not learned by then is not going to be
PLATEAU_ACCURACY = 0.5
RESTART_SHARE = 0.6     # of the first plan's time must be left for a restart to be worth it


@dataclass(frozen=True)
class Phase:
    seconds: float
    rows: tuple          # (share of steps, RowSpec)
    select: bool         # attend to the top-k entries only
    first_rate: float
    last_rate: float
    warm_up: int
    loss: LossWeights
    until_learned: bool = False   # half to twice the seconds, until all code slots are learned


PHASES = (
    Phase(70, ((1.0, RowSpec(512, 48, 10, 0.15, 5)),), False, 2e-3, 2e-3, 150,
          LossWeights(1, 0.5, 1, 0.2, 0.1, 0.5), until_learned=True),
    Phase(70, ((1.0, RowSpec(2048, 16, 40, 0.25, 5)),), False, 2e-3, 1.5e-3, 30,
          LossWeights(1, 0.5, 1, 0.2, 0.1, 0.2)),
    Phase(110, ((0.8, RowSpec(4096, 8, 80, 0.3, 5)), (0.2, RowSpec(768, 32, 16, 0.2, 2))), True,
          1.5e-3, 1e-3, 30, LossWeights(1, 0.3, 1, 0.2, 0.05, 0.1)),
    Phase(190, ((0.8, RowSpec(12288, 2, 200, 0.3, 5)), (0.2, RowSpec(1024, 24, 24, 0.2, 2))), True,
          1e-3, 2e-5, 30, LossWeights(1, 0.1, 1, 0.2, 0.05, 0)),
)


class Plateau(Exception):
    """A code slot is still not learned: another seed will do better."""


class Trainer:
    """One run from one seed."""

    def __init__(self, model, weights, feeder, seed, may_restart):
        self.model = model
        self.weights = weights
        self.optimizer = Optimizer(weights)
        self.feeder = feeder
        self.rng = random.Random(seed)
        self.may_restart = may_restart
        self.steps = 0
        self.learned = False
        self._queued = []   # row kinds of the batches that were requested
        self._events = []   # of the steps the device has not finished

    def run_phase(self, number, phase, seconds):
        if self.model.device == "cuda":
            torch.cuda.empty_cache()  # the graphs of the phase before
        steps = [Step(self.model, self.weights, self.optimizer, spec, phase.loss, phase.select)
                 for _, spec in phase.rows]
        start = shown = time.monotonic()
        sums, count, done = None, 0, 0
        while not self._is_over(phase, elapsed := time.monotonic() - start, seconds):
            while self.feeder.waiting < WORKERS:
                self._request(phase)
            share = min(elapsed / seconds, 1.0)
            rate = phase.first_rate + (phase.last_rate - phase.first_rate) * share
            rate *= min(1.0, (done + 1) / phase.warm_up)
            step = steps[self._queued.pop(0)]
            metrics = step(self.feeder.read(), self.optimizer.next_hyper(rate))
            sums = metrics.clone() if sums is None else sums.add_(metrics)
            count, done, self.steps = count + 1, done + 1, self.steps + 1
            self._wait_for_device()
            if time.monotonic() - shown >= PROGRESS_S:
                mean = (sums / count).tolist()
                now = time.monotonic()
                self._show(number, now - start, 1000 * (now - shown) / count, rate, mean)
                shown, sums, count = now, None, 0
                self._check_plateau(mean)
        self.feeder.drain()
        self._queued.clear()
        if count:
            now = time.monotonic()
            self._show(number, now - start, 1000 * (now - shown) / count, rate,
                       (sums / count).tolist())

    def _is_over(self, phase, elapsed, seconds):
        if not phase.until_learned:
            return elapsed >= seconds
        return elapsed >= 2 * seconds or self.learned and elapsed >= seconds / 2

    def _request(self, phase):
        draw, kind = self.rng.random(), 0
        while kind + 1 < len(phase.rows) and draw >= phase.rows[kind][0]:
            draw -= phase.rows[kind][0]
            kind += 1
        self.feeder.request(phase.rows[kind][1], self.rng.getrandbits(62))
        self._queued.append(kind)

    def _wait_for_device(self):
        """Lets the device be two steps behind, so that time is a measure of work done."""
        if self.model.device != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > 2:
            self._events.pop(0).synchronize()

    def _show(self, number, elapsed, step_ms, rate, mean):
        values = dict(zip(METRICS, mean))
        slots = " ".join(f"{100 * values[f'slot{i}']:.0f}" for i in range(CODE_SLOTS))
        losses = " ".join(f"{name} {values[name]:.3f}" for name in METRICS[1:-CODE_SLOTS])
        print(f"phase {number} {elapsed:5.0f} s  step {self.steps:5} ({step_ms:.0f} ms, rate "
              f"{rate:.1e})  {losses}  slots % {slots}", flush=True)

    def _check_plateau(self, mean):
        slots = mean[-CODE_SLOTS:]
        self.learned = min(slots) >= LEARNED_ACCURACY
        if self.steps >= PLATEAU_STEPS and min(slots) < PLATEAU_ACCURACY and self.may_restart():
            raise Plateau(f"slot {slots.index(min(slots))} is right in {100 * min(slots):.0f} % "
                          f"after {self.steps} steps")


def train(args, model, specs, feeder, deadline):
    """Trained weights. The phases still to come share the time that is left in the proportions of
    PHASES."""
    first_left = deadline - time.monotonic()
    seed = args.seed
    while True:
        print(f"seed {seed}: {deadline - time.monotonic():.0f} s of training", flush=True)
        weights = Weights(specs, initial_tensors(model.config, seed), model.device, model.dtype)

        def may_restart():
            left = deadline - time.monotonic()
            return left > RESTART_SHARE * first_left and not args.smoke

        trainer = Trainer(model, weights, feeder, seed, may_restart)
        try:
            for number, phase in enumerate(PHASES):
                share = phase.seconds / sum(later.seconds for later in PHASES[number:])
                seconds = share * max(deadline - time.monotonic(), 4.0)
                trainer.run_phase(number, phase, args.smoke or seconds)
            return weights
        except Plateau as plateau:
            print(f"starting again: {plateau}", flush=True)
            feeder.drain()
            seed += 1
        del trainer, weights
        if model.device == "cuda":
            torch.cuda.empty_cache()


def exported(weights):
    """Name to tensor, as the checkpoint holds them."""
    with torch.no_grad():
        return {name: tensor.detach().cpu() for name, tensor in weights.tensors().items()}


def check(args, model, specs, lexicon):
    """Evaluates a checkpoint; True if nearly all answers are right."""
    tensors = checkpoint.read_tensors(args.check, specs)
    weights = Weights(specs, tensors, model.device, model.dtype)
    prompts = read_prompts(lexicon, os.path.join(args.base, "eval_prompts.jsonl"))
    prompts += evaluate.held_out_prompts(lexicon, args.rounds, seed=20)
    prompts = [prompt for prompt in prompts if len(prompt.tokens) <= args.longest]
    counts = evaluate.count_right(model, weights, prompts)
    evaluate.print_counts(counts)
    found, total = (sum(values) for values in zip(*counts.values()))
    return found >= 0.97 * total


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default=os.path.join(HERE, "..", "needle-tiny"),
                        help="model whose configuration, tokenizer and words are used")
    parser.add_argument("--out", help="folder for the trained model")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", metavar="DIR", help="evaluate this model, train nothing")
    parser.add_argument("--smoke", type=float, default=0, metavar="SECONDS",
                        help="run each phase this long: a test of the code, not of the result")
    parser.add_argument("--rounds", type=int, default=4, help="evaluation prompts per depth")
    parser.add_argument("--longest", type=int, default=1 << 20,
                        help="leave longer evaluation prompts out")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU if there is one")
    args = parser.parse_args()
    if not args.check and not args.out:
        parser.error("--out or --check is needed")
    return args


def main():
    start = time.monotonic()
    args = parse_args()
    config = read_config(args.base)
    specs = tensor_specs(config)
    lexicon = Lexicon(args.base)
    feeder = None if args.check else Feeder(lexicon)  # before anything asks for a GPU
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # TF32: exact products of bf16 values
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model = Model(config, args.device, dtype)
    if args.check:
        return 0 if check(args, model, specs, lexicon) else 1
    weights = train(args, model, specs, feeder, start + 60 * args.minutes - RESERVE_S)
    feeder.close()
    checkpoint.write_model(args.out, args.base, exported(weights), specs)
    print(f"wrote {args.out} after {time.monotonic() - start:.0f} s", flush=True)
    # What is counted is what was written, read back.
    args.check = args.out
    result = check(args, model, specs, lexicon)
    print(f"done after {time.monotonic() - start:.0f} s", flush=True)
    return 0 if result or args.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
