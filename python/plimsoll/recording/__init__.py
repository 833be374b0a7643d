"""plimsoll.record: the allocator's history of this process, as snapshots."""
