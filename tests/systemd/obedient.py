"""A model of a user's own, put into the machine by the tests: it does what files tell it to.

Each forward pass of training takes one file WORD-NUMBER of $ANDREAD_TEST_ORDERS away and does it:

    sleep-7     do not come back from one computing call for 7 seconds
    eat-300     take 300 MiB of memory, and keep them
    poison-0    compute nothing but NaN from now on
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from andread.rundir.settings import ModelSettings
from tests.engine.models import Bigram


class Obedient(Bigram):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self.eaten: list[Tensor] = []
        self.poisoned = False

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        orders = sorted(Path(os.environ["ANDREAD_TEST_ORDERS"]).glob("*-*"))
        if orders and torch.is_grad_enabled():
            self.obey(orders[0])
        losses = super().forward(tokens, targets)
        return losses * float("nan") if self.poisoned else losses

    def obey(self, order: Path) -> None:
        order.unlink()
        word, _, number = order.name.partition("-")
        if word == "sleep":
            one_call(int(number))
        elif word == "eat":
            self.eaten += [torch.ones(1 << 18) for _ in range(int(number))]
        elif word == "poison":
            self.poisoned = True


def one_call(seconds: int) -> None:
    """Stay in one call of C, as in a long kernel: a signal arrives, but does not end it early.

    (It would end sleep(3).) The call takes up to a second more than `seconds`.
    """
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    until = (ctypes.c_long * 2)(int(time.time()) + seconds + 1, 0)
    library.pthread_mutex_lock(mutex)
    assert library.pthread_mutex_timedlock(mutex, until) == errno.ETIMEDOUT


def make(settings: ModelSettings) -> nn.Module:
    return Obedient(settings)
