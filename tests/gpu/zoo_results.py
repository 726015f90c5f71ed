"""Results of the shapes of the zoo: manifests, the ends of what ranks printed, and one archive in pieces."""

import json
import tarfile
from pathlib import Path

from zoo_plan import Phase

PIECE, MOST_PIECES, TAIL_BYTES = 15_000_000, 5, 20_000


def write_manifest(
    name: str, source: Path, folder: Path, phases: list[Phase], settings: dict[str, object]
) -> dict[str, object]:
    """Write what was done in which steps, and the ends of what the ranks printed; return sizes and numbers of rows.

    `source`: folder of the logs. `folder`: of the packed rows, whose rows.json becomes a part of the manifest.
    """
    rows = {}
    if (folder / "rows.json").exists():
        rows = json.loads((folder / "rows.json").read_text())
        (folder / "rows.json").unlink()
    logs = sorted(source.glob("?.log"))
    done = phases_done(logs, phases)
    manifest = {"job": name, "how": name, "ranks": len(logs), **settings, "phases": done, **rows}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    if (source / "stacks.json.xz").exists():
        (folder / "stacks.json.xz").write_bytes((source / "stacks.json.xz").read_bytes())
    for path in [*logs, *source.glob("*.err")]:
        if path.stat().st_size:
            (folder / path.name).write_bytes(path.read_bytes()[-TAIL_BYTES:])
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.xz")}
    errors = [ring["error"] for ring in rows.get("rings", []) if "error" in ring]
    return {"phases": len(done), "bytes": sizes, "rows": rows.get("rows", {}), **({"errors": errors} if errors else {})}


def phases_done(logs: list[Path], planned: list[Phase]) -> list[dict[str, object]]:
    """Return the phases as the ranks reported them: from the last one's begin to the first one's end.

    `steps`: of each rank, the one that had begun when the phase began, and when it ended.
    """
    events: dict[tuple[int, str], dict[int, dict[str, object]]] = {}
    for path in logs:
        for line in path.read_text().splitlines():
            if line.startswith('{"rank"') and line.endswith("}"):
                event = json.loads(line)
                events.setdefault((event["phase"], event["event"]), {})[event["rank"]] = event
    phases = []
    for number, (fault, on, size, _) in enumerate(planned):
        begins, ends = events.get((number, "begin"), {}), events.get((number, "end"), {})
        if len(begins) < len(logs) or len(ends) < len(logs) or not logs:
            continue
        phases.append(
            {
                "fault": fault,
                "on": on,
                "size": size,
                "size_ms": begins[0]["size_ms"],
                "start_ns": max(event["time_ns"] for event in begins.values()),
                "end_ns": min(event["time_ns"] for event in ends.values()),
                "steps": {rank: [begins[rank]["step"], ends[rank]["step"]] for rank in begins},
                "median_step_ms": {rank: ends[rank]["median_step_ms"] for rank in ends},
            }
        )
    return phases


def write_pieces(folder: Path, archive: Path, out: Path) -> int:
    """Write a folder as recordings.tar.0, .1, ... into `out`; return how many bytes were too many."""
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname="recordings")
    with archive.open("rb") as file:
        for number in range(MOST_PIECES):
            if piece := file.read(PIECE):
                (out / f"recordings.tar.{number}").write_bytes(piece)
        return archive.stat().st_size - file.tell()
