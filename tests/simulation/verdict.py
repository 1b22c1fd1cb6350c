"""Checks of a finished simulation: the responses of clients are compared with the effects on the rows."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.clock import FAR_MS
from polaris_spark.commits.decider import LATE_MS
from polaris_spark.commits.retry import DEADLINE_MS
from tests.simulation.observer import Effect, Position, RowHistory
from tests.simulation.plan import Plan
from tests.simulation.programs import Task, outcome
from tests.simulation.world import Read, Request, World

NEVER = 1 << 60

SLACK_MS = 10_000.0
"""Time by which a request may take effect later than its limit, in milliseconds: polls and repeated requests to the
database."""


def judge(world: World) -> None:
    """Record every violation in the observer."""
    by_operation: dict[int, list[Effect]] = {}
    for request in world.requests:
        effects = world.observer.effects.get(request.number, ())
        by_operation.setdefault(request.operation, []).extend(effects)
    for request in world.requests:
        if request.task is not None:
            for problem in _task_problems(world, request, request.task, by_operation[request.operation]):
                world.observer.blame(f"request {request.number} ({request.outcome or 'died'}): {problem}")
    _judge_registry(world)
    for read in world.reads:
        _judge_read(world, read)
    world.observer.nodes.check()


def _task_problems(world: World, request: Request, task: Task, of_operation: list[Effect]) -> Iterator[str]:
    mine = world.observer.effects.get(request.number, [])
    responded = request.responded or NEVER
    if len(mine) > 1:
        yield f"took effect {len(mine)} times"
    if any(effect.tick < request.invoked for effect in mine):
        yield "took effect before it was asked for"
    latest = request.invoked_ms + _longest_ms(world.plan)
    if any(effect.at_ms > latest for effect in mine):
        yield f"took effect {max(effect.at_ms for effect in mine) - request.invoked_ms:.0f} ms after it was asked for"
    if request.outcome in ("refused", "again", "gone", "forgotten") and mine:
        yield "took effect although its client was told that it did not"
    if request.outcome == "refused" and not _possible(world, request, task, "refused", None):
        yield f"nothing in its time refuses {task}"
    if request.outcome == "done":
        if any(effect.tick > responded for effect in mine):
            yield "was acknowledged before it took effect"
        known = [effect for effect in of_operation if effect.tick <= responded]
        if request.answer in [effect.answer for effect in known]:
            return
        if not _possible(world, request, task, "done", request.answer):
            yield f"was acknowledged with {request.answer}, which took effect never; what did is {known}"


def _longest_ms(plan: Plan) -> float:
    """Return the time after which a request cannot take effect any more, in milliseconds. Its process tries until the
    deadline. Another process may carry out its intent some time after that, and also tries until a deadline."""
    rates = plan.rates
    if rates.stall or plan.ahead or max(map(abs, plan.skews)) > FAR_MS:
        return float("inf")
    delay = rates.late_ms[1] if rates.late else 0.0
    return 2 * DEADLINE_MS + LATE_MS + 2 * max(map(abs, plan.skews)) + delay + SLACK_MS


def _possible(world: World, request: Request, task: Task, said: str, answer: int | None) -> bool:
    """Whether a task without an effect could have had this outcome at some moment between request and response."""
    for row in _rows(world, request.name):
        done = _done_at(world, row, request.operation)
        for position in _during(row, request.invoked, request.responded):
            if position.tick >= done:
                break
            kind, expected, after = outcome(task, position.state)
            if kind != said:
                continue
            if said == "refused" or (expected == answer and after == position.state):
                return True
    return False


def _done_at(world: World, row: RowHistory, operation: int) -> int:
    """Return the tick at which an operation took effect in the history of a row; `NEVER` if it did not.

    From this tick on, a repeated request returns the recorded answer.
    """
    if operation in world.observer.contents[row.first.commit].done:
        return 0
    tasks = world.observer.tasks
    done = (one.tick for one in row.positions if one.request and tasks[one.request][0] == operation)
    return next(done, NEVER)


def _rows(world: World, name: str) -> list[RowHistory]:
    return [row for row in world.observer.rows.values() if row.name.startswith(f"{name}@")]


def _during(row: RowHistory, began: int, ended: int) -> Iterator[Position]:
    """Yield the positions of a row that a request between two ticks may have read."""
    positions = row.positions
    for place, position in enumerate(positions):
        until = positions[place + 1].tick if place + 1 < len(positions) else NEVER
        if position.tick <= ended and until >= began:
            yield position


def _judge_registry(world: World) -> None:
    effects: dict[int, list[int]] = {}
    for tick, operation in world.observer.registry.effects:
        effects.setdefault(operation, []).append(tick)
    asked: dict[int, list[Request]] = {}
    for request in world.requests:
        if request.task is None:
            asked.setdefault(request.operation, []).append(request)
    blame = world.observer.blame
    for operation, requests in asked.items():
        ticks = effects.get(operation, [])
        told = {request.outcome for request in requests}
        if len(ticks) > 1:
            blame(f"{requests[0].action} {operation} of {requests[0].name} took effect {len(ticks)} times")
        if ticks and not told & {"done", "unknown", ""}:
            blame(f"{requests[0].action} {operation} of {requests[0].name} took effect; all heard {told}")
        for request in requests:
            if request.outcome == "done" and not any(tick <= request.responded for tick in ticks):
                blame(
                    f"request {request.number} ({request.action} {request.name}) was done, and never took effect"
                )


def _judge_read(world: World, read: Read) -> None:
    row = next((row for row in _rows(world, read.name) if _has(row, read.commit)), None)
    content = world.observer.contents.get(read.commit)
    if row is None or content is None:
        world.observer.blame(f"a read of {read.name} found commit {read.commit}, which no row had")
        return
    if not any(
        position.commit == read.commit
        for one in _rows(world, read.name)
        for position in _during(one, read.invoked, read.responded)
    ):
        world.observer.blame(
            f"a read of {read.name} found commit {read.commit}, which was not the newest then"
        )
    if read.numbers != content.state:
        world.observer.blame(
            f"a read of {read.name} at commit {read.commit} found other numbers than the model has"
        )


def _has(row: RowHistory, commit: int) -> bool:
    return any(position.commit == commit for position in row.positions)
