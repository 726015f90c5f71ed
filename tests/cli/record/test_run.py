"""`drumline run`: its effect on a command and on the Python processes below it."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.torch_stub import TORCH
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import RingSettings, SpoolSettings
from drumline.infra.config.unknown_variables import SPOOL
from drumline.producers import launcher
from drumline.producers.agent.cursor import Cursor
from drumline.producers.collector import marks, torch_hooks
from drumline.producers.doctor import spool_checks as checks_spool
from drumline.producers.identity import lacks_shared_run, missing_run_scope
from drumline.producers.launcher import (
    HOOK,
    BadLaunch,
    LaunchOptions,
    environment,
    misfits,
    script_name,
    unwritable,
    without_rings,
)
from drumline.producers.spool.location import make_rings


class Optimizer:
    pass


@pytest.fixture
def packages(tmp_path):
    """A folder with a torch that does nothing, and a sitecustomize."""
    for name, text in TORCH.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "packages"


def under(packages, script, python=sys.executable, **options):
    inherited = {**os.environ, "PYTHONPATH": str(packages), "DRUMLINE_QUIET": "0"}
    variables = environment(inherited, [python, "-c", script], LaunchOptions(**{"policy": "always", **options}))
    make_rings(variables)
    command = [python, "-c", textwrap.dedent(script)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_a_python_that_imports_no_torch_loads_nothing_of_drumline(packages):
    script = (
        "import sys; print(sorted(m for m in sys.modules if m.startswith('drumline') or m in ('ctypes', 'socket')))"
    )
    done = under(packages, script)
    assert done.stdout == "their own sitecustomize\n['drumline_hook']\n"
    assert done.stderr == ""


def test_a_tool_whose_python_is_too_old_has_its_own_sitecustomize_and_nothing_of_drumline(packages):
    for file in [*packages.glob("sitecustomize.py"), None]:
        script = """
            import sys
            sys.version_info = (2, 7)
            for name in ("sitecustomize", "drumline_hook"): del sys.modules[name]
            path = sys.path[:]
            import sitecustomize
            print("drumline_hook" in sys.modules, sys.path == path)
        """
        done = under(packages, script)
        printed = ["their own sitecustomize"] * 2 if file else []
        assert done.stdout.splitlines() == [*printed, "False True"]
        assert done.stderr == ""
        if file:
            file.unlink()
    text = (HOOK / "sitecustomize.py").read_text()
    assert not re.search(r"f\"|:=|->|__future__", text), "what Python 2 reads too"


def test_packages_of_another_python_in_pythonpath_keep_no_job_from_starting(tmp_path):
    for name in ("numpy", "click", "typing_extensions"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('built for another Python')")
    command = [sys.executable, "-m", "drumline.cli.main", "run", "--spool", str(tmp_path / "spool"), "--"]
    script = "import os; print(os.environ['PYTHONPATH'])"
    inherited = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, sys.executable, "-c", script], env=inherited, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HOOK}{os.pathsep}{tmp_path}\n", "")


def test_without_the_other_variables_nothing_is_recorded_under_a_wrong_name(packages):
    script = """
        import os
        for name in list(os.environ):
            if name.startswith("DRUMLINE_"): del os.environ[name]
        import torch; torch.use_cuda(); print("trained")
    """
    done = under(packages, script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "trained")
    assert done.stderr.startswith("drumline: not attached: drumline run's PYTHONPATH is set")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("before", [
    "import importlib.util; assert importlib.util.find_spec('torch')",  # transformers: is there a torch?
    "import sys, importlib; sys.modules.pop('sitecustomize'); importlib.import_module('sitecustomize')",  # ddtrace
])  # fmt: skip
def test_torch_is_met_once_whatever_searched_for_it_before(packages, before):
    done = under(packages, f"{before}\nimport torch; print(len(torch.cuda.queued))")
    assert done.stdout.splitlines()[-1] == "1"
    assert done.stderr == ""


@pytest.mark.parametrize(("stderr", "warning"), [
    ("sys.stderr", "drumline: not attached: AttributeError: read-only\n"),
    ("None", ""),  # print would take that for stdout
    ("open(os.devnull)", ""),  # cannot be written
])  # fmt: skip
@pytest.mark.parametrize("quiet", [False, True])
def test_a_torch_that_cannot_be_followed_is_imported_all_the_same(packages, stderr, warning, quiet):
    script = (
        f"import os, sys; sys.stderr = {stderr}\n"
        + """if True:
        import importlib.machinery
        class Loader(importlib.machinery.SourceFileLoader):
            def __setattr__(self, name, value):
                if name == "exec_module": raise AttributeError("read-only")
                super().__setattr__(name, value)
        class Finder:
            def find_spec(self, name, path=None, target=None):
                found = importlib.machinery.PathFinder.find_spec(name, path) if name == "torch" else None
                if found: found.loader = Loader(name, found.origin)
                return found
        sys.meta_path.insert(1, Finder())
        import torch
        print("imported", len(torch.cuda.queued))
    """
    )
    done = under(packages, script, quiet=quiet)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["their own sitecustomize", "imported 0"])
    assert done.stderr == ("" if quiet else warning)


def test_another_tools_variables_stay_as_they_are(packages):
    library = packages / "nvidia" / "cu13" / "lib" / "libcupti.so.13"
    library.parent.mkdir(parents=True)
    library.write_text("")
    for name in ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH"):
        script = f"""
            import os; os.environ["{name}"] = "/opt/nsight/libToolsInjection64.so"
            import torch; torch.use_cuda()
            print(os.environ["{name}"], os.environ.get("NVTX_INJECTION64_PATH"))
        """
        done = under(packages, script)
        same, nvtx = done.stdout.splitlines()[-1].split()
        assert same == "/opt/nsight/libToolsInjection64.so"
        assert nvtx == (same if name.startswith("NVTX") else "None")
        assert f"{name} is set: another profiler" in done.stderr
    # A libcupti that is not loaded yet, as below a process of drumline: no other tool, so it is tried.
    done = under(packages, "import torch; torch.use_cuda()")
    assert "another profiler" not in done.stderr
    assert f"{library}: " in done.stderr


def test_torch_without_cuda_use_attaches_nothing(packages):
    done = under(packages, "import torch, threading; print(threading.active_count(), len(torch.cuda.queued))")
    assert done.stdout.splitlines()[1:] == ["1 1"]
    assert done.stderr == ""


def test_where_it_cannot_attach_the_job_goes_on_and_there_is_one_warning(packages):
    script = """
        import sys
        sys.path[:] = [path for path in sys.path if not path.endswith("site-packages")]  # where a libcupti may lie
        import torch; torch.use_cuda(); torch.use_cuda()
        print('trained'); raise SystemExit(3)
    """
    done = under(packages, script)
    assert done.returncode == 3
    assert done.stdout.splitlines()[1:] == ["trained"]
    assert done.stderr.startswith("drumline: not attached: no libcupti")
    assert under(packages, script, quiet=True).stderr == ""


def test_the_jobs_environment_needs_no_drumline(packages, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    missing = subprocess.run([python, "-c", "import drumline"], capture_output=True, check=False, cwd=tmp_path)
    assert missing.returncode == 1
    script = """
        import drumline; drumline.step(1)
        import torch; torch.use_cuda()
        with drumline.scope("evaluate"): print('trained', drumline.status()[:12])
    """
    done = under(packages, script, python)
    assert done.stdout.splitlines()[1:] == ["trained not attached"]
    assert done.stderr.startswith("drumline: not attached: no libcupti")


def test_what_the_api_offers_does_nothing_and_loads_little_where_nothing_is_attached():
    script = """
        import sys, threading, drumline
        drumline.step(1)
        @drumline.scope("evaluate")
        def evaluate(): drumline.step(2)
        evaluate()
        with drumline.scope("evaluate"): evaluate()
        print([name for name in sys.modules if name.startswith("drumline.")])
        print(drumline.status(), threading.active_count(), "numpy" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\nnot attached 1 False\n", "")


def test_pytorchs_profiler_has_cupti_for_itself_and_optimizers_mark_steps(monkeypatch):
    seen = []
    attachment = SimpleNamespace(
        collector=SimpleNamespace(
            yield_to=lambda name: seen.append("yielded"), resume_after=lambda name: seen.append("resumed")
        ),
    )
    monkeypatch.setattr(torch_hooks.attach, "attached", lambda: attachment)
    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    module = SimpleNamespace(**{name: (lambda *_, name=name: seen.append(name)) for name in names})
    torch_hooks.profiler(module)
    for name in names:
        getattr(module, name)("configuration")
    assert seen == ["yielded", names[0], "yielded", names[1], names[2], "resumed"]
    seen.clear()
    monkeypatch.setattr(marks, "decoder", lambda flags, number, name: seen.append((flags, name)))
    stepped, first, second = torch_hooks._Steps(), Optimizer(), Optimizer()
    for optimizer in (first, second, first):  # a second optimizer makes no steps
        stepped(optimizer, (), {})
    assert seen == [(2, "optimizer step 0"), (4, ""), (2, "optimizer step 1")]
    del first, optimizer
    stepped(second, (), {})
    assert seen[3:] == [(4, ""), (2, "optimizer step 2")], "the first one is no more"


def test_a_profiler_that_runs_before_cuda_is_used_keeps_cupti(monkeypatch):
    profilers, module = [], SimpleNamespace(_prepare_profiler=print, _enable_profiler=print, _disable_profiler=print)
    monkeypatch.setenv("DRUMLINE_PYTHON", sys.executable)
    monkeypatch.setattr(torch_hooks.attach, "attach", lambda active_profiler: profilers.append(active_profiler))
    torch_hooks.profiler(module)
    torch_hooks.cuda_used()
    module._prepare_profiler()
    torch_hooks.cuda_used()
    module._disable_profiler()
    torch_hooks.cuda_used()
    assert profilers == ["", torch_hooks.PROFILER, ""]


def test_torch_distributed_is_asked_for_the_rank_once_it_is_there(monkeypatch):
    ready = []
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: bool(ready), get_rank=lambda: 3, get_world_size=lambda: 4
    )
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert torch_hooks.place() == {}
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert torch_hooks.place() == {}
    ready.append(1)
    assert torch_hooks.place() == {"rank": 3, "world_size": 4}


