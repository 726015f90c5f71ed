"""check_names.py and its reader of the glossary find each kind of fault, and nothing in a clean file."""

from __future__ import annotations

import check_names
import pytest
from glossary import read_glossary

GLOSSARY = read_glossary()


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("told", "told"),
        ("_told_ns", "told"),
        ("ToldRows", "told"),
        ("here_ns", "here"),
        ("found", "found"),
        ("_found", "found"),
        ("throw_away_oldest", "throw away"),
        ("of_rank", "of rank"),
        ("letters", "letters"),
    ],
)
def test_a_banned_word_of_a_name_is_reported(name, phrase):
    assert str(GLOSSARY.banned_in_name(name)) == phrase


@pytest.mark.parametrize(
    "name",
    ["dead_letters", "DeadLetterLimit", "found_ranks", "looked_up", "adhered", "own_schemas", "stage", "turnover"],
)
def test_kept_compounds_longer_words_and_parts_of_whole_names_are_clean(name):
    assert GLOSSARY.banned_in_name(name) is None


def test_names_of_test_functions_are_read_as_prose():
    assert str(GLOSSARY.banned_in_test_name("test_nobody_is_late")) == "nobody"
    assert GLOSSARY.banned_in_test_name("test_a_record_refused_by_kafka_is_found_in_each_topic") is None


def test_prose_is_searched_for_words_and_phrases():
    text = "A sink that\nholds nothing up is told; dead letters remain, foretold."
    assert [str(banned) for _, banned in GLOSSARY.banned_in_prose(text)] == ["holds nothing up", "told"]


def test_a_row_with_an_unknown_scope_is_an_error(tmp_path):
    page = tmp_path / "glossary.md"
    page.write_text(
        "## Terms\n\n## Refused words\n\n| a | b | c |\n|---|---|---|\n| `x` | y | nowhere |\n\n## Kept compounds\n"
    )
    with pytest.raises(ValueError, match="nowhere"):
        read_glossary(page)


def test_each_kind_of_name_and_docstrings_are_checked(tmp_path):
    file = tmp_path / "sample.py"
    file.write_text(
        '"""What this is."""\n'
        "import os as mine\n"
        "class Told:\n"
        "    said: int\n"
        "    def tell(self, untold):\n"
        '        """Return whether it is."""\n'
        "        self.unheard = [nobody for nobody in untold]\n"
        "        anew = 1  # glossary: a field of another library\n"
    )
    findings = list(check_names.check_file(GLOSSARY, file))
    assert sorted((finding.line, finding.kind) for finding in findings) == [
        (1, "docstring"),
        (2, "import"),
        (3, "class"),
        (4, "variable"),
        (5, "argument"),
        (5, "function"),
        (7, "attribute"),
        (7, "variable"),
    ]
    assert str(findings[0]).startswith(f"{file}:")
    assert "use emit" in next(str(finding) for finding in findings if finding.kind == "class")


def test_a_module_named_by_a_banned_word_is_reported(tmp_path):
    file = tmp_path / "patience.py"
    file.write_text("")
    assert [finding.kind for finding in check_names.check_file(GLOSSARY, file)] == ["module"]


def test_text_is_checked_where_asked_for(tmp_path):
    file = tmp_path / "sample.py"
    file.write_text('x = f"the broker says {1}"  # nobody reads it\n')
    assert not list(check_names.check_file(GLOSSARY, file))
    findings = check_names.check_file(GLOSSARY, file, text=True)
    assert sorted(str(finding).split("'")[1] for finding in findings) == ["nobody", "says"]


def test_classes_of_one_name_and_modules_of_one_package_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(check_names, "ROOT", tmp_path)
    classes = {
        "streams/a": "Reader",
        "streams/b": "Reader",
        "sinks": "Sink",
        "cli": "Command",
        "infra/kafka": "Kafka",
    }
    for folder, name in classes.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "reader.py").write_text(f"class {name}: ...\n")
        (tmp_path / folder / "main.py").write_text("")
    findings = check_names.check_uniqueness(check_names.python_files([tmp_path]))
    assert sorted((finding.path, finding.kind) for finding in findings) == [
        ("streams/b/reader.py", "class twice"),
        ("streams/b/reader.py", "module twice"),
    ]


def test_the_script_exits_with_one_on_a_finding(tmp_path, capsys):
    file = tmp_path / "sample.py"
    file.write_text("rows = 1\n")
    assert check_names.main([str(file)]) == 0
    file.write_text("told = 1\n")
    assert check_names.main([str(file)]) == 1
    assert f"{file}:1: variable 'told' contains 'told': use" in capsys.readouterr().out
    assert check_names.main(["--summary", str(tmp_path)]) == 1
    assert "1 in all" in capsys.readouterr().out
