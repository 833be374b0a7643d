"""A card as cuDNN's backend describes a device, for one that is not here."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from typing import Any, NamedTuple

from ..base.gpus import Gpu, named

#: How many clusters of 1, 2, ... thread blocks an H200 holds at once, each block with nearly all of
#: a multiprocessor's shared memory: cudaOccupancyMaxActiveClusters, asked of one.
_H200_CLUSTERS = (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7)
_H200_MULTIPROCESSORS = 132
#: The first with clusters.
_CLUSTERED = (9, 0)


class _Architecture(NamedTuple):
    """What CUDA's documentation says of a compute capability."""

    shared_memory: int
    reserved_shared_memory: int
    blocks: int
    threads: int


_KIB = 1024
_ARCHITECTURES = {
    (6, 0): _Architecture(48 * _KIB, 0, 32, 2048),
    (6, 1): _Architecture(48 * _KIB, 0, 32, 2048),
    (7, 0): _Architecture(96 * _KIB, 0, 32, 2048),
    (7, 5): _Architecture(64 * _KIB, 0, 16, 1024),
    (8, 0): _Architecture(163 * _KIB, _KIB, 32, 2048),
    (8, 6): _Architecture(99 * _KIB, _KIB, 16, 1536),
    (8, 9): _Architecture(99 * _KIB, _KIB, 24, 1536),
    (9, 0): _Architecture(227 * _KIB, _KIB, 32, 2048),
    (10, 0): _Architecture(227 * _KIB, _KIB, 32, 2048),
    (10, 3): _Architecture(227 * _KIB, _KIB, 32, 2048),
    (12, 0): _Architecture(99 * _KIB, _KIB, 24, 1536),
}


class Card(NamedTuple):
    #: As cuDNN reads it.
    description: dict[str, Any]
    #: By size of a cluster, from 1; empty where the card has none.
    clusters: tuple[int, ...]
    clusters_are_estimated: bool = False


def card_of(name: str, gpu: Gpu) -> Card:
    told = _calibrated_clusters(name)
    if told is not None:
        return Card(_description(name, gpu), told)
    if gpu.capability < _CLUSTERED:
        return Card(_description(name, gpu), ())
    if gpu == named("H200"):
        return Card(_description(name, gpu), _H200_CLUSTERS)
    share = gpu.multiprocessors / _H200_MULTIPROCESSORS
    estimated = tuple(max(1, int(n * share)) for n in _H200_CLUSTERS)
    return Card(_description(name, gpu), estimated, clusters_are_estimated=True)


def _description(name: str, gpu: Gpu) -> dict[str, Any]:
    """What decides is the capability; halved or doubled, none of the others changed an order of
    engines where that was tried. Clocks and the cache are those of an H200 for all."""
    major, minor = gpu.capability
    nearest = max((c for c in _ARCHITECTURES if c <= gpu.capability), default=(6, 0))
    architecture = _ARCHITECTURES[nearest]
    return {
        "deviceName": f"NVIDIA {name}",
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "totalGlobalMem": gpu.memory,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": gpu.multiprocessors,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000,
        "l2CacheSize": 60 << 20,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 48 * _KIB,
        "maxSharedMemoryPerBlockOptin": architecture.shared_memory,
        "reservedSharedMemoryPerBlock": architecture.reserved_shared_memory,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": architecture.blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": architecture.threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
    }


def _calibrated_clusters(name: str) -> tuple[int, ...] | None:
    """Of the calibration that `$PLIMSOLL_CALIBRATION` names, if it is of this card and says so."""
    path = os.environ.get("PLIMSOLL_CALIBRATION")
    if not path:
        return None
    try:
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(os.path.splitext(path)[1], open)
        with opened(path, "rt") as file:
            header = json.loads(file.readline())
        clusters = header.get("clusters")
        return tuple(map(int, clusters)) if clusters and header["gpu"] == name else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, lzma.LZMAError):
        return None


def clusters_of(card: Card, size: int) -> int | None:
    """How many of this size the card holds at once; nothing where that is not known."""
    return card.clusters[size - 1] if 0 < size <= len(card.clusters) else None

