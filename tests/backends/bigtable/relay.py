"""A gRPC server in front of the emulator. Tests use it to inspect, change, lose or refuse single calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

Forward = Callable[[bytes], Iterator[bytes]]
Rule = Callable[[bytes, Forward], Iterator[bytes]]


class StatusError(Exception):
    """The error that a rule returns instead of forwarding a call."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC ships no types
    """Forwards calls unchanged, except calls of methods that have a rule."""

    def __init__(self, port: int) -> None:
        """
        Args:
            port: of the emulator.
        """
        self.rules: dict[str, Rule] = {}
        """By the name of a method: takes the request and what passes requests on, gives the answers."""
        self.seen: Counter[str] = Counter()
        """How often each method was called."""
        self._there = grpc.insecure_channel(
            f"127.0.0.1:{port}", options=(("grpc.max_receive_message_length", -1),)
        )
        self._server = grpc.server(ThreadPoolExecutor(64), options=(("grpc.max_receive_message_length", -1),))
        self._server.add_generic_rpc_handlers((self,))
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method, as gRPC's servers ask for it. All calls are handled as streams, which look
        the same on the wire."""
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self._answers(handler_call_details.method, request, context)
        )

    def close(self) -> None:
        """End the server and all connections."""
        self._server.stop(None).wait()
        self._there.close()

    def _answers(self, path: str, request: bytes, context: Any) -> Iterator[bytes]:
        method = path.rpartition("/")[2]
        self.seen[method] += 1
        forward: Forward = self._there.unary_stream(path)
        try:
            yield from self.rules.get(method, _pass)(request, forward)
        except StatusError as error:
            context.abort(error.code, str(error))
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())


def refuse(code: str, words: str = "by a rule") -> Rule:
    """Refuses every call without forwarding it."""

    def rule(_: bytes, __: Forward) -> Iterator[bytes]:
        raise StatusError(grpc.StatusCode[code], words)
        yield  # so that it is an iterator

    return rule


def lose(code: str) -> Rule:
    """Forwards every call, but returns an error instead of the answer."""

    def rule(request: bytes, forward: Forward) -> Iterator[bytes]:
        list(forward(request))
        yield from refuse(code)(request, forward)

    return rule


def _pass(request: bytes, forward: Forward) -> Iterator[bytes]:
    return forward(request)
