"""State changes apply all or not at all; releases are attempted to the last (spec 5.2, 16.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.transaction import DamagedState, apply_state_changes, release_all


class Change:
    def __init__(self, log: list[str], name: str, fail: str = "") -> None:
        if fail == "prepare":
            raise ValueError(name)
        log.append(f"prepare {name}")
        self.log, self.name, self.fail = log, name, fail

    def commit(self) -> None:
        if self.fail == "commit":
            raise ValueError(self.name)
        self.log.append(f"commit {self.name}")

    def undo(self) -> None:
        self.log.append(f"undo {self.name}")
        if self.fail == "undo":
            raise KeyError(self.name)


@given(st.integers(0, 3))
def test_a_failing_prepare_undoes_the_prepared_in_reverse(at: int) -> None:
    log: list[str] = []
    makers = [lambda i=i: Change(log, str(i), "prepare" if i == at else "") for i in range(4)]
    with pytest.raises(ValueError, match=str(at)):
        apply_state_changes(makers)
    assert log == [f"prepare {i}" for i in range(at)] + [f"undo {i}" for i in reversed(range(at))]


def test_all_prepared_are_committed_in_order() -> None:
    log: list[str] = []
    apply_state_changes([lambda i=i: Change(log, str(i)) for i in range(3)])
    assert log == ["prepare 0", "prepare 1", "prepare 2", "commit 0", "commit 1", "commit 2"]


def test_the_first_error_stays_primary_when_an_undo_fails_too() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="second") as caught:
        apply_state_changes([lambda: Change(log, "first", "undo"), lambda: Change(log, "second", "prepare")])
    assert "first" in "".join(caught.value.__notes__)


def test_a_commit_that_fails_is_damage() -> None:
    log: list[str] = []
    with pytest.raises(DamagedState):
        apply_state_changes([lambda: Change(log, "a"), lambda: Change(log, "b", "commit")])


def test_releases_are_all_attempted_and_the_first_failure_is_raised() -> None:
    called = []

    def release(name: str, fail: bool) -> None:
        called.append(name)
        if fail:
            raise ValueError(name)

    with pytest.raises(ValueError, match="b"):
        release_all([lambda: release("a", False), lambda: release("b", True), lambda: release("c", True)])
    assert called == ["a", "b", "c"]
