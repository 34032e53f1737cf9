"""One exception class per decision that an operator takes, each of them a sentence.

The sentence names what was expected, what was found and what to do. Errors cross process borders
as plain records (`as_record`, `error_from_record`), so that a refusal made in a child process
reaches the command line as the same refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar

from handoff.artifacts.printable import one_line, printable

# What is in a table's own name may hold colons, so that the first `expected` counts.
_AT_PLACE = re.compile(
    r"(?:(?P<place>.*?): )??expected (?P<expected>.+?), got:? (?P<got>.+)", re.DOTALL
)
# In what was found, another message of that form: up to its end, its remedy, or the next one.
_NESTED = re.compile(
    r"\bexpected (?P<expected>[^;]+?), got:? (?P<got>.+?)(?=\.? *$|; |\. [A-Z'])", re.DOTALL
)
# Of a sentence, and not of what was shortened.
_FULL_STOP = re.compile(r"(?<!\.)\.$")


class HandoffError(Exception):
    """What went wrong, what was expected, what was found, and what to do about it.

    What was found may be several things, one a line.
    """

    exit_code: ClassVar[int] = 1
    # Whether it says nothing of what was asked for, which another machine may well do.
    is_machine_fault: ClassVar[bool] = False

    def __init__(self, what: str, *, expected: str, got: str, remedy: str, where: str = "") -> None:
        """Hold the parts of the sentence, made printable; `where` is such as `module.py:12`."""
        self.what = printable(what)
        self.expected = printable(expected)
        self.got = printable(got)
        self.remedy = printable(remedy)
        self.where = one_line(where)
        super().__init__(str(self))

    def __str__(self) -> str:
        """Return the parts as one sentence and its way out.

        What was found may be messages of this form, of a file's reader or of several steps: what
        they expected becomes `GOT instead of EXPECTED`, so that the sentence has one of each.
        """
        place = f"{self.where}: " if self.where else ""
        remedy = self.remedy[:1].upper() + self.remedy[1:]
        findings = "; ".join(_FULL_STOP.sub("", line) for line in self.got.split("\n"))
        got = _NESTED.sub(r"\g<got> instead of \g<expected>", findings)
        return f"{place}{self.what}: expected {self.expected}, got {got}. {remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by record, since the constructor takes keywords."""
        return (error_from_record, (self.as_record(),))

    def as_record(self) -> dict[str, str]:
        """Return the error as a plain mapping that JSON can hold.

        A class that isn't in `ERRORS` is recorded as the nearest above it that is.
        """
        names = [kind.__name__ for kind in type(self).__mro__]
        return {
            "class": next((name for name in names if name in ERRORS), HandoffError.__name__),
            "what": self.what,
            "expected": self.expected,
            "got": self.got,
            "remedy": self.remedy,
            "where": self.where,
        }


class UsageProblem(HandoffError):
    """An option, a recipe or a setting is not what it has to be."""

    exit_code = 64


class KeyUnusable(UsageProblem):
    """A key is none, can't be read here, or isn't trusted where it signs."""

    is_machine_fault = True


class EnvironmentLacking(HandoffError):
    """This machine lacks something: a compiler, a writable folder, room on the disk."""

    is_machine_fault = True


class StepCrashed(HandoffError):
    """A child process ended without a result: by a signal, by its time limit, by its memory."""


class BudgetSpent(StepCrashed):
    """A step took more time or memory than a step may: it was ended."""


class StepKilled(BudgetSpent):
    """A step was killed, and not by us: by the kernel, for want of memory, or by somebody."""

    is_machine_fault = True


class DeliveryUnsound(HandoffError):
    """The delivery can be read, but what it would compute is not what was trained."""

    exit_code = 2


class DeliveryUnreadable(HandoffError):
    """The folder is not a delivery, or holds something that is never executed or unpickled."""

    exit_code = 3


class NotCapturable(DeliveryUnreadable):
    """A model can't be captured as a graph: its forward holds what no graph can say."""


class DeliveryUnreachable(HandoffError):
    """The place that a delivery lies at can't be reached, or doesn't let us in: try again later."""

    exit_code = 5
    is_machine_fault = True


class BlessingRefused(HandoffError):
    """A package was built and is wrong, or could not be shown to be right."""

    exit_code = 4


