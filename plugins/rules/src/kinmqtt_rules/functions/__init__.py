"""The functions of rules. A module of them declares each with its types, its documentation and an example."""

from kinmqtt_rules.functions import numbers, operators, texts, times, values
from kinmqtt_rules.functions._registry import FUNCTIONS, OPERATORS, TYPES, Function, Kind, Tally, bind

__all__ = [
    "FUNCTIONS",
    "OPERATORS",
    "TYPES",
    "Function",
    "Kind",
    "Tally",
    "bind",
    "numbers",
    "operators",
    "texts",
    "times",
    "values",
]
