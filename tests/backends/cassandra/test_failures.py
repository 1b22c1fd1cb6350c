"""The errors of this package for failures of Cassandra that a single node does not cause by itself."""

from __future__ import annotations

import pytest
from cassandra import ConsistencyLevel, Unavailable

from polaris_spark.backends.cassandra.failures import explained
from polaris_spark.errors import OutcomeUnknownError, PolarisError, TryAgainError


@pytest.mark.parametrize(
    ("level", "conditional", "told"),
    [
        (ConsistencyLevel.SERIAL, True, TryAgainError),
        (ConsistencyLevel.LOCAL_SERIAL, True, TryAgainError),
        # The replicas agreed, perhaps, and then there were too few to write what they agreed on.
        (ConsistencyLevel.QUORUM, True, OutcomeUnknownError),
        (ConsistencyLevel.LOCAL_QUORUM, True, OutcomeUnknownError),
        (ConsistencyLevel.QUORUM, False, TryAgainError),
    ],
)
def test_a_transaction_has_an_unknown_outcome_if_too_few_replicas_answer_after_it_may_be_decided(
    level: int, conditional: bool, told: type[PolarisError]
) -> None:
    error = Unavailable("unavailable", consistency=level, required_replicas=2, alive_replicas=1)
    assert type(explained("cassandra://host/k", error, writes=True, conditional=conditional)) is told
