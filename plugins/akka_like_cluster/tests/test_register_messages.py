"""Questions and notices about the register of client ids, as other members send them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinmqtt_akka_like_cluster.pure.register_messages import (
    Question,
    pack_granted,
    pack_moved,
    pack_page,
    pack_register,
    unpack_granted,
    unpack_page,
)
from kinmqtt_akka_like_cluster.pure.wire import MalformedControl
from kinmqtt_spi.mesh.calls import HIGHEST_EPOCH

HIGHEST_NUMBER = (1 << 64) - 1


@pytest.mark.parametrize(
    "read",
    [
        lambda epoch: Question(pack_register(epoch, "c", False)).epoch,
        lambda epoch: Question(pack_moved(epoch, HIGHEST_NUMBER, "c")).epoch,
        lambda epoch: unpack_granted(pack_granted(HIGHEST_NUMBER, epoch)),
        lambda epoch: unpack_page(pack_page(0, [("c", epoch)], [("d", HIGHEST_NUMBER)])),
    ],
    ids=["register", "moved", "granted", "page"],
)
def test_an_epoch_leaves_room_for_later_claims(read: Callable[[int], object]) -> None:
    """A member that tells a higher one is not believed: nobody could claim a client id any more."""
    assert str(HIGHEST_EPOCH) in str(read(HIGHEST_EPOCH))
    with pytest.raises(MalformedControl, match="has the epoch 9223372032559808513, above"):
        read(HIGHEST_EPOCH + 1)
