"""Kinds of miscompilation that are planted in the C++ which Inductor generates.

The patterns are those of torch 2.15's code; where another one's isn't matched, the run says so.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tests.studies.faults.planting import CodeFault, Source, with_text


def _with_one_lane_less(function: str) -> str:
    return rf"({function}\(\w+, \w+, )static_cast<int64_t>\(11L\)"


def _over_stale_sums(source: Source) -> Source:
    """Let the accumulators of sums keep what they held: of the row before, or the call before."""
    kernel = re.sub(
        r"(?m)^(\s+)((?:float|at::vec::Vectorized<float>) tmp_acc0(?:_vec)? = )",
        r"\1static \2", source.kernel,
    )  # fmt: skip
    return replace(source, kernel=kernel)


def _with_swapped_weights(source: Source) -> Source:
    wrapper = source.wrapper.replace("constants_->at(8)", "constants_->at(-1)")
    wrapper = wrapper.replace("constants_->at(9)", "constants_->at(8)")
    return replace(source, wrapper=wrapper.replace("constants_->at(-1)", "constants_->at(9)"))


def _with_swapped_outputs(source: Source) -> Source:
    wrapper = source.wrapper.replace("output_handles[0] = buf", "output_handles[-1] = buf")
    wrapper = wrapper.replace("output_handles[1] = buf", "output_handles[0] = buf")
    wrapper = wrapper.replace("output_handles[-1] = buf", "output_handles[1] = buf")
    return replace(source, wrapper=wrapper)


def _that_writes_to_its_input(source: Source) -> Source:
    """Let the kernel leave its input with another first element, once it has read all of it."""
    before, end, after = source.kernel.rpartition("    inductor_cpu_integer_div_error_flag = null")
    written = "    const_cast<float*>(in_ptr0)[0] += 1.0f;\n" if end else ""
    return replace(source, kernel=before + written + end + after)


CODE_KINDS: tuple[CodeFault, ...] = (
    CodeFault(
        "tail left out", "What is left over of the last vector is not computed.", "embedded",
        with_text(r"if\(C10_UNLIKELY\(", "if(false && ("),
    ),
    CodeFault(
        "off-by-one tail",
        "The last of the elements left over is not computed.",
        "embedded",
        with_text(
            r"(tmp\d+\.store\(.*), (static_cast<int64_t>\(ks0 \+ .*)\);", r"\1, \2 - 1);"
        ),
    ),
    CodeFault(
        "tail masked one short", "A masked store leaves the last lane out.", "elementwise",
        # What is left over of vectors with 16 lanes, and of those with 8.
        with_text(r"(tmp\d+\.store\(.*, static_cast<int64_t>\((?:11|3)L)\)\);", r"\1 - 1));"),
    ),
    CodeFault(
        "dropped epilogue", "The activation that is fused into a loop is not there.", "elementwise",
        with_text(r"at::vec::clamp_min\((tmp\d+), decltype\(tmp\d+\)\(0\)\)", r"\1"),
    ),
    CodeFault(
        ">= for >", "A comparison takes in equal numbers.", "discrete",
        with_text(r"\((tmp\d+) > (tmp\d+)\)", r"(\1 >= \2)"),
    ),
    CodeFault(
        "branches swapped", "where(c, a, b) is where(c, b, a).", "elementwise",
        with_text(r"blendv\((tmp\d+), (tmp\d+),", r"blendv(\2, \1,"),
    ),
    CodeFault(
        "wrong stride", "A row begins one element earlier for each row before it.", "reductions",
        with_text(r"1003L\*x0", "1002L*x0", count=1),
    ),
    CodeFault(
        "last element dropped", "A sum leaves out the last element of each row.", "reductions",
        with_text(_with_one_lane_less("sum_masked_reduce"), r"\1static_cast<int64_t>(10L)"),
    ),
    CodeFault(
        "empty lanes taken in",
        "A maximum over 11 elements takes the zeros behind them in.",
        "reductions",
        with_text(
            r"(\w+) = max_masked_reduce\((\w+), (\w+), static_cast<int64_t>\(11L\)\)",
            r"\1 = at::vec::maximum(\2, \3)",
        ),
    ),
    CodeFault(
        "minimum for maximum", "A reduction combines by another function.", "reductions",
        with_text(r"at::vec::maximum\(x, y\)", "at::vec::minimum(x, y)"),
    ),
    CodeFault(
        "accumulator not reset", "A sum goes on from the row and the call before.", "reductions",
        _over_stale_sums,
    ),
    CodeFault(
        "fixed batch", "A loop ends at the batch that was traced with.", "elementwise",
        with_text(r"x0<static_cast<int64_t>\(ks0\)", "x0<static_cast<int64_t>(6L)"),
    ),
    CodeFault(
        "batch bounded", "A loop ends at a batch of 32.", "elementwise",
        with_text(r"x0<static_cast<int64_t>\(ks0\)",
                  "x0<std::min<int64_t>(ks0, 32)"),
    ),
    CodeFault(
        "threads share an accumulator", "Each thread writes its sum to the first one's place.",
        "whole-batch", with_text(r"(tmp_acc0_vec_arr)\[tid\] = ", r"\1[0] = "),
    ),
    CodeFault(
        "a thread's part left out", "The parts of all threads but the first are not added.",
        "whole-batch", with_text(r"for \(int tid = 0; tid < \w+; tid\+\+\)",
                                 "for (int tid = 0; tid < 1; tid++)"),
    ),
    CodeFault(
        "weights of another layer", "A norm's weight and bias have changed places.", "attention",
        _with_swapped_weights,
    ),
    CodeFault(
        "swapped outputs", "The first output is given as the second.", "elementwise",
        _with_swapped_outputs,
    ),
    CodeFault(
        "input written to", "The package leaves another input behind than it was given.",
        "elementwise", _that_writes_to_its_input,
    ),
)  # fmt: skip
