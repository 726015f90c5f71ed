"""Published straggler methods over recorded jobs, for `drumline evaluate DIR --compare`.

They follow their descriptions, and lab/evaluate/scoring.py scores them as it scores drumline. Only the evaluate
command loads them; import-linter ensures that they use no streams.
"""
