"""What a job may call: `import drumline`. All of it is free while nothing is attached.

    drumline.attach()                 start collecting in this process (not needed under `drumline run`)
    drumline.step(n)                  step n begins now
    with drumline.scope("evaluate"):  a named range
    drumline.status()                 what is being done, in words

This is the package `drumline` itself, so nothing is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.producers.attach import attach, scope, status, step

__all__ = ["attach", "scope", "status", "step"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    from drumline.producers import attach as module

    return getattr(module, name)