def test_the_command_takes_our_place():
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--job", "j", "--", sys.executable, "-c"]
    script = (
        "import os, sys; print(os.environ['DRUMLINE_JOB'], os.environ['PYTHONPATH'].split(os.pathsep)[0]); sys.exit(9)"
    )
    done = subprocess.run([*command, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (9, f"j {HOOK}\n", "")
    closed = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *command[:-2], "sh", "-c", "exit 9"]
    assert subprocess.run(closed, check=False).returncode == 9, "a daemon's child"
    ranked = {**os.environ, "RANK": "1"}
    done = subprocess.run([*command, script], env=ranked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, f"j {HOOK}\n")
    assert "--run" in done.stderr


@pytest.mark.parametrize("below", ["", "below"])
def test_a_spool_that_cannot_be_written_is_reported_before_the_command_runs(tmp_path, below):
    (tmp_path / "file").write_text("")
    root = str(tmp_path / "file" / below)
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--spool", root]
    for quiet, wanted in ([], 1), (["--quiet"], 0):
        done = subprocess.run([*command, *quiet, "--", "echo", "runs"], capture_output=True, text=True, check=True)
        assert done.stdout == "runs\n"
        warning = done.stderr.splitlines()
        assert len(warning) == wanted
        assert all(f"{tmp_path / 'file'} is no folder" in line and "--spool" in line for line in warning)


def test_a_command_whose_rings_cannot_be_written_runs_with_one_warning_on_stderr(tmp_path, monkeypatch):
    rings = tmp_path / ".rings"
    rings.symlink_to(tmp_path)
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--spool", tmp_path, "--policy", "light"]
    for quiet, wanted in ([], 1), (["--quiet"], 0):
        done = subprocess.run([*command, *quiet, "--", "echo", "runs"], capture_output=True, text=True, check=True)
        assert (done.stdout, len(done.stderr.splitlines())) == ("runs\n", wanted)
        assert done.stderr.count(f"NCCL's operations will not be recorded: {rings} is no folder") == wanted
    rings.unlink()

    def reason(policy="light", **inherited):
        return without_rings(environment(inherited, ["job"], LaunchOptions(policy=policy, spool=str(tmp_path))))

    assert reason() == reason("always") == ""
    assert reason(NCCL_PROFILER_PLUGIN="STATIC_PLUGIN") == ""
    rings.mkdir()
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert reason("auto") == f"{rings} may not be written: chmod 1777 {rings}"
    monkeypatch.setattr(launcher.library, "path", lambda: None)
    assert "C compiler" in reason()
    assert reason("always") == ""


def test_a_spool_that_can_be_made_is_no_reason_for_a_warning(tmp_path, monkeypatch):
    assert unwritable(tmp_path / "new" / "spool") == ""
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert f"mkdir -m 1777 {tmp_path / 'new'}" in unwritable(tmp_path / "new")
    assert "mkdir" in checks_spool.spool(tmp_path, 1 << 30).fix


@pytest.mark.parametrize("served", [False, True])
def test_a_person_whose_spool_has_no_agent_gets_the_command(tmp_path, served):
    near, far = pty.openpty()
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--spool", str(tmp_path), "--policy", "off"]
    if served:
        cursor = Cursor(tmp_path)
    try:
        done = subprocess.run([*command, "--", "echo", "runs"], stderr=far, stdout=subprocess.PIPE, text=True)
    finally:
        os.close(far)
        if served:
            cursor.close()
    with suppress(OSError), os.fdopen(near) as terminal:  # its end is an error
        output = terminal.readline()
        assert not served
        assert "drumline run --local" in output
        assert str(tmp_path) in output
    assert done.stdout == "runs\n"


def test_bad_options_and_commands_are_reported():
    def code(*arguments):
        command = [sys.executable, "-m", "drumline.cli.app", "run", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stderr.startswith("drumline run: ")
        return done.returncode

    assert code("--policy", "sometimes", "--", "true") == 2
    assert code("--polcy", "off", "--", "true") == 2
    assert code("--", "") == 2
    assert code("--", "no-such-command") == 127


def test_the_environment_of_a_command():
    variables = environment(
        {"PYTHONPATH": "/mine"}, ["torchrun", "train.py"], LaunchOptions(labels=["a=b"], spool="/spool", run="r")
    )
    assert variables["PYTHONPATH"] == f"{HOOK}{os.pathsep}/mine"
    assert (variables["DRUMLINE_PACKAGES"], variables["DRUMLINE_LABELS"]) == ("/mine", "a=b")
    assert (variables["DRUMLINE_JOB"], variables["DRUMLINE_RUN"], variables["DRUMLINE_SPOOL__ROOT"]) == (
        "train",
        "r",
        "/spool",
    )
    assert "DRUMLINE_JOB" not in environment({"SLURM_JOB_NAME": "s"}, ["x.py"])
    for label in ("a", "=b", "a=b,c"):
        with pytest.raises(BadLaunch):
            environment({}, ["x"], LaunchOptions(labels=[label]))


@pytest.mark.parametrize(("name", "value", "warning"), [
    ("DRUMLINE_SPOOL__MAX_MB", "32MB", "DRUMLINE_SPOOL__MAX_MB: '32MB': a number is needed, at least 4"),
    ("DRUMLINE_SPOOL__MAX_MB", "nan", "DRUMLINE_SPOOL__MAX_MB: 'nan': a number"),
    ("DRUMLINE_COLLECT__BUFFER_MB", "1", "DRUMLINE_COLLECT__BUFFER_MB: '1': a number is needed, at least 4"),
    ("DRUMLINE_COLLECT__BUFFER_MB", "inf", "DRUMLINE_COLLECT__BUFFER_MB: 'inf': a number"),
    ("DRUMLINE_COLLECT__POLICY", "sometimes", "DRUMLINE_COLLECT__POLICY: 'sometimes' is no policy: light"),
    ("DRUMLINE_COLLECT__POLCY", "off", "DRUMLINE_COLLECT__POLCY: no such setting (DRUMLINE_COLLECT__POLICY?)"),
    ("DRUMLINE_SPOOL__MAXMB", "4", "DRUMLINE_SPOOL__MAXMB: no such setting (DRUMLINE_SPOOL__MAX_MB?)"),
])  # fmt: skip
def test_a_variable_that_is_wrong_is_reported_and_does_not_keep_the_job_from_running(name, value, warning):
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--", "echo", "it runs"]
    done = subprocess.run(command, env={**os.environ, name: value}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "it runs\n")
    assert done.stderr.startswith(f"drumline run: {warning}")
    assert done.stderr.count("\n") == 1
    if name in misfits({name: value}) and "BUFFER" in name:
        assert name not in environment({name: value}, ["x"]), "the default is taken"


@pytest.mark.parametrize(("users", "plugin", "chain"), [
    (None, "ours", "libnccl-profiler.so"),  # what NCCL looks for without a name
    ("", "ours", "libnccl-profiler.so"),
    ("inspector", "ours", "inspector"),
    ("/opt/libnccl-profiler-x.so", "ours", "/opt/libnccl-profiler-x.so"),
    ("None", "ours", None),
    ("static_plugin", "ours", "static_plugin"),  # linked into the job
])  # fmt: skip
def test_nccl_loads_drumlines_plugin_and_that_one_the_users(monkeypatch, users, plugin, chain):
    monkeypatch.setattr(launcher.library, "path", lambda: "ours")
    inherited = {} if users is None else {"NCCL_PROFILER_PLUGIN": users}
    chosen = environment(inherited, ["x"], LaunchOptions(policy="light", spool="/spool"))
    assert (chosen["NCCL_PROFILER_PLUGIN"], chosen.get("DRUMLINE_RINGS__CHAIN")) == (plugin, chain)
    assert chosen.get("DRUMLINE_RINGS__FOLDER") == ("/spool/.rings" if plugin == "ours" else None)
    below = environment(chosen, ["x"], LaunchOptions(policy="auto", spool="/other"))
    assert (below["NCCL_PROFILER_PLUGIN"], below.get("DRUMLINE_RINGS__CHAIN")) == (plugin, chain), "not ours to ours"
    for policy in ("always", "off"):
        without = environment(chosen, ["x"], LaunchOptions(policy=policy))
        assert without["NCCL_PROFILER_PLUGIN"] == (users or "libnccl-profiler.so").replace("None", "none")
        assert "DRUMLINE_RINGS__CHAIN" not in without
    monkeypatch.setattr(launcher.library, "path", lambda: None)
    assert environment(inherited, ["x"], LaunchOptions(policy="light")).get("NCCL_PROFILER_PLUGIN") == users


@pytest.mark.parametrize("policy", ["light", "auto"])
def test_a_light_job_marks_its_steps_in_a_ring_and_has_neither_cupti_nor_a_decoder(packages, tmp_path, policy):
    script = """
        import os, sys, threading, torch
        torch.use_cuda()
        import drumline
        for number in range(3): drumline.step(number)
        print(drumline.status(), threading.active_count(), "libcupti" in open("/proc/self/maps").read())
    """
    done = under(packages, script, policy=policy, spool=str(tmp_path / "spool"))
    assert (done.stdout.splitlines()[-1], done.stderr) == (f"{policy} 1 False", "")
    (ring,) = (tmp_path / "spool" / ".rings").iterdir()
    header = memoryview(ring.read_bytes()[:128]).cast("Q")
    written, step = header[5], header[12]
    assert (written, step) == (3, 2)
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [".rings"]


@pytest.mark.parametrize("policy", ["light", "auto"])
def test_a_forked_data_loader_that_marks_gets_no_ring_and_no_window_of_cupti(packages, tmp_path, policy):
    spool = tmp_path / "spool"
    script = f"""
        import os, pathlib, torch
        torch.use_cuda()
        import drumline
        from drumline.producers.collector import marks
        drumline.step(0)
        pathlib.Path({str(spool)!r}, "policy").write_text("always")
        marks._scan_at = 0.0
        child = os.fork()
        if not child:
            with drumline.scope("load"): drumline.step(1)
            print(drumline.status(), marks.at_mark, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = under(packages, script, policy=policy, spool=str(spool))
    assert ("not attached: child of a fork None" in done.stdout.splitlines(), done.stderr) == (True, "")
    assert len(list((spool / ".rings").iterdir())) == 1


def test_a_job_without_a_chosen_policy_is_recorded_by_nccls_plugin_and_may_be_given_windows_of_cupti(monkeypatch):
    monkeypatch.setattr(launcher.library, "path", lambda: "ours")
    chosen = environment({}, ["x"], LaunchOptions(spool="/spool"))
    assert (chosen["DRUMLINE_COLLECT__POLICY"], chosen["NCCL_PROFILER_PLUGIN"]) == ("auto", "ours")
    assert environment({"DRUMLINE_COLLECT__POLICY": "rollup"}, ["x"])["DRUMLINE_COLLECT__POLICY"] == "rollup"


def test_an_option_makes_up_for_a_policy_of_the_environment_that_is_none():
    chosen = environment({"DRUMLINE_COLLECT__POLICY": "x"}, ["y"], LaunchOptions(policy="off"))
    assert chosen["DRUMLINE_COLLECT__POLICY"] == "off"


def test_what_jobs_read_of_the_settings_is_known():
    spool = {f"DRUMLINE_SPOOL__{name.upper()}" for name in SpoolSettings.model_fields}
    rings = {f"DRUMLINE_RINGS__{name.upper()}" for name in RingSettings.model_fields}
    assert spool | rings | {"DRUMLINE_HOST"} == set(SPOOL)


@pytest.mark.parametrize(("variables", "lacks_run"), [
    ({}, False),
    ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, True),
    ({"RANK": "0", "TORCHELASTIC_RUN_ID": "abc"}, False),
    ({"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "n"}, False),
    ({"PMI_RANK": "1"}, True),
    ({"PMI_RANK": "1", "DRUMLINE_RUN": "mine"}, False),
    ({"MV2_COMM_WORLD_RANK": "1"}, True),
])  # fmt: skip
def test_ranks_that_would_make_up_runs_of_their_own_are_reported(variables, lacks_run):
    assert lacks_shared_run(variables) == lacks_run


@pytest.mark.parametrize(("variables", "scope"), [
    ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "node"),
    ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}, "node"),
    ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "abc"}, ""),
    ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "DRUMLINE_RUN": "mine"}, ""),
    ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, ""),
    ({"WORLD_SIZE": "8"}, ""),
    ({"WORLD_SIZE": "8", "DRUMLINE_MINTED_RUN": ""}, "rank"),
    ({"WORLD_SIZE": "1", "DRUMLINE_MINTED_RUN": ""}, ""),
    ({}, ""),
])  # fmt: skip
def test_nodes_that_torchrun_names_no_run_for_are_reported(variables, scope):
    assert missing_run_scope({"DRUMLINE_MINTED_RUN": "made-here", **variables}) == scope


def test_a_job_is_called_after_what_it_runs():
    assert script_name(["torchrun", "--nproc-per-node", "8", "src/train.py", "--x", "y.py"]) == "train"
    assert script_name(["python", "-m", "vllm.entrypoints.api"]) == "vllm.entrypoints.api"
    assert script_name(["/usr/bin/thing", "-m"]) == "thing"
    assert Path(HOOK, "sitecustomize.py").is_file()
