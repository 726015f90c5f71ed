"""Names what C compilers build for drumline, and its wheels. All else that setuptools needs is in pyproject.toml."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibraries(build_ext):
    """Builds plain shared libraries: they are for no version of Python, which loads them by ctypes."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file of a library, relative to the folder that is built into."""
        return fullname.replace(".", "/") + ".so"


class Wheel(bdist_wheel):
    """A wheel for a platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its binary interface and the platform."""
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": BuildLibraries, "bdist_wheel": Wheel})
