"""The arithmetic of the benchmarks; nothing here is timed."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Target, ratio
from benchmarks.process import Taken, run_python
from benchmarks.report import BY_HAND, PLAN, STEP, WITHOUT_SMOKE, Measured, Whole, document, table, targets
from tests.lab import host


def taken(seconds: float, peak: int = 100_000_000) -> Taken:
    return Taken(seconds, seconds / 2, peak, "")


def measured(**sizes: int) -> Measured:
    """Two rounds; the second is twice as slow in everything, and the base called `large` in the tool's part."""
    slower = {base: 3.0 if base == "large" else 1.0 for base in sizes}
    return Measured(
        bytes=sizes,
        taken={
            base: {
                BY_HAND: [taken(0.5), taken(1.0)],
                WITHOUT_SMOKE: [taken(4.0 * slower[base]), taken(8.0 * slower[base])],
                PLAN: [taken(2.0 * slower[base]), taken(4.0 * slower[base], peak=400_000_000)],
            }
            for base in sizes
        },
        pairs={base: [(0.2, 0.5), (0.4, 1.0), (0.3, 0.1)] for base in sizes},
        steps={base: [{"plan": 9.0, "load": 0.1, "tag": 0.1}] for base in sizes},
        whole={base: Whole(taken(30.0), taken(3.0)) for base in sizes},
        helps=[taken(0.1), taken(0.1)],
        load_average=(0.5, 1.0),
        engine="0",
        client=True,
    )


def test_the_median_lies_between_the_quartiles_and_one_round_has_no_spread():
    assert Figure.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Figure(3.0, 2.0, 4.0, 5)
    assert Figure.of([2.0]) == Figure(2.0, 2.0, 2.0, 1)
    with pytest.raises(ValueError, match="nothing was measured"):
        Figure.of([])


def test_a_ratio_is_taken_within_a_round_so_that_a_slow_round_does_not_show():
    assert ratio([1.0, 10.0, 2.0], [2.0, 20.0, 4.0]) == Figure(0.5, 0.5, 0.5, 3)
    with pytest.raises(ValueError, match="longer"):
        ratio([1.0], [1.0, 2.0])


def test_the_build_step_is_compared_with_the_docker_build_of_its_own_pair():
    found = measured(small=1, large=7)
    assert found.seconds("small", STEP) == [0.2, 0.4, 0.3]
    assert found.to_docker_build("small", STEP).median == pytest.approx(0.4)
    assert found.to_docker_build("small", PLAN).median == pytest.approx(4.0)


def test_growth_is_from_the_smallest_to_the_largest_base_however_they_are_ordered():
    found = measured(large=7, small=1)
    growth = found.growth(PLAN)
    assert growth is not None
    assert growth.median == 3.0
    assert measured(small=1).growth(PLAN) is None


def test_a_target_is_missed_above_its_limit_and_the_worst_base_decides():
    found = {target.text: target for target in targets(measured(small=1, large=7))}
    assert found["plan, warm cache"].value == 9.0
    assert not found["plan, warm cache"].is_met
    assert not found["growth of plan with the base"].is_met
    assert found["growth of build step with the base"].is_met
    assert found["peak memory of the tool's own process"].value == 400.0
    assert Target("x", 1.0, 1.0, "", True).is_met


def test_the_table_says_ratios_before_seconds_and_the_document_names_its_schema():
    text = table(measured(small=1, large=7))
    assert text.index("Ratios") < text.index("Seen here")
    assert "MISSED plan, warm cache" in text
    assert document(measured(small=1))["schema"] == "overlay.benchmark/1"


def test_the_peak_is_the_programs_own_and_not_that_of_the_process_that_started_it(tmp_path):
    held = bytearray(b"x") * (200 << 20)
    found = run_python("platform:machine", [], {}, cwd=tmp_path)
    assert 0 < found.peak_bytes < 100 << 20 < len(held)


def test_a_program_that_fails_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(host.LabError, match="no_such_function"):
        run_python("builder:no_such_function", [], {}, cwd=tmp_path)
