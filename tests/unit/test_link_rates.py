"""The table of docs/costs.md is what the cost model says, and its rates are what they are called."""

from benchmarks.scale import link_rates


def test_the_page_has_the_lines_that_the_code_makes():
    page = link_rates.PAGE.read_text(encoding="utf-8").splitlines()
    first = page.index(link_rates.head()[0])
    wanted = [*link_rates.head(), *link_rates.lines(link_rates.DECLARED)]
    assert page[first : first + len(wanted)] == wanted
