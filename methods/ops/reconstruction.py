"""A decoder from a frozen encoder's maps back to images, which all clients train together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from benchmark.state import State, WeightedSum, copy_of
from methods.ops.adain import Coder, resnet_coder
from methods.ops.side_training import descend, side_batches

if TYPE_CHECKING:
    from benchmark.federation import Client, Server


def train_decoder(server: Server, clients: Sequence[Client], rounds: int, lr: float) -> State:
    """The average of the clients' decoders after some rounds of reconstructing their own images,
    each round as long as the protocol's local work."""
    coder = resnet_coder(clients[0].train.device)
    state, everyone = copy_of(coder.decoder.state_dict()), sum(client.size for client in clients)
    for number in range(rounds):
        total = WeightedSum()
        for client in clients:
            coder.decoder.load_state_dict(server.send(client, "decoder", state))
            reconstruct(client, coder, f"decoder {number}", lr)
            own = client.send("decoder", copy_of(coder.decoder.state_dict()))
            total.add(own, client.size / everyone)
        state = total.result()
    return state


def reconstruct(client: Client, coder: Coder, purpose: str, lr: float) -> torch.Tensor:
    """One client's local work on the decoder; gives back the last squared error of its pixels."""
    training, optimizer = client.training, torch.optim.Adam(coder.decoder.parameters(), lr=lr)
    for batch in side_batches(client, purpose, training.local_steps, training.local_epochs):
        pixels = client.train.transform.to_pixels(batch.images)
        error = F.mse_loss(coder.decode(coder.encode(pixels), pixels.shape[-2:]), pixels)
        descend(optimizer, error)
    return error.detach()
