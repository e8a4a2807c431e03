"""Images and histograms: checked when put, without waiting for a device; finished when written."""

import logging
from collections import deque
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from engine.events.scalar import refuse_part
from engine.utils.logger import log_first_n

_CHANNELS = (1, 3, 4)
MAX_WAITING = 200  # images, and as many histograms, that wait for a writer


class MediaQueue:
    """Images or histograms that wait for the writers, each of which has its own place in it.

    What all known readers have had is forgotten when one of a later iteration comes: not at once,
    as others may be about to read it.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: deque[tuple[Any, ...]] = deque(maxlen=MAX_WAITING)
        self._count = 0  # of all that were ever put
        self._iteration: int | None = None  # of the last one
        self._taken_at = -1  # the iteration in which a reader has had some
        self._shown = 0  # of all, how many `all` has given
        self._read: MutableMapping[object, int] = WeakIdKeyDictionary()  # of them, by reader

    def put(self, entry: tuple[Any, ...], iteration: int) -> None:
        if self._read and iteration != self._iteration:
            self._drop_read()
        self._iteration = iteration
        if len(self._entries) == MAX_WAITING:
            log_first_n(
                logging.WARNING,
                f"more than {MAX_WAITING} {self._kind} wait for a writer: the oldest are dropped; "
                "write more often, or put fewer",
                name=__name__,
            )
        self._entries.append(entry)
        self._count += 1

    def expect(self, reader: object) -> None:
        """Keep entries until `reader` has had them, though it has not asked yet."""
        self._read.setdefault(reader, 0)

    def take(self, reader: object, iteration: int) -> list[tuple[Any, ...]]:
        """The entries that came since `reader` last asked."""
        read = self._read.get(reader)
        if read == self._count:
            return []
        self._read[reader], self._taken_at = self._count, iteration
        new = self._count - (read or 0)
        return list(self._entries)[-new:] if new else []

    def all(self, iteration: int) -> list[tuple[Any, ...]]:
        """All that wait, without what it has given before and known readers have had in an earlier
        iteration."""
        if self._read and iteration != self._taken_at:
            self._drop_first(min(self._shown, *self._read.values()))
        self._shown = self._count
        return list(self._entries)

    def drop_read(self, reader: object) -> None:
        """`reader` has had all: forget what all known readers have had."""
        self._read[reader] = self._count
        self._drop_read()

    def clear(self) -> None:
        self._drop_first(self._count)

    def _drop_read(self) -> None:
        self._drop_first(min(self._read.values()))

    def _drop_first(self, count: int) -> None:
        while len(self._entries) > self._count - count:
            self._entries.popleft()


def as_image(name: str, image: torch.Tensor | np.ndarray) -> torch.Tensor:
    """A private CHW copy of an image given as CHW or HWC, uint8 or float; others are refused."""
    tensor = _as_tensor(image)
    if tensor.ndim != 3 or not (tensor.shape[0] in _CHANNELS or tensor.shape[2] in _CHANNELS):
        raise ValueError(
            f"image {name!r} must have the shape CHW or HWC with 1, 3 or 4 channels, "
            f"got {tuple(tensor.shape)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"image {name!r} is empty: shape {tuple(tensor.shape)}")
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise ValueError(
            f"image {name!r} must be uint8, or float in [0, 1] or [0, 255], got {tensor.dtype}"
        )
    if tensor.shape[0] not in _CHANNELS:
        tensor = tensor.permute(2, 0, 1)
    return tensor.clone(memory_format=torch.contiguous_format)


def as_uint8(image: torch.Tensor) -> torch.Tensor:
    """The image as uint8 on the CPU. A float one with a value above 1.5 is taken as [0, 255]."""
    if image.dtype == torch.uint8:
        return image.cpu()
    pixels = image.float().cpu()
    finite = pixels[pixels.isfinite()]
    if not finite.numel() or finite.max() <= 1.5:
        pixels = pixels * 255
    return pixels.nan_to_num(nan=0.0).round().clamp(0, 255).to(torch.uint8)


def as_samples(name: str, values: torch.Tensor | np.ndarray) -> torch.Tensor:
    """A private flat copy of the values of a histogram; an empty or complex tensor is refused."""
    tensor = _as_tensor(values)
    refuse_part(f"histogram {name!r}", tensor)
    if tensor.numel() == 0 or tensor.is_complex():
        raise ValueError(
            f"histogram {name!r} needs at least one real value, got a tensor of shape "
            f"{tuple(tensor.shape)} and {tensor.dtype}"
        )
    return tensor.reshape(-1).clone()


def summarize_histogram(tag: str, samples: torch.Tensor, bins: int, step: int) -> dict:
    """The arguments of `SummaryWriter.add_histogram_raw`; non-finite samples are left out."""
    finite = samples.cpu().double()
    finite = finite[finite.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 0.0)
    counts, edges = torch.histogram(finite, bins, range=(low, high if high > low else low + 1))
    return {
        "tag": tag,
        "min": low,
        "max": high,
        "num": finite.numel(),
        "sum": finite.sum().item(),
        "sum_squares": finite.square().sum().item(),
        "bucket_limits": edges[1:].tolist(),
        "bucket_counts": counts.tolist(),
        "global_step": step,
    }


def _as_tensor(values: torch.Tensor | np.ndarray) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    # Copied, because torch cannot share a flipped array and warns of a read-only one.
    return torch.as_tensor(np.array(values, order="C"))
