"""A module named torch for tests of the start-up hook."""

TORCH = {
    "torch/__init__.py": """
        import importlib
        class version: cuda = "13.0"
        class cuda:
            queued = []
            _lazy_call = staticmethod(queued.append)
        for name in ("autograd", "autograd.profiler", "optim", "optim.optimizer"):
            importlib.import_module("torch." + name)
        def use_cuda():
            for call in cuda.queued: call()
        """,
    "torch/autograd/__init__.py": "",
    "torch/autograd/profiler.py": "_prepare_profiler = _enable_profiler = _disable_profiler = print",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": "def register_optimizer_step_post_hook(hook): pass",
    "sitecustomize.py": "print('their own sitecustomize')",
}
