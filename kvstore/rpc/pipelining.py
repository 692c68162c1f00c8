"""Many calls in one request: each with a result of its own.

Where all of them stand on the same ground, the writes go to the corridor in one question and the reads look at one
snapshot, so that a call costs a fraction of a request. A call that brings a session or freshness of its own, or that is
about keys held elsewhere, has to be done by itself; then all are, writes in their order, reads at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kvstore.config import SiteConfig
from kvstore.effects import Write, Written
from kvstore.errors import BatchTooLarge, KvError
from kvstore.past import Past
from kvstore.rpc.answering import Answering, done
from kvstore.rpc.wire import to_error
from kvstore.sessions import PLAIN, Lack, Wanted
from kvstore.v1 import kv_pb2

READS_AT_ONCE = 32  # of one pipeline, where each is done by itself: it must not take all places of forwarded calls


class Pipelining:
    def __init__(self, site: SiteConfig, answering: Answering) -> None:
        self._site = site.name
        self._answering = answering
        self._decode = answering.decode

    async def answer(self, request: kv_pb2.PipelineRequest, deadline_s: float) -> kv_pb2.PipelineResponse:
        plan = self._decode.pipeline(request)
        has_writes = any(isinstance(one, Write) for one in plan)
        wanted = self._decode.wanted(request, for_write=has_writes)
        if any(map(self._stands_alone, request.calls, plan)):
            return await self._one_by_one(request, plan, wanted, deadline_s)
        return await self._together(request, plan, wanted, deadline_s)

    def _stands_alone(self, call: kv_pb2.PipelineCall, one: Write | bytes | KvError) -> bool:
        body = getattr(call, call.WhichOneof("call") or "get")
        if body.session or body.HasField("freshness"):
            return True
        if isinstance(one, bytes):
            return not self._decode.is_here(self._decode.holders_of((one,)))
        return isinstance(one, Write) and self._answering.is_elsewhere(one)

    async def _together(
        self, request: kv_pb2.PipelineRequest, plan: list[Write | bytes | KvError], wanted: Wanted, deadline_s: float
    ) -> kv_pb2.PipelineResponse:
        """The writes first, all in one question to the corridor; then the reads, all from one snapshot."""
        answering, past = self._answering, wanted.past
        if wanted is not PLAIN:
            await answering.sessions.arrive(wanted, deadline_s)
        writes = [one._replace(past=past) if past is not None else one for one in plan if isinstance(one, Write)]
        outcomes = await answering.ask(writes, deadline_s) if writes else []
        with done():
            return await self._result(request, plan, wanted, zip(writes, outcomes, strict=True), deadline_s)

    async def _result(
        self,
        request: kv_pb2.PipelineRequest,
        plan: list[Write | bytes | KvError],
        wanted: Wanted,
        results: Iterator[tuple[Write, Written | KvError]],
        deadline_s: float,
    ) -> kv_pb2.PipelineResponse:
        past = wanted.past
        response = kv_pb2.PipelineResponse(site=self._site)
        gets: list[tuple[bytes, kv_pb2.PipelineResult]] = []
        for call, one in zip(request.calls, plan, strict=True):
            result = response.results.add()
            if isinstance(one, bytes):
                gets.append((one, result))
                continue
            write, outcome = next(results) if isinstance(one, Write) else (None, one)
            if isinstance(outcome, KvError):
                result.error.CopyFrom(to_error(outcome))
                continue
            answer = result.put if call.HasField("put") else result.delete
            answer.commit = outcome.commit
            version = answer.version
            version.time, version.site = outcome.versions[0]
            response.commit = max(response.commit, outcome.commit)
            if past is not None and write is not None:
                past = await self._after_write(write._replace(past=past), outcome, deadline_s)
        if gets:
            past = await self._read(gets, wanted, past, response, deadline_s)
        if past is not None:
            response.session = self._answering.sessions.seal.seal(past)
        return response

    async def _after_write(self, write: Write, written: Written, deadline_s: float) -> Past:
        sessions = self._answering.sessions
        await sessions.durable(written.commit, deadline_s)
        return sessions.after_write(write, written)

    async def _read(
        self,
        gets: list[tuple[bytes, kv_pb2.PipelineResult]],
        wanted: Wanted,
        past: Past | None,
        response: kv_pb2.PipelineResponse,
        deadline_s: float,
    ) -> Past | None:
        # By what was waited for, not by the past after the writes: that may name what is not here yet.
        look = self._answering.reading.answer(gets, wanted if past is not None else PLAIN)
        assert not isinstance(look, Lack)  # deliveries are not taken back
        response.commit = max(response.commit, look.commit)
        if past is None:
            return None
        return await self._answering.after_read(look, past, deadline_s)

    # Each by itself

    async def _one_by_one(
        self, request: kv_pb2.PipelineRequest, plan: list[Write | bytes | KvError], wanted: Wanted, deadline_s: float
    ) -> kv_pb2.PipelineResponse:
        response = kv_pb2.PipelineResponse(site=self._site)
        results = [response.results.add() for _ in plan]
        session, reads = request.session, []
        for call, one, result in zip(request.calls, plan, results, strict=True):
            kind = call.WhichOneof("call") or "get"
            own = getattr(call, kind)
            if isinstance(one, KvError):
                result.error.CopyFrom(to_error(one))
            elif isinstance(one, bytes):
                reads.append((own, result))
            else:
                await self._do(kind, self._completed(request, own, session, one), result, deadline_s)
                if wanted.past is not None and not own.session:  # the next write follows this one, wherever it is made
                    session = getattr(result, kind).session or session
        with done():
            wholes = [(self._completed(request, own, request.session), result) for own, result in reads]
            await self._read_each(wholes, deadline_s)
            self._collect(request, results, wanted, response)
        return response

    def _completed(self, request: kv_pb2.PipelineRequest, body: Any, session: bytes, write: Write | None = None) -> Any:
        """The call with what it takes from the pipeline, whose session has come so far."""
        whole = type(body)()
        whole.CopyFrom(body)
        if not body.session:
            whole.session = session
        if request.HasField("freshness") and not body.HasField("freshness"):
            whole.freshness.CopyFrom(request.freshness)
        if write is not None:
            whole.request_id = write.request_id
            if request.HasField("dependencies") and not body.HasField("dependencies"):
                whole.dependencies.CopyFrom(request.dependencies)
        return whole

    async def _read_each(self, reads: list[tuple[kv_pb2.GetRequest, kv_pb2.PipelineResult]], deadline_s: float) -> None:
        """What does not fit into the answer any more fails by itself, as in `Reading.answer`."""
        gate, limit, size = asyncio.Semaphore(READS_AT_ONCE), self._decode.bytes_max, 0

        async def read(whole: kv_pb2.GetRequest, result: kv_pb2.PipelineResult) -> None:
            nonlocal size
            async with gate:
                await self._do("get", whole, result, deadline_s)
            size += result.get.entry.ByteSize()
            if size > limit and result.get.HasField("entry"):
                result.error.CopyFrom(to_error(BatchTooLarge(size=size, unit="bytes", limit=limit)))

        await asyncio.gather(*(read(whole, result) for whole, result in reads))

    async def _do(self, kind: str, body: Any, result: kv_pb2.PipelineResult, deadline_s: float) -> None:
        try:
            answer = await getattr(self._answering, kind)(body, deadline_s)
        except KvError as error:
            result.error.CopyFrom(to_error(error))
        else:
            getattr(result, kind).CopyFrom(answer)

    def _collect(
        self,
        request: kv_pb2.PipelineRequest,
        results: list[kv_pb2.PipelineResult],
        wanted: Wanted,
        response: kv_pb2.PipelineResponse,
    ) -> None:
        """The pipeline's own token: it includes every result without a token of its own."""
        seal, past = self._answering.sessions.seal, wanted.past
        for call, result in zip(request.calls, results, strict=True):
            kind = result.WhichOneof("result") or "error"
            if kind == "error":
                continue
            answer = getattr(result, kind)
            if answer.site == self._site:
                response.commit = max(response.commit, answer.commit)
            if past is not None and not getattr(call, kind).session:
                if answer.session:
                    past = past.merged(seal.open(answer.session))
                answer.session = b""
            answer.site = ""
        if past is not None:
            response.session = seal.seal(past)
