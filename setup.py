"""Names NCCL's profiler plugin as NCCL looks for it. All else that setuptools needs is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_ext import build_ext

PLUGIN = "libnccl-profiler-drumline"


class BuildLibraries(build_ext):
    """Builds the extensions; the plugin is a plain shared library, for no version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file of an extension, relative to the folder that is built into."""
        name: str = super().get_ext_filename(fullname)
        return name[: name.index(PLUGIN) + len(PLUGIN)] + ".so" if PLUGIN in name else name


setup(cmdclass={"build_ext": BuildLibraries})
