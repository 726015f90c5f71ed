"""Published straggler methods over recorded jobs, beside ours: `drumline evaluate DIR --compare`.

Written from their descriptions, judged by the very judge that judges ours (infra/evaluation.py). Not production code:
import-linter and tests/test_imports.py see to it that only the evaluate command loads it, and that it sees no streams.
"""
