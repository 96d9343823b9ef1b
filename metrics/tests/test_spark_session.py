"""Each module has a Spark of its own, whichever modules share its process."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from metrics_harness.running import FAST_JAVA
from metrics_harness.spark_session import small_session, spark_session


def test_a_session_has_nothing_of_the_one_before() -> None:
    """Not even its Java process, which keeps the jars and options that it began with."""
    settings, processes = [], []
    for place in ("first", "second"):
        options = {"spark.driver.extraJavaOptions": f"{FAST_JAVA} -Dkinmqtt.place={place}"}
        with spark_session(partial(small_session, 1, options)) as session:
            java: Any = session.sparkContext._jvm
            settings.append(java.java.lang.System.getProperty("kinmqtt.place"))
            processes.append(java.java.lang.ProcessHandle.current().pid())
            assert session.range(3).count() == 3

    assert settings == ["first", "second"]
    assert processes[0] != processes[1]


def test_a_session_inside_another_one_is_an_error() -> None:
    """It would be the same one, and end it."""
    with (
        spark_session(partial(small_session, 1, {})),
        pytest.raises(AssertionError, match="Spark runs in this process"),
        spark_session(partial(small_session, 1, {})),
    ):
        pass
