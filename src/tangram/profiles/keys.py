"""Keys of records: what two records must share to speak of the same thing; also the order of listings."""

from __future__ import annotations

from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Record

Key = tuple[object, ...]


def key_of(record: Record) -> Key:
    """Returns the key of a record; keys of all kinds can be compared with each other."""
    if isinstance(record, LayerTime):
        shape = tuple(getattr(record.shape, name) for name in record.shape.__slots__)
        point = (record.tp, record.micro_batch, record.includes_tp_comm)
        return (0, record.gpu, record.stack, str(record.precision), str(shape[0]), *shape[1:], *point)
    group = (record.gpu, record.stack, record.link, str(record.scope), str(record.op))
    ranks = (record.ranks, record.ranks_per_node)
    if isinstance(record, CollectiveTime):
        return (1, *group, *ranks, record.num_bytes)
    assert isinstance(record, LinkRate)
    return (2, *group, *ranks)
