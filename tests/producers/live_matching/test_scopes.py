"""Open ranges by thread: what a launch is in."""

from drumline.producers.live_matching.scopes import ANY_THREAD, MOST_TEXT, OpenScopes

BEGIN, END = 2, 4
MAIN, AUTOGRAD, LOADER = 1, 2, 3


def test_a_launch_is_in_the_marks_of_the_api_and_the_open_ranges_of_its_thread():
    scopes = OpenScopes()
    scopes.marks([
        (ANY_THREAD, 10, BEGIN, 100, "step 3"), (MAIN, 20, BEGIN, 1, "forward"), (MAIN, 30, BEGIN, 2, "layer;1"),
        (LOADER, 35, BEGIN, 3, "copy"), (MAIN, 40, END, 2, ""), (MAIN, 50, END, 1, ""), (ANY_THREAD, 60, END, 100, ""),
    ])  # fmt: skip
    assert [scopes.path(MAIN, at) for at in (5, 15, 20, 35, 45)] == [
        "", "step 3", "step 3;forward", "step 3;forward;layer,1", "step 3;forward",
    ]  # fmt: skip
    assert scopes.path(LOADER, 36) == "step 3;copy"
    assert scopes.path(MAIN, 70) == "copy", "a range that is still open somewhere"


def test_a_thread_without_ranges_is_in_those_of_the_thread_that_opened_one_last():
    scopes = OpenScopes()
    scopes.marks([(LOADER, 10, BEGIN, 3, "load"), (MAIN, 20, BEGIN, 1, "backward"), (MAIN, 30, END, 1, "")])
    assert scopes.path(AUTOGRAD, 25) == "backward"
    assert scopes.path(AUTOGRAD, 35) == "load"


def test_ranges_that_end_in_another_order_or_thread_or_never_began_are_followed():
    scopes = OpenScopes()
    scopes.marks([(MAIN, 1, BEGIN, 1, "a"), (MAIN, 2, BEGIN, 2, "b"), (LOADER, 3, END, 1, ""), (MAIN, 4, END, 9, "")])
    assert scopes.path(MAIN, 5) == "b"


def test_what_is_over_is_forgotten_and_what_is_open_is_not():
    scopes = OpenScopes()
    for step in range(1_000):
        scopes.mark(MAIN, 2 * step, BEGIN, step, f"step {step}")
        scopes.mark(MAIN, 2 * step + 1, END, step, "")
    scopes.mark(MAIN, 2_000, BEGIN, 5_000, "open")
    scopes.mark(LOADER, 5, BEGIN, 6_000, "x")
    scopes.mark(LOADER, 6, END, 6_000, "")
    scopes.forget(3_000)
    assert scopes.path(MAIN, 3_001) == "open"
    assert len(scopes._threads[MAIN].times) == 1
    assert LOADER not in scopes._threads


def test_a_path_is_bounded_by_its_innermost_ranges():
    scopes = OpenScopes()
    for number in range(100):
        scopes.mark(MAIN, number, BEGIN, number, f"{number:03}" + "x" * 97)
    path = scopes.path(MAIN, 200)
    assert len(path) <= MOST_TEXT
    assert path.split(";")[-1].startswith("099")
    assert {len(name) for name in path.split(";")} == {100}
