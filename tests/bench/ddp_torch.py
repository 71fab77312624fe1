#!/usr/bin/env python3
"""The training of worker/examples/ddp_mlp.c with PyTorch's DistributedDataParallel over Gloo, on the loopback.

    ddp_torch.py RANKS LAYERS [RUNS]      LAYERS as in 784,512,512,10; prints table rows

The same layers, rows, loss, learning rate and iterations; one thread a process. `alone` is one process without DDP.
"""
import os
import socket
import statistics
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, ITERATIONS = 64, 100


def network(widths):
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers += [nn.ReLU()] if i else []
        layers += [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def work(rank, ranks, port, widths, runs):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method="tcp://127.0.0.1:%d" % port)
    model = network(widths)
    model = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = nn.CrossEntropyLoss()
    x, y = torch.rand(BATCH, widths[0]) * 2 - 1, torch.randint(widths[-1], (BATCH,))
    times = []
    for _ in range(runs + 1):
        if ranks > 1:
            dist.barrier()
        begun = time.perf_counter()
        for _ in range(ITERATIONS):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        ms = torch.tensor([(time.perf_counter() - begun) * 1e3], dtype=torch.float64)
        if ranks > 1:
            dist.all_reduce(ms, op=dist.ReduceOp.MAX)
        times.append(float(ms[0]))
    times = times[1:]  # the first warms
    if rank == 0:
        what = "PyTorch DDP over Gloo, %d workers" % ranks if ranks > 1 else "PyTorch, alone"
        print("| %s | %.1f [%.1f-%.1f] |" % (what, statistics.median(times), min(times), max(times)), flush=True)
    if ranks > 1:  # to take Gloo's group down can hang; rank 0 has the store, and goes last
        dist.barrier()
        if rank == 0:
            time.sleep(0.3)


def main():
    ranks, widths = int(sys.argv[1]), [int(w) for w in sys.argv[2].split(",")]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 11
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children, bad = [], 0
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(rank, ranks, port, widths, runs)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(pid)
    for pid in children:
        bad |= os.waitpid(pid, 0)[1]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
