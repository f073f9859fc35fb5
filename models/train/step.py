"""One training step for one shape of rows, replayed as a CUDA graph after a few plain ones."""

import torch

import needles
from losses import all_losses
from needles import CODE_SLOTS

PLAIN_STEPS = 2  # before the capture: they warm up the libraries and the allocator


def batch_views(spec, values):
    """The arrays of `needles.batch_fields` in one i16 vector, as the losses want them."""
    fields, at = {}, 0
    for name, shape in needles.batch_fields(spec):
        size = shape[0] * shape[1]
        fields[name] = values[at:at + size].view(shape).long()
        at += size
    fields["valid"] = fields["valid"].float()
    return fields


class Step:
    """Runs steps of one (rows, losses, selection). Results are in `metrics` [METRICS] after the
    device has caught up."""

    def __init__(self, model, weights, optimizer, spec, loss_weights, select):
        self.model = model
        self.weights = weights
        self.optimizer = optimizer
        self.spec = spec
        self.loss_weights = loss_weights
        self.select = select
        size = sum(rows * width for _, (rows, width) in needles.batch_fields(spec))
        self.values = torch.zeros(size, dtype=torch.int16, device=model.device)
        self.hyper = torch.zeros(3, device=model.device)
        self.metrics = None
        self._graph = None
        self._plain_steps = 0
        self._use_graph = model.device == "cuda"
        self._stream = torch.cuda.Stream() if self._use_graph else None

    def _run(self):
        batch = batch_views(self.spec, self.values)
        loss, shown, loads = all_losses(self.model, self.weights.tensors(), batch,
                                        self.loss_weights, self.select)
        grad, = torch.autograd.grad(loss, [self.weights.vector])
        norm = self.optimizer.update(grad, self.hyper)
        self.optimizer.even_out(loads)
        return torch.cat([shown[:-CODE_SLOTS], norm[None], shown[-CODE_SLOTS:]])

    def _run_plain(self):
        """As the rules for later capture want it: on a stream of its own."""
        if not self._use_graph:
            return self._run()
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = self._run().clone()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return metrics

    def _capture(self):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.metrics = self._run()
            self._graph = graph
        except RuntimeError as error:
            print(f"no CUDA graph, steps run one operation at a time: {error}", flush=True)
            self._use_graph = False
            torch.cuda.synchronize()

    def __call__(self, values, hyper):
        """Queues a step with a batch from the feeder."""
        if self.model.device == "cuda":
            values, hyper = values.pin_memory(), hyper.pin_memory()
        self.values.copy_(values, non_blocking=True)
        self.hyper.copy_(hyper, non_blocking=True)
        if self._use_graph and self._graph is None and self._plain_steps >= PLAIN_STEPS:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._plain_steps += 1
            self.metrics = self._run_plain()
        return self.metrics
