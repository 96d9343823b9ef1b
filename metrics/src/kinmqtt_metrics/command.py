"""``kinmqtt-metrics``: the commands of the data pipeline. Spark is imported by those that need it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kinmqtt_metrics import learning, report
from kinmqtt_metrics.errors import ENDED, INTERRUPTED, CommandError, PipelineError
from kinmqtt_metrics.pipeline.settings import BOUNDS, PipelineSettings, Topic
from kinmqtt_metrics.table_arguments import tables_at


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command: 0 when it is done, 1 where it could not be, 2 where it is not understood, 130 after ^C."""
    parser = argparse.ArgumentParser(prog="kinmqtt-metrics", description="The data pipeline of kinmqtt.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except CommandError as error:
        print(f"kinmqtt-metrics: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(ENDED, file=sys.stderr)
        return INTERRUPTED


# ---- pipeline -----------------------------------------------------------------------------------------------------


def _add_pipeline(commands: Any) -> None:
    pipeline = commands.add_parser("pipeline", help="from the landing folder to tables, with Spark")
    parser = pipeline.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "run", help="run the pipeline", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    said = {field.name: field.default for field in PipelineSettings.__attrs_attrs__}

    def option(name: str, text: str, metavar: str) -> None:
        key = name.lstrip("-").replace("-", "_")
        bounds = BOUNDS[key]
        parser.add_argument(name, type=bounds, default=said[key], help=f"{text}; {bounds}", metavar=metavar)

    parser.add_argument(
        "--from", choices=("landing", "kafka"), default="landing", dest="source", help="where records are read"
    )
    parser.add_argument("--landing", type=Path, metavar="FOLDER", help="the folder that brokers write to")
    parser.add_argument("--servers", metavar="HOST:PORT,…", help="with --from kafka: some of Kafka's brokers")
    parser.add_argument(
        "--topic", default=Topic.__attrs_attrs__[1].default, metavar="NAME", help="with --from kafka: the topic"
    )
    parser.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help="with --from kafka: further properties of Kafka's clients, such as the user and encryption",
    )
    parser.add_argument(
        "--tables",
        type=tables_at,
        required=True,
        metavar="FOLDER",
        help="where the tables are written: a folder, or the URL of one that Hadoop speaks with (s3a://bucket/tables)",
    )
    parser.add_argument(
        "--once", action="store_true", help="read what is there and end; open windows wait for the next run"
    )
    parser.add_argument(
        "--final",
        action="store_true",
        help="as --once, and close every window at the end; records that come later are late",
    )
    option("--trigger-s", "time from the start of a batch to the next", "S")
    option("--window-s", "length of a window; can't change for a folder of tables", "S")
    option("--watermark-s", "how much older than the newest record of its node a record may be", "S")
    option("--idle-s", "the windows of a node are closed after this much silence, once all is read", "S")
    option("--ahead-s", "records that are further ahead of this machine's clock are rejected", "S")
    option("--top", "number of clients and topics in top_clients and top_topics", "N")
    option("--storm-connects", "a window with this many connects is a storm", "N")
    option("--storm-client", "a window with this many connects of one client is a storm", "N")
    option("--segments", "maximum number of segments in a batch", "N")
    option("--records", "with --from kafka: maximum number of records in a batch", "N")
    parser.add_argument(
        "--master", default=said["master"], metavar="URL", help="Spark's master: local[N], or spark://HOST:PORT"
    )
    parser.add_argument(
        "--conf",
        type=_conf,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; repeatable",
    )
    parser.set_defaults(run=_run_pipeline)


def _conf(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _run_pipeline(arguments: argparse.Namespace) -> int:
    from kinmqtt_metrics.pipeline.run import run

    said = {
        field.name: getattr(arguments, field.name)
        for field in PipelineSettings.__attrs_attrs__
        if field.name != "topic"
    }
    said["topic"] = _topic(arguments)
    # The stream that is there now: others are not heard any more once the run is asked to end.
    stderr = sys.stderr
    run(PipelineSettings(**said | {"conf": dict(arguments.conf)}), lambda text: print(text, file=stderr, flush=True))
    return 0


def _topic(arguments: argparse.Namespace) -> Topic | None:
    if arguments.source == "landing":
        if arguments.servers is not None or arguments.kafka_config is not None:
            raise PipelineError("--servers and --kafka-config need --from kafka")
        return None
    if not arguments.servers:
        raise PipelineError("--from kafka needs --servers: some of Kafka's brokers, as HOST:PORT")
    if arguments.landing is not None:
        raise PipelineError("--from kafka reads no folder: leave --landing out")
    return Topic(arguments.servers, arguments.topic, arguments.kafka_config)


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_pipeline, report.add_parser, learning.add_parser)
"""One function for each command: it adds the parser, whose default ``run`` carries the command out."""

if __name__ == "__main__":
    sys.exit(main())
