"""Write the named query `occupancy` from infra/clickhouse/occupancy.py."""

from pathlib import Path

from drumline.infra.clickhouse.occupancy import named_query
from drumline.infra.clickhouse.queries import FOLDER

if __name__ == "__main__":
    path = Path(str(FOLDER)) / "occupancy.sql"
    path.write_text(named_query())
    print(f"{path} is written")
