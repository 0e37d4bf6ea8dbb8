"""Double DQN with prioritised replay: a residual convolutional network over stacks of four
frames, the replay buffer of bytes on the GPU, several games at once, a target network that
follows. The games are noise; what is played depends on the network's greatest outputs."""

from __future__ import annotations

import copy
import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn

SIDE, STACK, ACTIONS, GAMES, ROOM, BATCH = 84, 4, 18, 16, 120_000, 384


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(F.relu(self.one(F.relu(x))))


class Network(nn.Module):
    """Frames (batch, STACK, SIDE, SIDE) of bytes to the worth of every action, dueling."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = STACK
        for width in (32, 64, 64):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(width), Residual(width)]
            before = width
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(64 * 11 * 11, 512)
        self.worth = nn.Linear(512, 1)
        self.gain = nn.Linear(512, ACTIONS)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.hidden(self.body(frames.float() / 255)))
        gain = self.gain(h)
        return self.worth(h) + gain - gain.mean(1, keepdim=True)


class Replay:
    """A ring of single frames on the GPU; stacks are gathered when drawn."""

    def __init__(self) -> None:
        self.frames = torch.zeros((ROOM, SIDE, SIDE), dtype=torch.uint8, device="cuda")
        self.actions = torch.zeros(ROOM, dtype=torch.long, device="cuda")
        self.rewards = torch.zeros(ROOM, device="cuda")
        self.ended = torch.zeros(ROOM, dtype=torch.bool, device="cuda")
        self.weight = torch.zeros(ROOM, device="cuda")
        self.next = self.count = 0

    def add(
        self,
        frames: torch.Tensor,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        ended: torch.Tensor,
    ) -> None:
        at = (self.next + torch.arange(GAMES, device="cuda")) % ROOM
        self.frames[at] = frames
        self.actions[at] = actions
        self.rewards[at] = rewards
        self.ended[at] = ended
        self.weight[at] = self.weight.max().clamp_min(1.0)
        self.next = (self.next + GAMES) % ROOM
        self.count = min(ROOM, self.count + GAMES)

    def stacks(self, at: torch.Tensor) -> torch.Tensor:
        back = torch.arange(STACK - 1, -1, -1, device="cuda") * GAMES
        return self.frames[(at[:, None] - back) % ROOM]

    def draw(self) -> tuple[torch.Tensor, ...]:
        known = self.weight[: self.count].clone()
        known[-GAMES:] = 0  # they have no successor yet
        at = torch.multinomial(known, BATCH)
        chance = known[at] / known.sum()
        correction = (self.count * chance).pow(-0.5)
        return (
            at,
            correction / correction.max(),
            self.stacks(at),
            self.actions[at],
            self.rewards[at],
            self.ended[at],
            self.stacks((at + GAMES) % ROOM),
        )


def learn(
    network: Network, target: Network, optimizer: torch.optim.Optimizer, replay: Replay
) -> torch.Tensor:
    at, correction, now, actions, rewards, ended, after = replay.draw()
    with torch.no_grad():
        best = network(after).argmax(1, keepdim=True)
        future = target(after).gather(1, best).squeeze(1)
        wanted = rewards + 0.99 * future * (~ended)
    said = network(now).gather(1, actions[:, None]).squeeze(1)
    errors = F.smooth_l1_loss(said, wanted, reduction="none")
    loss = (errors * correction).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    optimizer.step()
    replay.weight[at] = errors.detach().abs().add(1e-3).pow(0.6)
    return loss


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    torch.backends.cudnn.benchmark = True
    network = Network().cuda()
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), 1e-4, eps=1.5e-4)
    replay = Replay()
    view = torch.zeros((GAMES, STACK, SIDE, SIDE), dtype=torch.uint8, device="cuda")
    learnt = 0
    for step in range(240):
        with torch.no_grad():
            actions = network(view).argmax(1)
        if draw.random() < 0.2:
            actions = torch.randint(0, ACTIONS, (GAMES,), device="cuda")
        frames = torch.randint(0, 256, (GAMES, SIDE, SIDE), dtype=torch.uint8).cuda()
        rewards = (actions == step % ACTIONS).float()
        ended = torch.rand(GAMES, device="cuda") < 0.01
        replay.add(frames, actions, rewards, ended)
        view = torch.cat([view[:, 1:], frames[:, None]], 1)
        view[ended] = 0
        if step >= 60 and step % 4 == 0:
            loss = learn(network, target, optimizer, replay)
            learnt += 1
            if learnt % 10 == 0:
                target.load_state_dict(network.state_dict())
                print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
