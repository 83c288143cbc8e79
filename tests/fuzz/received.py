"""Frames that a broker receives from providers, and a provider from its broker."""

import numpy as np

from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.protocol import NearestReply, NearestRequest
from fedneighbors.service._messages import (
    Evidence,
    EvidenceRequest,
    LinkReplies,
    LinkRequest,
    LinkRequests,
)


class Receiver:
    """Reads messages, and sends them back."""

    name = "receiver"
    accepts = (
        NearestReply,
        LinkReplies,
        LinkRequests,
        LinkRequest,
        EvidenceRequest,
        Evidence,
    )

    def answer(self, message):
        if isinstance(message, NearestReply):
            assert len([*message.ids]) == len(message.distances)
        return message


def received_frames():
    """Return valid frames with their receiver."""
    names = Names.pack(["a", "", "Zürich", "日本", "t-812"])
    found = NearestReply(np.arange(5.0), np.arange(5), names, False, True, 9)
    request = LinkRequest(1, "titles", "q", 0, 900, encode(NearestRequest("q", b"1", 5, None)))
    messages = [
        found,
        request,
        LinkRequests(("p",), (encode(request),)),
        EvidenceRequest(b"n" * 32),
        Evidence("amd", b"report", (b"key", b"authority", b"root")),
        LinkReplies((1, 2), (10, 20), (encode(found), b""), (b"", b"e")),
    ]
    return [(encode(message), Receiver()) for message in messages]
