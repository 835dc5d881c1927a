"""What secret sums and noise cost in a round: seconds and bytes, beside a plain one (25 M parameters, 40 clients).

    python benchmarks/secret_sums.py [--parameters 25_000_000] [--clients 40] [--neighbours 0] [--vanished 0.33]

One client is measured, since all do the same, with as many neighbours as it has. At the server one mask and one secret
are measured and multiplied by how many there are: that is exact in what is done, and spares the memory for all vectors.
Noise is that of the layers `noise` (at the server, once a round) and `local-noise` (at every client), both with bounds
on updates; neither changes what is sent.
Clients that vanish are the expensive case, since each of them leaves a mask with every client that stays. Bytes are
those of the contents of messages. Training and the network are not in it: over Flower each question costs about four
seconds of waiting besides.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from personae.layers.bounding import shortened
from personae.parts import secret_sums as sums
from personae.parts.secret_noise import gaussian, new_key
from personae.parts.secret_sums import PUBLIC, SEALED, SHARE, Circle


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Of the processor, which other work on the machine hardly changes; the median of some repeats."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measured(parameters: int, clients: int, neighbours: int, vanished: int, repeats: int) -> dict[str, float]:
    circle = Circle.of(range(clients), neighbours)
    near = circle.neighbours(0)
    holders, enough = len(near) + 1, sums.needed(2 / 3, len(near) + 1)
    present = clients - vanished
    model = torch.randn(parameters, generator=torch.Generator().manual_seed(1))
    mine, others = sums.new_secret(), [sums.public_of(sums.new_secret()) for _ in near]
    seed = sums.new_seed()
    shares = sums.dealt(seed, enough, holders)

    def deal() -> None:
        for secret in (seed, mine):
            sums.dealt(secret, enough, holders)
        for number, public in enumerate(others):
            sums.seal(sums.agreed(mine, public), 0, number + 1, shares[0], shares[1])

    numbers = sums.fixed(model.double() * 100, clients)
    one_mask = seconds(lambda: sums.add_mask(numbers, seed, 1), repeats)
    agreeing = seconds(lambda: sums.agreed(mine, others[0]), repeats)
    opening = seconds(lambda: sums.opened(shares[:enough]), repeats)
    adding = seconds(lambda: np.add(numbers, numbers, out=numbers), repeats)
    left = sum(other < present for other in near)  # of one that vanished, the neighbours that stay
    client = {
        "keys": 2 * seconds(sums.new_secret, repeats),
        "shares": seconds(deal, repeats),
        "whole numbers": seconds(lambda: sums.fixed(model.double() * 100, clients), repeats),
        "masks": (len(near) + 1) * one_mask + len(near) * agreeing,
    }
    server = {
        "secrets": clients * opening,
        "masks of those present": present * one_mask,
        "masks of those vanished": vanished * left * (one_mask + agreeing),
        "sum": present * adding,
    }
    up = {
        "keys": 2 * PUBLIC,
        "shares": len(near) * (8 + SEALED),
        "update": 8 * parameters,
        "open": holders * (8 + SHARE),
    }
    down = {
        "shares": len(near) * (8 + 2 * PUBLIC) + 8 * clients,
        "train": len(near) * (8 + SEALED),
        "open": 8 * clients,
    }
    key = new_key("secret", torch.Generator())
    noising = seconds(lambda: model + gaussian(key, "update/1", parameters).mul_(0.3).float(), repeats)
    shortening = seconds(lambda: shortened(model, 1.0), repeats)
    return {
        "local-noise: client, s": shortening + noising,
        "noise: client, s": shortening,
        "noise: server, s": present * shortening + noising,  # which does not take a client's word for the bound
        **{f"client {name}, s": value for name, value in client.items()},
        "client, s": sum(client.values()),
        **{f"server {name}, s": value for name, value in server.items()},
        "server, s": sum(server.values()),
        "plain sum at the server, s": present * seconds(lambda: model.lerp(model, 0.5), repeats),
        "a client sends, MB": sum(up.values()) / 1e6,
        "of that besides the update, kB": (sum(up.values()) - up["update"]) / 1e3,
        "a client sends plainly, MB": 4 * parameters / 1e6,
        "a client receives besides the model, kB": sum(down.values()) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--neighbours", type=int, default=0)
    parser.add_argument("--vanished", type=float, default=0.33, help="share of the clients that vanish")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sums.require_flower()
    for vanished in dict.fromkeys((0, int(options.vanished * options.clients))):
        result = measured(options.parameters, options.clients, options.neighbours, vanished, options.repeats)
        place = {"clients": options.clients, "neighbours": options.neighbours or options.clients - 1}
        print(json.dumps({**place, "vanished": vanished, **{name: round(value, 4) for name, value in result.items()}}))


if __name__ == "__main__":
    main()
