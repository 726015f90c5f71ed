"""The check of /dev/null by `make test-kube`, before, between and after its steps."""

import os
from pathlib import Path

import pytest
from support.kube import tools
from support.kube.null_device import check_null


def test_the_device_passes():
    check_null("now")


@pytest.mark.parametrize("replace", [Path.touch, lambda path: path.symlink_to("/dev/zero"), lambda path: None])
def test_what_is_not_the_device_is_named_with_the_moment_and_the_remedy(replace, tmp_path):
    path = tmp_path / "null"
    replace(path)
    with pytest.raises(SystemExit) as ended:
        check_null("after a build", path)
    message = str(ended.value)
    assert message.startswith(f"{path} is no character device 1:3 after a build;")
    assert message.endswith(f"rm -f {path}; mknod -m 666 {path} c 1 3")


def test_the_builder_of_kubernetes_cannot_replace_a_device():
    tools.run("test", "!", "-w", Path(os.devnull).parent, account=tools.builder())
