"""The frames of a link: values of ours to bytes and back.

gRPC is told nothing about protobuf here; frames go through it as bytes. So their size is known without being asked for,
a frame can be refused by its size before it is unpacked (nobody who has not said hello gets more than a hello's worth
of memory), and bytes that are no frame are an error of ours, with its reason, instead of a fault of the transport.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kvstore.effects import Envelope
from kvstore.errors import BadRequest
from kvstore.hello import ENVELOPES_MAX, Accepted, Greeting, Refusal
from kvstore.peer.v1 import peer_pb2
from kvstore.peer.v1.peer_pb2 import LinkRequest, LinkResponse

SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
LINK = f"/{SERVICE}/Link"
HELLO_BYTES_MAX = 16 * 1024  # of a hello, and of anything that a receiver answers; beyond it: refused, not unpacked


# From the sender


def hello_frame(hello: Greeting) -> bytes:
    return LinkRequest(hello=peer_pb2.Hello(**hello._asdict())).SerializeToString()


def batch_frame(envelopes: list[Envelope]) -> bytes:
    frame = LinkRequest()
    add = frame.batch.envelopes.add
    for number, time, control, payload, witness, meant in envelopes:
        add(number=number, control=control, payload=payload, time=time, witness=witness, meant=meant)
    return frame.SerializeToString()


def heartbeat_frame(time: int, wall_ms: int) -> bytes:
    return LinkRequest(heartbeat=peer_pb2.Heartbeat(time=time, wall_ms=wall_ms)).SerializeToString()


def request_of(data: bytes) -> LinkRequest:
    try:
        return LinkRequest.FromString(data)
    except DecodeError:
        raise BadRequest(why=f"{len(data)} bytes on a link are no frame") from None


def greeting_of(hello: peer_pb2.Hello) -> Greeting:
    return Greeting(*(getattr(hello, name) for name in Greeting._fields))


def envelopes_of(batch: peer_pb2.MessageBatch) -> list[Envelope]:
    envelopes = batch.envelopes
    if not 0 < len(envelopes) <= ENVELOPES_MAX:
        raise BadRequest(why=f"a frame of {len(envelopes)} messages; it must have from 1 to {ENVELOPES_MAX}")
    return [Envelope(one.number, one.time, one.control, one.payload, one.witness, one.meant) for one in envelopes]


# From the receiver


def accepted_frame(accepted: Accepted) -> bytes:
    reply = peer_pb2.HelloReply(accepted=peer_pb2.Accepted(**accepted._asdict()))
    return LinkResponse(hello_reply=reply).SerializeToString()


def refused_frame(refusal: Refusal) -> bytes:
    reply = peer_pb2.HelloReply(refused=peer_pb2.Refused(**refusal._asdict()))
    return LinkResponse(hello_reply=reply).SerializeToString()


def ack_frame(up_to: int, time: int, wall_ms: int) -> bytes:
    return LinkResponse(ack=peer_pb2.Ack(up_to=up_to, time=time, wall_ms=wall_ms)).SerializeToString()


def reply_of(data: bytes) -> Accepted | Refusal:
    """The answer to a hello."""
    reply = _response_of(data).hello_reply
    match reply.WhichOneof("reply"):
        case "accepted":
            return Accepted(*(getattr(reply.accepted, name) for name in Accepted._fields))
        case "refused":
            return Refusal(*(getattr(reply.refused, name) for name in Refusal._fields))
    raise BadRequest(why="an answer to a hello that is neither yes nor no")


def ack_of(data: bytes) -> int:
    """Up to which number everything is committed at the receiver."""
    frame = _response_of(data)
    if not frame.HasField("ack"):
        raise BadRequest(why="a frame of a receiver that is no acknowledgement")
    return frame.ack.up_to


def _response_of(data: bytes) -> LinkResponse:
    try:
        return LinkResponse.FromString(data)
    except DecodeError:
        raise BadRequest(why=f"{len(data)} bytes of a receiver are no frame") from None
