"""A scanner finds the broker's jars in the bill of materials of a release."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from drumline.infra.localstack.kafka import bom, jars

ROOT = Path(__file__).parents[4]


def test_each_jar_is_a_component_with_its_package_url_and_the_hash_that_is_verified(tmp_path):
    path = tmp_path / "drumline.cdx.json"
    path.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [{"name": "numpy"}], "version": 1}))
    bom.add_jars(path)
    bill = json.loads(path.read_text())
    first, *added = bill["components"]
    assert (first, bill["version"]) == ({"name": "numpy"}, 1)
    listed = {f"{jar['name']}-{jar['version']}.jar": jar["hashes"] for jar in added}
    sums = jars.listed()
    assert listed == {Path(path).name: [{"alg": "SHA-256", "content": digest}] for path, digest in sums.items()}
    assert all(re.fullmatch(r"pkg:maven/[\w.-]+/[\w.-]+@\d[\w.-]*", jar["purl"]) for jar in added)
    assert len({jar["purl"] for jar in added}) == len({jar["bom-ref"] for jar in added}) == len(sums)


def test_what_the_pom_names_has_the_poms_groups():
    maven = "{http://maven.apache.org/POM/4.0.0}"
    named = {
        (needed.findtext(f"{maven}groupId"), needed.findtext(f"{maven}artifactId"), needed.findtext(f"{maven}version"))
        for needed in ElementTree.parse(jars.SUMS.with_name("pom.xml")).iter(f"{maven}dependency")
    }
    assert named
    assert named <= {(jar["group"], jar["name"], jar["version"]) for jar in bom.components()}


def test_a_release_lists_the_jars():
    recipe = (ROOT / "Makefile").read_text().split("\nrelease:")[1].split("\n\n")[0]
    assert f"-m {bom.__name__} dist/drumline.cdx.json" in recipe