class BuildCrashed(BlessingRefused):
    """A step that builds or judges a package was killed or crashed: nothing was shown of it."""


class PromotionRefused(BlessingRefused):
    """A version would be worse than what it replaces, take fewer requests, or isn't verified."""


class NightFailed(HandoffError):
    """Some models of a nightly recompile could not be rebuilt; what serves them is as it was."""


class StoreFailed(HandoffError):
    """The object store could not keep or give back an object."""

    exit_code = 5


class StoreUnreachable(StoreFailed):
    """The object store doesn't answer, is full, lets nobody in, or lacks what was seen in it."""

    is_machine_fault = True


class RegistryFailed(HandoffError):
    """The model registry could not record or find a version."""

    exit_code = 5


class NotShownYet(RegistryFailed):
    """The ledger has the change, and what is done after it failed: it can be made up for."""

    model: str = ""
    version: int = 0
    aliases: tuple[str, ...] = ()


class PackageRefused(HandoffError):
    """A pulled package is not what its manifest says, or does not fit this machine."""

    exit_code = 6


class InputsRefused(HandoffError):
    """A call's inputs are not what the model's signature declares; the model can go on."""

    exit_code = 65


ERRORS: dict[str, type[HandoffError]] = {
    kind.__name__: kind
    for kind in (
        UsageProblem,
        KeyUnusable,
        EnvironmentLacking,
        StepCrashed,
        BudgetSpent,
        StepKilled,
        DeliveryUnsound,
        DeliveryUnreadable,
        NotCapturable,
        DeliveryUnreachable,
        BlessingRefused,
        BuildCrashed,
        PromotionRefused,
        NightFailed,
        StoreFailed,
        StoreUnreachable,
        RegistryFailed,
        NotShownYet,
        PackageRefused,
        InputsRefused,
    )
}


def first_line(error: BaseException, limit: int = 300) -> str:
    """Return the first line of an error's message, cut at `limit`; its class where it has none."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0][:limit])


# A letter too many, too few or another one; of short words no two.
_SIMILARITY = 0.66


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return what to do about an unknown `word`: write the known one that it is like.

    One that differs in capitals alone comes first, then one that holds it as a word of several.
    Where it is like none, `otherwise`.
    """
    names = list(known)
    same = [name for name in names if name.casefold() == word.casefold()]
    same += [name for name in names if word in name.split()]
    close = same or get_close_matches(word, names, n=1, cutoff=_SIMILARITY)
    return f"Did you mean {close[0]}?" if close else otherwise


_MOST_NAMES = 12


def format_names(names: Sequence[str]) -> str:
    """Return names in a row, shortened: twelve of them, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(name[:60] for name in names[:_MOST_NAMES]) + (f" and {more} more" * (more > 0))


def suggest_tensor_inputs(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return what to do about a name that is no input's: an argument may hold several tensors.

    Each of those has an input of its own, by a longer name. Else as `did_you_mean` says.
    """
    names = list(known)
    if inside := [one for one in names if one.startswith(f"{name}_")]:
        return f"Give each tensor of {name[:60]} by its own name ({format_names(inside)})"
    return did_you_mean(name, names, otherwise)


def split_expected_got(text: str) -> tuple[str, str]:
    """Return both parts of a message such as `expected a name, got 7`, for a refusal."""
    expected, _, got = text.removeprefix("expected ").rpartition(", got ")
    return (expected, got) if expected else (got, "something else")


def parse_message(text: str) -> tuple[str, str, str]:
    """Return the place, what was expected and what was found in `PLACE: expected A, got B`.

    Of another message all is what was found.
    """
    match = _AT_PLACE.fullmatch(text)
    return (match["place"] or "", match["expected"], match["got"]) if match else ("", "", text)


def attribute_to_machine(error: HandoffError, machine: str) -> HandoffError:
    """Return the error as one that says on which machine it was."""
    place = f"the machine {machine}"
    where = f"{place}, {error.where}" if error.where else place
    return error_from_record({**error.as_record(), "where": where})


def error_from_record(record: dict[str, str]) -> HandoffError:
    """Return the error that `as_record` described; an unknown class gives `HandoffError`."""
    kind = ERRORS.get(record["class"], HandoffError)
    return kind(
        record["what"],
        expected=record["expected"],
        got=record["got"],
        remedy=record["remedy"],
        where=record["where"],
    )
