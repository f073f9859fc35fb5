"""Worker processes that make training rows ahead of the GPU."""

import multiprocessing

import torch

import needles

WORKERS = 8


def _serve(connection, lexicon):
    while True:
        request = connection.recv()
        if request is None:
            return
        connection.send_bytes(needles.make_batch(lexicon, *request))


class Feeder:
    """Batches in the order of their requests, the same for the same requests. Workers are forked:
    make one before the first use of the GPU."""

    def __init__(self, lexicon):
        context = multiprocessing.get_context("fork")
        self._connections = []
        self._asked = self._read = 0
        for _ in range(WORKERS):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(there, lexicon), daemon=True).start()
            there.close()
            self._connections.append(here)

    @property
    def waiting(self):
        """Requests whose batch has not been read."""
        return self._asked - self._read

    def request(self, spec, seed):
        self._connections[self._asked % WORKERS].send((spec, seed))
        self._asked += 1

    def read(self):
        """The i16 values of the oldest batch that was requested and not read."""
        connection = self._connections[self._read % WORKERS]
        if not connection.poll(60):
            raise TimeoutError("no training rows for 60 s; did a worker die?")
        self._read += 1
        return torch.frombuffer(bytearray(connection.recv_bytes()), dtype=torch.int16)

    def drain(self):
        while self.waiting:
            self.read()

    def close(self):
        self.drain()
        for connection in self._connections:
            connection.send(None)
            connection.close()
