"""Messages are whole sentences of one table: a change of one sentence fails, and no test compares parts of one."""

import ast
import re

import pytest

from dpscale.base.errors import DpscaleError, JobError
from tests.messages import (
    ROOT,
    TABLE,
    VARIABLE,
    Messages,
    common,
    exists,
    format_table,
    read,
    refused,
    replaced,
    without,
)

# Errors that are not dpscale's, and tests of which the sentence or the number of refusals follows from the case.
FOREIGN = {"AssertionError", "SystemExit", "pa.ArrowInvalid", "psycopg.Error", "pytest.fail.Exception", "sqlite3.Error",
           "sqlite3.IntegrityError"}  # fmt: skip
VARYING = {
    "tests/cluster/test_straits.py::test_full_disk_is_reported_and_run_resumes": "the write that fails first",
    "tests/cluster/test_straits.py::test_workers_out_of_memory_are_reported_and_run_resumes": "workers that end",
    "tests/cluster/test_suspended.py::test_run_of_suspended_driver_is_submitted_again": "a run may be done before",
    "tests/cluster/test_suspended.py::test_suspended_scheduler_is_lost_and_run_resumes": "the call that fails first",
    "tests/ledger/test_book.py::test_damaged_page_is_refused_on_open_or_verify": "pages of a version of SQLite",
    "tests/ledger/test_server.py::test_server_stop_between_charge_and_commit": "the call that fails first",
    "tests/mechanisms/test_singular_families.py::plan_and_check": "cases that Hypothesis generates",
    "tests/runs/test_handover.py::test_parallel_hashing_detects_change_in_any_file": "a refusal for each file of a run",
    "tests/workload/test_predicates.py::test_day_is_compared_with_every_day_of_a_period_or_refused":
        "thousands of sentences, whose remedy is a rule of the test",
    "tests/workload/test_predicates.py::test_number_denotes_the_code_that_is_written_like_it_and_no_other_one":
        "thousands of sentences, whose remedy is a rule of the test",
}  # fmt: skip

SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.glob("tests/**/*.py"))}
ROWS = """\
tests/a.py::test_a | JobError | a: 3; expected 4; fix it
tests/a.py::test_a | JobError ×2 | b: no file at …; expected a file
tests/a.py::test_cases | JobError | every: case
tests/a.py::test_cases[other] | DpscaleError | a case: its sentence
"""


@pytest.fixture
def messages(tmp_path, monkeypatch):
    """Messages of an example table."""
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "messages.txt").write_text(ROWS)
    return Messages(tmp_path / "messages.txt")


def refuse(messages, *errors):
    """Raise errors one after the other where they are expected."""
    for error in errors:
        with refused(type(error), messages):
            raise error


def functions(text):
    """Functions of a module and methods of its classes."""
    for node in ast.parse(text).body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                yield function


def called_in(function):
    """Names of what a function calls, without their modules."""
    return {ast.unparse(one.func).rpartition(".")[2] for one in ast.walk(function) if isinstance(one, ast.Call)}


def is_generated(function):
    """Return whether Hypothesis generates the cases of a test."""
    return any(re.match(r"(\w+\.)?given\(", ast.unparse(one)) for one in function.decorator_list)


# The table and the tests


def test_rows_are_sorted_and_name_tests_that_exist():
    assert format_table(read(TABLE)) == TABLE.read_text()
    assert [test for test in read(TABLE) if not exists(test)] == []


def test_parts_of_sentences_are_compared_for_the_listed_reasons_alone():
    """An entry without an occurrence is removed."""
    tests, errors = {}, set()
    for path, text in SOURCES.items():
        for function in functions(text) if "match=" in text else []:
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises" and call.keywords:
                    names = set(re.findall(r"[\w.]+", ast.unparse(call.args[0])))
                    errors |= names & FOREIGN
                    if not is_generated(function) and not names <= FOREIGN:
                        tests[f"{path}::{function.name}"] = ast.unparse(call)
    assert set(tests) == set(VARYING), tests
    assert errors == FOREIGN


def test_no_generated_case_is_compared_with_the_table():
    """Hypothesis generates other cases in every run."""
    generated = []
    for path, text in SOURCES.items():
        if "refused(" in text and "given(" in text:
            names, last = {"refused"}, set()
            while names != last:  # helpers that call it, directly or by way of others
                last, names = names, names | {one.name for one in functions(text) if names & called_in(one)}
            generated += [f"{path}::{one.name}" for one in functions(text) if one.name in names and is_generated(one)]
    assert generated == []


# `refused`


def test_rows_agree_in_their_order(messages):
    messages.start("tests/a.py::test_a")
    refuse(messages, JobError("a", "3", "4", "fix it"), JobError("b", "no file at /x", "a file"))
    refuse(messages, JobError("b", "no file at /y/z", "a file"))
    messages.end()


