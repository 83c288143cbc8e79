"""CPU seconds of one round of local training for 80 clients, in three variants.

``stacked`` and ``reuse`` are the two methods of the trainer. The peer ``separate`` creates a model,
an optimizer and a data loader for every client, as loops over clients usually do. Prints medians
over rounds in which the variants take turns in one process, and the ratios to the peer. All
variants take the same number of steps on the same rows, in one thread.
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

N_CLIENTS, TARGET = 80, 3.0
SHAPES = {
    "digits (64 columns)": (64, (64, 32)),
    "images (196 columns), the network of the experiments": (196, (64, 32)),
    "images (196 columns), a wide network": (196, (256, 128)),
}
REGIME = Regime()


def draw_clients(n_columns, seed=0):
    """Return rows, labels and first rows of 80 clients.

    A client has 10 to 120 rows; client k has the rows from ``starts[k]`` to ``starts[k + 1]``.
    """
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(10, 121, size=N_CLIENTS))])
    x = torch.tensor(rng.normal(size=(starts[-1], n_columns)), dtype=torch.float32)
    return x, torch.tensor(rng.integers(10, size=starts[-1])), starts


def train_separately(network, x, y, starts):
    """Train every client with a model, optimizer and loader of its own."""
    for start_row, end_row in pairwise(starts):
        model = copy.deepcopy(network.module)
        optimizer = torch.optim.SGD(
            model.parameters(),
            REGIME.learning_rate,
            REGIME.momentum,
            weight_decay=REGIME.weight_decay,
        )
        dataset = TensorDataset(x[start_row:end_row], y[start_row:end_row])
        for batch, labels in DataLoader(dataset, batch_size=REGIME.batch_size, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()


def measure_seconds(task):
    """Return the CPU seconds of one call."""
    start = time.process_time()
    task()
    return time.process_time() - start


def measure(n_columns, hidden, n_rounds):
    """Return the number of rows and the median seconds of each variant."""
    x, y, starts = draw_clients(n_columns)
    network = perceptron(n_columns, 10, hidden=hidden)
    start = state_of(network.module)
    tasks = [
        LocalTask(np.arange(start_row, end_row), start, (start_row,))
        for start_row, end_row in pairwise(starts)
    ]
    variants = {
        "stacked": lambda: Trainer(network, x, y, method="stacked").train(tasks, REGIME),
        "reuse": lambda: Trainer(network, x, y, method="reuse").train(tasks, REGIME),
        "separate": lambda: train_separately(network, x, y, starts),
    }
    seconds = {variant: [] for variant in variants}
    for index in range(n_rounds + 1):  # the first round is a warm-up
        for variant, task in variants.items():
            variant_seconds = measure_seconds(task)
            if index:
                seconds[variant].append(variant_seconds)
    return len(x), {
        variant: median(variant_seconds) for variant, variant_seconds in seconds.items()
    }


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of eleven")
    n_rounds = 3 if parser.parse_args().quick else 11
    torch.set_num_threads(1)
    for name, (n_columns, hidden) in SHAPES.items():
        n_rows, medians = measure(n_columns, hidden, n_rounds)
        print(f"{name}, {N_CLIENTS} clients, {n_rows} rows, hidden layers {hidden}:")
        for variant, variant_seconds in medians.items():
            ratio = medians["separate"] / variant_seconds
            print(f"  {variant:<8} {variant_seconds:.3f} CPU s   {ratio:.2f}x over separate")
        ratio = medians["separate"] / medians["stacked"]
        print(f"  stacked: {ratio:.2f}x over separate, target {TARGET}x")


if __name__ == "__main__":
    main()
