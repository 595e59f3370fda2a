"""Every test here is off the network, writes no cache outside its own folder, and computes with one thread."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    connect = socket.socket.connect

    def refuse(*arguments: Any) -> Any:
        if isinstance(arguments[0], socket.socket) and arguments[0].family == socket.AF_UNIX:
            return connect(*arguments)
        raise AssertionError(f"a test asked for the network: {arguments[1:]}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        threads = torch.get_num_threads()
        # Sums depend on how they are split among threads, and tests compare bits with child processes.
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)
