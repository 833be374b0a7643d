#!/usr/bin/env python3
"""Writes small databases in the schema of Nsight Systems' SQLite export (2024 to 2026).

No real export was at hand: the schema is NVIDIA's documented one, the rows are made up.
"""

import pathlib
import sqlite3

HERE = pathlib.Path(__file__).parent
MIB = 1 << 20


def global_id(pid, tid=0):
    """8 bits hardware, 8 bits virtual machine, 24 bits process, 24 bits thread."""
    return 1 << 56 | 2 << 48 | pid << 24 | tid


USAGE = """CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
    start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL,
    bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL,
    name TEXT, correlationId INTEGER, streamId INTEGER,
    localMemoryPoolAddress INTEGER, localMemoryPoolReleaseThreshold INTEGER,
    localMemoryPoolSize INTEGER, localMemoryPoolUtilizedSize INTEGER,
    importedMemoryPoolAddress INTEGER, importedMemoryPoolProcessId INTEGER)"""

OTHERS = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, totalMemory INTEGER);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUDA_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL,
    module INTEGER NOT NULL, unresolved INTEGER, originalIP INTEGER, stackDepth INTEGER NOT NULL,
    PRIMARY KEY (id, stackDepth));
INSERT INTO StringIds VALUES (1, 'cudaMalloc_v3020'), (2, 'cudaFree_v3020'),
    (3, 'c10::cuda::CUDACachingAllocator::Native::alloc_block'), (4, 'libc10_cuda.so'),
    (5, 'ncclCudaMalloc'), (6, 'libnccl.so.2');
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000, '', '');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 150109880320);
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, 'CUDA_MEMOPR_MEMORY_KIND_PAGEABLE', 'Pageable'),
    (1, 'CUDA_MEMOPR_MEMORY_KIND_PINNED', 'Pinned'), (2, 'CUDA_MEMOPR_MEMORY_KIND_DEVICE', 'Device'),
    (3, 'CUDA_MEMOPR_MEMORY_KIND_ARRAY', 'Array'), (4, 'CUDA_MEMOPR_MEMORY_KIND_MANAGED', 'Managed'),
    (5, 'CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC', 'Device Static'),
    (6, 'CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC', 'Managed Static');
"""


def create(name):
    path = HERE / name
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size=1024")  # small files
    return db


def event(db, start, pid, device, address, size, kind, operation, name=None, correlation=None,
          stream=None):
    db.execute("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES"
               "(?,?,?,1,?,0,?,?,?,?,?,?,NULL,NULL,NULL,NULL,NULL,NULL)",
               (start, global_id(pid), device, address, size, kind, operation, name, correlation,
                stream))


def call(db, start, pid, correlation, name, chain):
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,?)",
               (start, start + 10, global_id(pid, pid + 1), correlation, name, chain))


def usage():
    """One process on two devices; rows out of order; every kind of memory."""
    db = create("usage.sqlite")
    db.execute(USAGE)
    db.executescript(OTHERS)
    a = 0x7F0000000000
    event(db, 5000, 4242, 0, a, 20 * MIB, 2, 1, correlation=13)  # freed; comes last in time
    event(db, 1000, 4242, 0, a, 20 * MIB, 2, 0, correlation=11, stream=7)
    event(db, 2000, 4242, 0, a + 64 * MIB, 512 * MIB, 2, 0, correlation=12)
    event(db, 1500, 4242, 0, a + 1024 * MIB, 2 * MIB, 5, 0, name="lookup_table")
    event(db, 1600, 4242, 1, a, 4 * MIB, 4, 0)
    event(db, 1700, 4242, 0, 0x55550000, 8 * MIB, 1, 0)   # pinned
    event(db, 1800, 4242, 0, 0x55560000, 1 * MIB, 1, 0)
    event(db, 1900, 4242, 0, 0x55560000, 1 * MIB, 1, 1)
    event(db, 1950, 4242, 0, 0x66660000, 1 * MIB, 0, 0)   # pageable
    event(db, 1960, 4242, 0, 0x77770000, 1 * MIB, 9, 0)   # of the future
    event(db, 1970, 4242, 0, 0x77770000, 1 * MIB, 2, 5)
    call(db, 990, 4242, 11, 1, 1)
    call(db, 1990, 4242, 12, 1, 2)
    call(db, 4990, 4242, 13, 2, None)
    db.executemany("INSERT INTO CUDA_CALLCHAINS VALUES (?,?,?,NULL,0,?)",
                   [(1, 3, 4, 1), (1, 1, 4, 0), (2, 5, 6, 0)])
    db.commit()


def processes():
    """Two processes on the same device, the same address in both."""
    db = create("processes.sqlite")
    db.execute(USAGE)
    event(db, 10, 100, 0, 0x1000, 3 * MIB, 2, 0)
    event(db, 20, 200, 0, 0x1000, 5 * MIB, 2, 0)
    event(db, 30, 100, 0, 0x1000, 3 * MIB, 2, 1)
    db.commit()


def others():
    db = create("no_memory.sqlite")
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    db.commit()
    # A view in the place of the table, which must not be asked.
    db = create("view.sqlite")
    db.executescript("CREATE TABLE t (start, bytes);"
                     "CREATE VIEW CUDA_GPU_MEMORY_USAGE_EVENTS AS SELECT * FROM t")
    db.commit()
    db = create("strange_types.sqlite")
    db.executescript("CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, address,"
                     " bytes, memKind, memoryOperationType, name, correlationId);"
                     "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES"
                     " ('x', 1, 0, 1, 1, 2, 0, NULL, 1), (1, 1, 0, x'00ff', 1, 2, 0, NULL, 1),"
                     " (1, 1, 0, 1, -5, 2, 0, NULL, 1), (1, 1, -1, 1, 5, 2, 0, NULL, 1),"
                     " (1, 1, 0, 1, 1e300, 2, 0, NULL, 1), (2, NULL, NULL, 64, 512, NULL, 0, 77, 'c'),"
                     " (9223372036854775807, 1, 0, -1, 9223372036854775807, 2, 0, NULL, 1)")
    db.commit()
    db = create("wal.sqlite")
    db.execute(USAGE)
    db.commit()
    db.execute("PRAGMA journal_mode=WAL")
    db.close()


usage()
processes()
others()
