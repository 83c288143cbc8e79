"""CPU seconds of a round of local training for 80 clients: stacked, one by one, and separate.

Prints the medians of rounds in which the candidates take turns in one process, and the ratios to
the peer: a separate model, optimizer and data loader for every client, as loops over clients are
usually written. All take the same steps on the same rows. One thread.
Run ``python benchmarks/clients.py [--quick]``.
"""

import argparse
import copy
import time
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import state_of
from fedneighbors.neural._schedule import Regime
from fedneighbors.neural._trainer import LocalTask, Trainer

N_CLIENTS, WANTED = 80, 3.0
SHAPES = {
    "digits (64 columns)": (64, (64, 32)),
    "images (196 columns), the network of the experiments": (196, (64, 32)),
    "images (196 columns), a wide network": (196, (256, 128)),
}
REGIME = Regime()


def clients(n_columns, seed=0):
    """Return a table of 80 clients of 10 to 120 rows.

    Also returns the end of each client's rows.
    """
    rng = np.random.default_rng(seed)
    ends = np.concatenate([[0], np.cumsum(rng.integers(10, 121, size=N_CLIENTS))])
    x = torch.tensor(rng.normal(size=(ends[-1], n_columns)), dtype=torch.float32)
    return x, torch.tensor(rng.integers(10, size=ends[-1])), ends


def apart(network, x, y, ends):
    """Train every client with separate model, optimizer and loader."""
    for first, last in pairwise(ends):
        model = copy.deepcopy(network.module)
        steps = torch.optim.SGD(
            model.parameters(),
            REGIME.learning_rate,
            REGIME.momentum,
            weight_decay=REGIME.weight_decay,
        )
        rows = TensorDataset(x[first:last], y[first:last])
        for batch, labels in DataLoader(rows, batch_size=REGIME.batch_size, shuffle=True):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), labels).backward()
            steps.step()


def seconds(work):
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measured(n_columns, hidden, n_rounds):
    """Return the rows and the median seconds of each way."""
    x, y, ends = clients(n_columns)
    network = perceptron(n_columns, 10, hidden=hidden)
    start = state_of(network.module)
    tasks = [LocalTask(np.arange(first, last), start, (first,)) for first, last in pairwise(ends)]
    ways = {
        "stacked": lambda: Trainer(network, x, y, method="stacked").train(tasks, REGIME),
        "reuse": lambda: Trainer(network, x, y, method="reuse").train(tasks, REGIME),
        "apart": lambda: apart(network, x, y, ends),
    }
    spent = {way: [] for way in ways}
    for number in range(n_rounds + 1):  # the first warms up
        for way, work in ways.items():
            took = seconds(work)
            if number:
                spent[way].append(took)
    return len(x), {way: median(took) for way, took in spent.items()}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of eleven")
    n_rounds = 3 if parser.parse_args().quick else 11
    torch.set_num_threads(1)
    for name, (n_columns, hidden) in SHAPES.items():
        n_rows, middle = measured(n_columns, hidden, n_rounds)
        print(f"{name}, {N_CLIENTS} clients, {n_rows} rows, hidden layers {hidden}:")
        for way, took in middle.items():
            print(f"  {way:<8} {took:.3f} CPU s   {middle['apart'] / took:.2f}x of apart")
        print(f"  stacked over apart: {middle['apart'] / middle['stacked']:.2f}, wanted {WANTED}")


if __name__ == "__main__":
    main()
