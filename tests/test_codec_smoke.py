import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.model import has_schema, model
from drumline.schemas.topics import Topic


def test_every_topic_round_trips_its_columns():
    rng = np.random.default_rng(1)
    for topic in (t for t in Topic if has_schema(t) and model(t).columns):
        columns = {}
        for c in model(topic).columns:
            high = 2 if c.dictionary or c.dtype.itemsize == 1 else 30_000
            columns[c.name] = rng.integers(0, high, 50).astype(c.dtype)
        envelope = {"rows": 50, "base_time_ns": 1_000, **{d: ["a", "b"] for d in model(topic).dictionaries}}
        back = Codec().decode(topic, Codec().encode(Batch(topic, envelope, columns)))
        for name, values in columns.items():
            assert np.array_equal(back.columns[name], values), name
            assert back.columns[name].dtype == values.dtype
