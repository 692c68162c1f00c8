"""Where a replica keeps its tables: one contract, a store on disk (`lmdb`) and one in memory.

Only the contract is imported here, so that whoever makes a Batch does not load a database.
"""

from kvstore.storage.contract import TABLES, Batch, Snapshot, SnapshotEnded, Storage, VerifyReport

__all__ = ["TABLES", "Batch", "Snapshot", "SnapshotEnded", "Storage", "VerifyReport"]
