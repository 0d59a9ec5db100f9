#!/usr/bin/env python3
"""What scripts/measure/performance.py finds and what it lets through, each in a small tree of its own."""
import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import performance


def row(**more):
    return {"bench": "https", "row": "tls12-rsa2048-x25519", "params": {"connections": 64}, "against": "nginx 1.22.1 + OpenSSL 3.0.20",
            "unit": "handshakes/s", "ours": 5000.0, "theirs": 2000.0, "ratio": 2.5, "low": 2.4, "high": 2.6, "by": "cpu", "rounds": 3, **more}


def hybrid(**more):
    return row(**{"row": "tls13-rsa2048-x25519mlkem768", "against": "nginx 1.26.3 + OpenSSL 3.5.7", **more})


def run(rows=None, **more):
    return {"schema": 1, "command": "wattlock bench https", "commit": "c7c0463", "date": "2026-11-23",
            "cpu": {"model": "AMD EPYC", "name": "Zen 5", "class": "avx512-amd", "cores": 2}, "kernel": "6.18",
            "peers": {"nginx": "1.22.1", "openssl": "3.0.20"}, "rows": [row()] if rows is None else rows, **more}


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.data = self.root / "docs/measurements"
        self.data.mkdir(parents=True)
        self.readme, self.page = self.root / "README.md", self.data / "tables/README.md"
        self.summary = self.data / "performance.md"
        self.readme.write_text(f"# Front\n\n{performance.BEGIN}\n{performance.END}\n\nBack.\n")

    def put(self, name="2026-11-23-avx512-amd-https", **more):
        (self.data / f"{name}.json").write_text(json.dumps(run(**more)))

    def script(self, *arguments):
        """Exit code and all that it said."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = performance.main([*arguments, "--root", str(self.root)])
        return code, said.getvalue()

    def cell(self, label, text=None):
        """The cells of the first line of the page that begins with this label."""
        line = next(line for line in (text or self.page.read_text()).splitlines() if line.startswith(f"| {label} |"))
        return [cell.strip() for cell in line.split("|")[2:-1]]

    HANDSHAKES = "TLS 1.2, RSA-2048, X25519"

    # What must be found

    def test_a_changed_figure_is_found_in_the_page_and_in_the_readme(self):
        self.put(rows=[hybrid()])
        self.assertEqual(self.script()[0], 0)
        self.assertEqual(self.script("--check"), (0, ""))
        for path in (self.page, self.readme, self.data / "gains.svg"):
            whole = path.read_text()
            path.write_text(whole.replace("2.50", "2.70", 1))
            code, said = self.script("--check")
            self.assertEqual(code, 1)
            self.assertIn("\n-", said)
            self.assertIn("2.70", said)
            path.write_text(whole)

    def test_a_figure_that_changes_in_the_data_is_found(self):
        self.put()
        self.script()
        self.put(rows=[row(ratio=2.45)])
        self.assertEqual(self.script("--check")[0], 1)

    def test_a_page_that_is_missing_is_found(self):
        self.put()
        self.script()
        for page in (self.page, self.summary):
            self.script()
            page.unlink()
            self.assertEqual(self.script("--check")[0], 1)

    def refused(self, what, **more):
        self.put(**more)
        code, said = self.script()
        self.assertEqual((code, what in said), (1, True), said)
        self.assertFalse(self.page.exists())

    def test_an_unknown_class_is_refused(self):
        self.refused("class", cpu={"model": "Something", "class": "avx10"})

    def test_a_run_without_commit_is_refused(self):
        self.refused("commit", commit="")

    def test_a_run_without_command_is_refused(self):
        self.refused("command", command="")

    def test_a_date_that_is_none_is_refused(self):
        self.refused("date", date="yesterday")

    def test_another_schema_is_refused(self):
        self.refused("schema", schema=2)

    def test_the_same_row_twice_is_refused(self):
        self.refused("twice", rows=[row(), row(ratio=2.55)])

    def test_a_median_outside_its_spread_is_refused(self):
        self.refused("between", rows=[row(ratio=2.7)])

    def test_a_ratio_that_is_text_is_refused(self):
        self.refused("figure", rows=[row(ratio="2.5")])

    def test_a_ratio_to_an_openssl_without_version_is_refused(self):
        self.refused("version", rows=[row(against="nginx + OpenSSL")], peers=None)

    def test_a_file_that_is_no_json_is_refused(self):
        (self.data / "broken.json").write_text("{")
        self.assertEqual(self.script()[0], 1)

    def test_no_data_is_refused(self):
        self.assertEqual(self.script()[0], 1)

    def test_a_readme_without_marks_is_refused(self):
        self.put()
        self.readme.write_text("# Front\n")
        self.assertEqual(self.script()[0], 1)

    def test_the_first_screens_gains_are_those_of_the_data(self):
        self.put(rows=[hybrid(row="tls13-ecdsa256-x25519mlkem768")])
        marks = f"{performance.GAINS_BEGIN}\n{performance.GAINS_END}\n\n{performance.BEGIN}\n{performance.END}\n"
        self.readme.write_text(f"# Front\n\n{marks}")
        self.assertEqual(self.script()[0], 0)
        self.assertIn("- **2.50 times as fast**: full TLS handshakes", self.readme.read_text())
        self.readme.write_text(self.readme.read_text().replace("**2.50 times as fast**", "**2.70 times as fast**"))
        self.assertEqual(self.script("--check")[0], 1)

    def test_a_figure_beside_the_readmes_table_is_refused(self):
        self.put()
        self.readme.write_text(self.readme.read_text() + "\nIt is 2.7 times faster.\n")
        code, said = self.script()
        self.assertEqual(code, 1)
        self.assertIn("2.7 times faster", said)

    # What is shown

    def test_the_newest_run_of_a_cell_counts_and_the_file_of_a_bare_machine_does_not(self):
        self.put("2026-11-22-avx512-amd-https", date="2026-11-22", rows=[row(ratio=1.5, low=1.4, high=1.6)])
        self.put()
        self.put("fresh", date="2026-12-01", rows=[row(ratio=9.0, low=9.0, high=9.0)])
        self.script()
        self.assertEqual(self.cell(self.HANDSHAKES), ["2.50 (2.40 to 2.60)<sup>1</sup>"])

    def test_what_was_carried_over_is_marked_and_yields_to_a_run_of_the_same_day(self):
        self.put("2026-11-23-avx512-amd-https-old", rows=[row(ratio=1.5, low=None, high=None, rounds=None)], carried="a page at c7c0463")
        self.script()
        self.assertEqual(self.cell(self.HANDSHAKES), ["1.50<sup>c1</sup>"])
        self.assertIn("Carried over: a page at c7c0463.", self.page.read_text())
        self.put()
        self.script()
        self.assertEqual(self.cell(self.HANDSHAKES), ["2.50 (2.40 to 2.60)<sup>1</sup>"])

    def test_a_row_without_ratio_shows_its_figure_or_nothing(self):
        empty = {"ratio": None, "low": None, "high": None, "theirs": None, "against": ""}
        self.put(rows=[row(bench="start", row="runtime-load", params={}, unit="s", ours=0.0005, **empty),
                       row(bench="start", row="first-use", params={}, unit="s", ours=None, **empty)], peers=None)
        self.script()
        self.assertEqual(self.cell("loading the runtime again"), ["500 us<sup>1</sup>"])
        self.assertNotIn("first use, with calibration", self.page.read_text())

    def test_amounts_have_units_that_people_read(self):
        for value, unit, text in ((1.5, "s", "1.5 s"), (0.0038, "s", "3.8 ms"), (2.34e9, "B/s", "2.34 GB/s"), (23.4, "ns", "23.4 ns"),
                                  (6.339e9, "multiplications/s", "6,339 million multiplications/s"), (0.9895, "ratio", "0.990")):
            self.assertEqual(performance.amount(value, unit), text)

    def test_a_loss_is_bold_and_a_ratio_that_rounds_to_one_is_none(self):
        few = [row(params={"connections": count}, ratio=ratio, low=None, high=None) for count, ratio in ((1, 0.91), (2, 0.996), (64, 0.92))]
        self.put(rows=few)
        self.script()
        self.assertEqual(self.cell(f"{self.HANDSHAKES}, 1 connection"), ["**0.91**<sup>1</sup>"])
        self.assertEqual(self.cell(f"{self.HANDSHAKES}, 2 connections"), ["1.00<sup>1</sup>"])
        few = "[TLS handshakes, few connections, and the latency of 64](tables/README.md#tls-handshakes-few-connections-and-the-latency-of-64)"
        self.assertEqual(self.cell(few, self.summary.read_text()), ["2", "0.91", "0.91", "1.00", "0", "1"])
        slow = hybrid(row="tls13-ecdsa256-x25519mlkem768", ratio=0.92, low=None, high=None)
        self.put(rows=[slow, hybrid(against="nginx 1.22.1 + OpenSSL 3.0.20")])
        self.script()
        table = self.cell("nginx, full handshakes, X25519MLKEM768: ECDSA P-256 / RSA-2048*", self.readme.read_text())
        self.assertIn("**0.92** / -", table)

    def test_a_spread_alone_is_a_loss_only_if_all_of_it_is(self):
        few = [row(params={"connections": count}, ratio=None, low=low, high=high) for count, low, high in ((1, 0.9, 1.1), (2, 0.8, 0.9))]
        self.put(rows=few)
        self.script()
        self.assertEqual(self.cell(f"{self.HANDSHAKES}, 1 connection"), ["0.90 to 1.10<sup>1</sup>"])
        self.assertEqual(self.cell(f"{self.HANDSHAKES}, 2 connections"), ["**0.80 to 0.90**<sup>1</sup>"])

    def test_cpu_classes_and_lines_of_openssl_have_columns_of_their_own(self):
        self.put()
        self.put("b", cpu={"name": "Zen 4", "class": "avx512-amd"})
        self.put("c", rows=[row(against="nginx 1.26.3 + OpenSSL 3.5.7", ratio=1.1, low=None, high=None)])
        self.script()
        self.assertEqual([cell.split("<")[0] for cell in self.cell(self.HANDSHAKES)],
                         ["2.50 (2.40 to 2.60)", "1.10", "2.50 (2.40 to 2.60)"])
        text = " ".join(self.page.read_text().split())
        self.assertIn("Not run: AVX-512 of Intel, OpenSSL 3.0; AVX-512 of Intel, OpenSSL 3.5; AVX-512 of AMD (Zen 4), OpenSSL 3.5", text)

    def test_the_fastest_engine_of_a_run_is_shown(self):
        engines = [row(bench="engines", row="sha-256", params={"bytes": 1024, "engine": name}, against="OpenSSL 3.0.20",
                       ratio=ratio, low=None, high=None) for name, ratio in (("software", 0.2), ("instruction", 1.2), ("other", 0.9))]
        self.put(rows=engines)
        self.script()
        self.assertEqual(self.cell("sha-256, 1 KiB"), ["1.20<sup>1</sup>"])

    def test_rows_that_no_table_knows_are_listed(self):
        self.put(rows=[row(bench="novel", row="something", params={})])
        self.script()
        self.assertEqual(self.cell("novel: something"), ["2.50 (2.40 to 2.60)<sup>1</sup>"])

    def test_a_name_with_its_connections_is_the_same_row(self):
        self.put(rows=[row(row="tls12-rsa2048-x25519-2", params={"connections": 2})])
        self.script()
        self.assertEqual(self.cell(f"{self.HANDSHAKES}, 2 connections"), ["2.50 (2.40 to 2.60)<sup>1</sup>"])


if __name__ == "__main__":
    unittest.main()