def test_changed_sentence_fails_and_shows_the_difference(messages):
    messages.start("tests/a.py::test_a")
    with pytest.raises(AssertionError) as caught:
        refuse(messages, JobError("a", "3", "5", "fix it"))
    assert str(caught.value).split("\n") == [
        "refusal 1 of tests/a.py::test_a differs from its row:",
        "- JobError | a: 3; expected 4; fix it",
        "?                           ^",
        "",
        "+ JobError | a: 3; expected 5; fix it",
        "?                           ^",
        "",
        "if the sentence is right, write it: python -m tests.messages tests/a.py::test_a",
    ]


@pytest.mark.parametrize("error", [
    DpscaleError("a", "3", "4", "fix it"), JobError("a", "3", "4", "fix it."), JobError("b", "no file at x", "a file"),
])  # fmt: skip
def test_other_class_other_end_or_other_order_fails(messages, error):
    messages.start("tests/a.py::test_a")
    with pytest.raises(AssertionError):
        refuse(messages, error)


def test_missing_row_names_the_command_that_writes_it(messages):
    messages.start("tests/a.py::test_new[case]")
    with pytest.raises(AssertionError) as caught:
        refuse(messages, JobError("a", "3\n4"))
    assert str(caught.value) == (
        "refusal 1 of tests/a.py::test_new[case] has no row:\n  JobError | a: 3\\n4\n"
        "if the sentence is right, write it: python -m tests.messages tests/a.py::test_new"
    )


def test_row_without_a_refusal_fails(messages):
    messages.start("tests/a.py::test_a")
    refuse(messages, JobError("a", "3", "4", "fix it"))
    with pytest.raises(AssertionError):
        messages.end()


def test_case_without_rows_has_those_of_all_cases(messages):
    for case, error in (("one", JobError("every", "case")), ("other", DpscaleError("a case", "its sentence"))):
        messages.start(f"tests/a.py::test_cases[{case}]")
        refuse(messages, error)
        messages.end()


def test_another_error_is_raised_and_no_error_fails(messages):
    with pytest.raises(ZeroDivisionError), refused(JobError, messages):
        1 / 0  # noqa: B018
    with pytest.raises(pytest.fail.Exception), refused(JobError, messages):
        pass


# Writing


def raised(act):
    """Return the error of a function."""
    try:
        act()
    except Exception as error:
        return error


def test_texts_of_machine_and_libraries_are_left_out(tmp_path):
    def read_number():
        try:
            int("3x")
        except ValueError as cause:
            raise JobError("a", f"{tmp_path}/a/b.csv and {ROOT}/c at tcp://127.0.0.1:80 ({cause})") from cause

    def read_own():
        try:
            raise ValueError("a sentence of dpscale")
        except ValueError as cause:
            raise JobError("a", f"digest 0123456789abcdef, {cause}") from cause

    for act, sentence in (
        (read_number, "a: …/a/b.csv and …/c at … (…)"), (read_own, "a: digest …, a sentence of dpscale"),
    ):  # fmt: skip
        error = raised(act)
        assert without(error, str(error)) == sentence


def test_parts_that_differ_between_runs_are_wildcards():
    assert common("a: 3.14 of 10 in x; fix it", "a: 2.7 of 10 in yz; fix it") == "a: … of 10 in …; fix it"
    assert common("a sentence", "a sentence") == "a sentence"


def test_rows_are_replaced_where_they_no_longer_agree():
    old = {"t::a": (("E", "an old …"),), "t::b": (("E", "old"),), "t::c": (("E", "gone"),), "t::d": (("E", "stays"),)}
    run = {"t::a": [("E", "an old text")], "t::b": [("E", "new 1")], "t::c": [], "t::e[x]": [("E", "same")],
           "t::e[y]": [("E", "same")], "t::f[x]": [("E", "same")], "t::f[y]": []}  # fmt: skip
    assert replaced(old, [run, run | {"t::b": [("E", "new 2")]}], run) == {
        "t::a": (("E", "an old …"),), "t::b": (("E", "new …"),), "t::d": (("E", "stays"),), "t::e": (("E", "same"),),
        "t::f[x]": (("E", "same"),),
    }  # fmt: skip


def test_refusals_that_differ_in_number_are_not_written(capsys):
    old = {"t::a": (("E", "same"),)}
    assert replaced(old, [{"t::a": []}, {"t::a": [("E", "other")]}], {"t::a"}) == old
    assert "t::a: the refusals differ" in capsys.readouterr().out


def test_changed_case_gets_its_own_rows():
    old = {"t::a": (("E", "same"),)}
    run = {"t::a[x]": [("E", "same")], "t::a[y]": [("E", "other")]}
    assert replaced(old, [run, run], run) == {"t::a": (("E", "same"),), "t::a[y]": (("E", "other"),)}


def test_rows_of_a_case_that_failed_stay_and_those_of_a_removed_one_do_not():
    old = {"t::a[failed]": (("E", "1"),), "t::a[passed]": (("E", "2"),), "t::a[removed]": (("E", "3"),)}
    run = {"t::a[passed]": [("E", "4")]}
    assert replaced(old, [run, run], {"t::a[failed]", "t::a[passed]"}) == {
        "t::a[failed]": (("E", "1"),), "t::a[passed]": (("E", "4"),)}  # fmt: skip
