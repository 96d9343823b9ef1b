"""One attack in a process of its own.

    python -m root_harness.attacker NAME PORT SECONDS

It prints ``under way`` once it has done its worst, keeps its connections open, and ends when its standard input does.
Only the loopback network is ever addressed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys

from root_harness.attacks import Attack


async def main(name: str, port: int, lasts_s: float) -> None:
    """Attack, and keep what is held until standard input ends."""
    attack = Attack(port, lasts_s)
    await getattr(attack, name)()
    print("under way", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for client in attack.clients:
        client.abort()
    await asyncio.sleep(0)  # What was aborted is closed in the next turn.


if __name__ == "__main__":
    gc.disable()  # Its pauses would be the bystander's.
    os.nice(10)  # An attack comes from another machine, as a rule: it does not take the broker's processor.
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
