"""Records go where Kafka's own clients would send them."""

from __future__ import annotations

from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_kafka_kit.partitions import LONGEST_CACHED_KEY, partition_of


@given(st.binary(max_size=2 * LONGEST_CACHED_KEY), st.integers(1, 100))
def test_a_key_has_the_partition_of_kafkas_own_clients(key: bytes, count: int) -> None:
    """Whether its hash is cached or not."""
    partitions = list(range(count))

    assert partition_of(key, count) == DefaultPartitioner()(key, partitions, partitions)


def test_known_partitions_are_those_of_java() -> None:
    """The hash is that of the Java client: values of its own test, UtilsTest.testMurmur2, made positive."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}

    for key, value in known.items():
        assert partition_of(key, 1 << 31) == value & 0x7FFFFFFF
