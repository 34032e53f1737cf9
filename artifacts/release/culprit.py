"""What makes a refused package wrong, in parts: what the search for it could name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Culprit:
    """What a package is wrong by, as far as it was found; what wasn't is empty.

    `operator` was seen to be wrong when it is compiled alone, and `where` is its line in the
    training code, or else in `module.py`. Without the recipe's `options`, or without the pass
    `made_by`, the package is right, and without `part` of the compiler the operator. `lacks_room`
    says that nothing is wrong but the tolerance, which is narrower than eager's own rounding.
    `script` is the file that reproduces the fault.
    """

    operator: str = ""
    where: str = ""
    options: tuple[str, ...] = ()
    made_by: str = ""
    part: str = ""
    lacks_room: bool = False
    script: str = ""

    @property
    def remedy(self) -> str:
        """What its owner can do about it; '' where nothing was named."""
        if self.lacks_room:
            return "Agree on a tolerance that has room for eager's own rounding"
        if self.made_by:
            return (
                f'Leave the pass {self.made_by} out of the recipe (broken_passes = "leave out" '
                "does it), or mark it 'intended = true' if what it changes is meant"
            )
        if self.options:
            several = "options" if len(self.options) > 1 else "option"
            return f"Take the {several} {', '.join(self.options)} out of the recipe"
        if not self.operator:
            return ""
        place = f" at {self.where}" if self.where else ""
        report = ""
        if self.script:
            report = ". The compiler has a bug: the script is what a PyTorch issue needs"
        return f"Write {self.operator}{place} in another way{report}"
