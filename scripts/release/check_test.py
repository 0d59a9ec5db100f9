#!/usr/bin/env python3
"""What scripts/release/check.py decides, each in a small repository of its own: no check is run."""
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import check
import fuzz

SCRIPTS = check.ROOT / "scripts"


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        room = mock.patch.object(check, "ROOM", 0)
        room.start()
        self.addCleanup(room.stop)
        self.root = pathlib.Path(folder.name) / "tree"
        self.target = pathlib.Path(folder.name) / "target"
        empty = ("crates/wattlock-fs/src/lib.rs", "crates/wattlock-bench/src/main.rs", "Cargo.lock", "docs/page.md")
        self.files = {"crates/wattlock-cpu/src/lib.rs": "fn a() { unsafe { b() } }\n", **dict.fromkeys(empty, "")}
        for name, text in self.files.items():
            self.write(name, text)
        self.git("init", "-q", "-b", "main")
        self.commit()

    def git(self, *words):
        name = ("-c", "user.name=t", "-c", "user.email=t@t.invalid", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.root), *name, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "--short", "HEAD").strip()

    def mend(self, name):
        self.write(name, "mended\n")
        return self.commit()

    def part(self, name, command="echo done", about=("crates/wattlock-cpu",), **more):
        return check.Part(name, command, (*about, *check.ALWAYS), **more)

    def run_(self, *parts, kept=None, **more):
        """Names of what is left, what is kept, and what was said."""
        kept, said = {} if kept is None else kept, io.StringIO()
        with contextlib.redirect_stdout(said):
            left = check.run(self.root, parts, kept, self.target, **more)
        return left, kept, said.getvalue()

    # What is due

    def test_what_never_passed_is_due_and_what_passed_is_not(self):
        part = self.part("address/wattlock-cpu")
        self.assertEqual(check.why_due(self.root, part, {}), "never passed")
        _, kept, _ = self.run_(part)
        self.assertIsNone(check.why_due(self.root, part, kept))
        self.assertEqual(kept, check.load(self.root))

    def test_a_mend_repeats_only_the_checks_of_the_crates_that_it_touched(self):
        cpu, fs = self.part("address/cpu"), self.part("address/fs", about=("crates/wattlock-fs",))
        _, kept, _ = self.run_(cpu, fs)
        commit = kept["address/fs"]["commit"]
        self.mend("crates/wattlock-fs/src/lib.rs")
        self.assertIsNone(check.why_due(self.root, cpu, kept))
        self.assertEqual(check.why_due(self.root, fs, kept), f"crates/wattlock-fs/src/lib.rs differs from {commit}")

    def test_a_change_that_was_taken_back_repeats_nothing(self):
        part = self.part("address/cpu")
        _, kept, _ = self.run_(part)
        self.mend("crates/wattlock-cpu/src/lib.rs")
        self.write("crates/wattlock-cpu/src/lib.rs", self.files["crates/wattlock-cpu/src/lib.rs"])
        self.commit()
        self.assertIsNone(check.why_due(self.root, part, kept))

    def test_a_file_that_moves_away_or_goes_touches_its_crate(self):
        part = self.part("address/cpu")
        _, kept, _ = self.run_(part)
        self.git("mv", "crates/wattlock-cpu/src/lib.rs", "docs/lib.rs")
        self.commit()
        self.assertIsNotNone(check.why_due(self.root, part, kept))

    def test_pages_and_tools_repeat_nothing_but_what_names_them(self):
        soak = self.part("soak", about=("crates",))
        package = self.part("package/own", about=(*check.PRODUCT, *check.TOOLS))
        _, kept, _ = self.run_(soak, package)
        self.mend("docs/page.md")
        self.mend("crates/wattlock-cpu/README.md")
        self.assertIsNone(check.why_due(self.root, package, kept))
        self.mend("crates/wattlock-bench/src/main.rs")
        self.assertIsNone(check.why_due(self.root, soak, kept))
        self.assertIsNotNone(check.why_due(self.root, package, kept))

    def test_a_crate_whose_name_begins_like_another_one_is_another_one(self):
        self.assertIsNone(check.touched(["crates/wattlock-cpu2/src/lib.rs"], ("crates/wattlock-cpu",)))

    def test_another_version_of_a_library_repeats_everything(self):
        part = self.part("timing/mac")
        _, kept, _ = self.run_(part)
        self.mend("Cargo.lock")
        self.assertIn("Cargo.lock", check.why_due(self.root, part, kept))

    def test_another_command_and_a_commit_that_is_gone_are_due(self):
        _, kept, _ = self.run_(self.part("fuzz"))
        self.assertIn("another command", check.why_due(self.root, self.part("fuzz", "echo more"), kept))
        kept["fuzz"]["commit"] = "0123456789"
        self.assertIn("is not here", check.why_due(self.root, self.part("fuzz"), kept))

    # What is run and kept

    def test_a_run_that_is_cut_off_goes_on_where_it_was(self):
        marks = self.root.parent / "marks"
        first, second = self.part("a", f"echo a | tee -a {marks}"), self.part("b", f"echo b | tee -a {marks}")
        last = self.part("c", alone=True)

        def cut():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.run_(first, last, second, is_calm=cut)
        left, kept, _ = self.run_(first, second, last, kept=check.load(self.root), is_calm=lambda: True)
        self.assertEqual((left, marks.read_text()), ([], "a\nb\n"))
        self.assertEqual(set(kept), {"a", "b", "c"})

    def test_a_failed_part_stays_due_and_the_others_go_on(self):
        left, kept, said = self.run_(self.part("a", "echo bad; exit 3"), self.part("b"))
        self.assertEqual((left, kept["b"]["result"]), (["a"], "done"))
        self.assertIn("exit code 3", said)
        self.assertEqual(check.why_due(self.root, self.part("a", "echo bad; exit 3"), kept), "never passed")

    def test_what_passes_at_a_second_try_says_so_and_keeps_both_logs(self):
        flag = self.root.parent / "flag"
        part = self.part("a/b", f"echo said; test -e {flag} || {{ touch {flag}; false; }}")
        left, kept, _ = self.run_(part)
        self.assertEqual((left, [one["log"] for one in kept["a/b"]["failed"]]), (["a/b"], ["a-b.1.log"]))
        left, kept, said = self.run_(part, kept=check.load(self.root))
        self.assertEqual((left, kept["a/b"]["result"]), ([], "passed at try 2: said"))
        self.assertEqual(len(kept["a/b"]["failed"]), 1)
        self.assertEqual(sorted(path.name for path in (self.target / "release-check").iterdir()),
                         ["a-b.1.log", "a-b.2.log"])

    def test_no_log_is_written_over_another_one(self):
        logs = self.target / "release-check"
        logs.mkdir(parents=True)
        for number in (1, 3):
            (logs / f"a-b.{number}.log").write_text("kept")
        self.run_(self.part("a/b"))
        texts = [(logs / f"a-b.{number}.log").read_text() for number in (1, 3, 4)]
        self.assertEqual(texts, ["kept", "kept", "done\n"])

    def test_a_failure_that_was_mended_is_no_try_of_what_passes_now(self):
        _, kept, _ = self.run_(self.part("a", "false"))
        self.mend("crates/wattlock-cpu/src/lib.rs")
        _, kept, _ = self.run_(self.part("a"), kept=kept)
        self.assertEqual(kept["a"]["result"], "done")
        self.assertNotIn("failed", kept["a"])

    def test_a_part_that_passed_and_fails_on_newer_code_is_due(self):
        _, kept, _ = self.run_(self.part("a", "test ! -e bad && echo good"))
        self.mend("crates/wattlock-cpu/src/lib.rs")
        self.write("bad", "")
        left, kept, _ = self.run_(self.part("a", "test ! -e bad && echo good"), kept=kept)
        self.assertEqual(left, ["a"])
        self.assertIsNotNone(check.why_due(self.root, self.part("a", "test ! -e bad && echo good"), kept))

    def test_a_part_that_lacks_a_program_or_disk_is_told_before_anything_runs(self):
        first, last = self.part("a", "echo ran"), self.part("b", needs=("no-such-program", "/no/such/device"))
        left, kept, said = self.run_(first, last)
        self.assertEqual((left, set(kept)), (["b"], {"a"}))
        self.assertIn("NOT RUN  b: missing: no-such-program, /no/such/device", said)
        self.assertLess(said.index("NOT RUN"), said.index("running"))
        with mock.patch.object(check, "ROOM", 1 << 62):
            self.assertIn("of disk", self.run_(first)[2])

    def test_builds_go_with_the_last_part_that_needs_them(self):
        first, last = self.part("planted/a"), self.part("planted/b")
        (self.target / "planted").mkdir(parents=True)
        _, kept, _ = self.run_(first, known=[first, last])
        self.assertTrue((self.target / "planted").exists())
        self.run_(last, kept=kept, known=[first, last])
        self.assertFalse((self.target / "planted").exists())

    def test_a_failure_within_a_pipe_is_one(self):
        self.assertEqual(self.run_(self.part("a", "false | cat; true | cat && false | cat"))[0], ["a"])

    def test_a_check_that_found_nothing_to_check_with_is_not_kept(self):
        absent = self.part("a", "echo valgrind is not installed: nothing is checked")
        left, kept, _ = self.run_(absent, self.part("b", "true"))
        self.assertEqual((left, kept), (["a", "b"], {}))

    def test_what_a_check_left_out_is_no_pass_but_for_kafka(self):
        for said, passes in (("not run: nginx: no module", False), ("not run: bridge: no broker", True),
                             ("no nginx: that part is not checked", False), ("x25519 not run here: lanes", False),
                             ("it_is_fast: not run: no module", False), ("9 good, 1 not run (why), 0 failed", True),
                             ("   30 s: nothing is checked", True)):
            left, _, _ = self.run_(self.part("a", f"echo '{said}'; echo all at once: fine", says=r".*at once: .*"))
            self.assertEqual(left, [] if passes else ["a"], said)

    def test_a_control_of_timing_is_not_its_result(self):
        rows = "control: compare  1  LEAK\nx25519-derive  2  none seen above 3 cycles\n"
        part = next(part for part in check.parts(check.ROOT) if part.alone)
        self.assertEqual(check.sentence(part, rows), "x25519-derive 2 none seen above 3 cycles")
        self.assertEqual(check.sentence(part, rows.split("\n")[0]), "")

    def test_a_tree_that_changes_meanwhile_is_not_kept(self):
        left, kept, said = self.run_(self.part("a", "echo x; echo y >>crates/wattlock-cpu/src/lib.rs"))
        self.assertEqual((left, kept), (["a"], {}))
        self.assertIn("the tree changed", said)

    def test_a_commit_of_something_else_meanwhile_loses_nothing(self):
        git = "git -c user.name=t -c user.email=t@t.invalid -c commit.gpgsign=false"
        part = self.part("a", f"echo y >docs/page.md; {git} commit -qam y; touch new; echo done")
        left, kept, _ = self.run_(part)
        self.assertEqual((left, kept["a"]["result"]), ([], "done"))
        self.git("clean", "-qf")
        part = self.part("b", f"echo y >crates/wattlock-cpu/src/lib.rs; {git} commit -qam y; echo done")
        self.assertEqual(self.run_(part)[0], ["b"])

    def test_timing_does_not_run_beside_other_work(self):
        asked = []
        alone = [self.part(f"timing/{name}", alone=True) for name in "ab"]
        left, kept, said = self.run_(*alone, self.part("b"), is_calm=lambda: asked.append(1))
        self.assertEqual((left, set(kept), asked), (["timing/a", "timing/b"], {"b"}, [1]))
        self.assertIn("NOT RUN", said)

    def test_a_machine_is_calm_if_it_is_so_before_the_patience_ends(self):
        shares = [0.9, 0.5, 0.01]
        self.assertTrue(check.calm(lambda _: shares.pop(0), 60, 180))
        self.assertFalse(check.calm(lambda _: 0.9, 60, 180))

    def test_the_result_is_the_checks_own_last_words(self):
        said = "echo '12 passed'; echo 'thread sanitizer: 1 crates'; echo bye"
        part = self.part("a", said, says="thread sanitizer: .*")
        self.assertEqual(self.run_(part)[1]["a"]["result"], "thread sanitizer: 1 crates")

    def test_what_is_kept_itself_is_no_change_of_the_tree(self):
        self.run_(self.part("a"))
        self.assertEqual(check.dirty(self.root), [])
        self.write("crates/wattlock-cpu/src/new.rs", "")
        self.assertEqual(check.dirty(self.root), ["crates/wattlock-cpu/src/new.rs"])

    # The program itself

    def program(self, secrets):
        """Its command, in a tree that has what it reads, where this script stands in for the check of secrets."""
        for name in ("release/check.py", "test/security.py", "test/sanitize.sh", "measure/calm.py"):
            self.write(f"scripts/{name}", (SCRIPTS / name).read_text().replace("ROOM = 15 << 30", "ROOM = 0"))
        for name in ("crates/wattlock-core/src/kind.rs", "fuzz/Cargo.toml"):
            self.write(name, (check.ROOT / name).read_text())
        self.write("scripts/test/secrets.sh", f"#!/bin/sh\n{secrets}\n")
        self.write("Cargo.toml", "")
        self.write("programs/valgrind", "#!/bin/sh\n")
        for name in ("scripts/test/secrets.sh", "programs/valgrind"):
            (self.root / name).chmod(0o755)
        self.commit()
        environment = {"PATH": f"{self.root}/programs:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1",
                       "CARGO_TARGET_DIR": str(self.target)}
        return {"args": [sys.executable, str(self.root / "scripts/release/check.py"), "secrets"], "text": True,
                "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}

    def test_the_program_refuses_a_tree_with_changes(self):
        program = self.program("echo clean")
        self.write("crates/wattlock-fs/src/lib.rs", "changed")
        done = subprocess.run(**program, check=False)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("commit the tree's changes first: crates/wattlock-fs/src/lib.rs", done.stdout)

    def test_the_program_runs_a_check_once_and_says_what_failed(self):
        program = self.program(f"echo ran | tee -a {self.root.parent}/ran")
        for what in ("passed   secrets", "kept     secrets"):
            done = subprocess.run(**program, check=False)
            self.assertEqual((done.returncode, what in done.stdout), (0, True), done.stdout)
        self.assertEqual((self.root.parent / "ran").read_text(), "ran\n")
        self.write("scripts/test/secrets.sh", "#!/bin/sh\nexit 7\n")
        self.commit()
        done = subprocess.run(**program, check=False)
        self.assertEqual((done.returncode, "exit code 7" in done.stdout), (1, True), done.stdout)

    def started(self, secrets):
        """The program with a check that goes on, and the check's process."""
        child = subprocess.Popen(**self.program(f"echo $$ >{self.root.parent}/pid; {secrets}"))
        path = self.root.parent / "pid"
        while not path.exists() or not path.read_text():
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        return child, int(path.read_text())

    def test_an_interrupt_and_a_lost_terminal_end_what_runs_and_keep_nothing_of_it(self):
        for sent in (signal.SIGINT, signal.SIGHUP):
            # Whatever ran this may ignore it.
            self.addCleanup(signal.signal, sent, signal.signal(sent, signal.SIG_DFL))
            child, pid = self.started("sleep 600")
            child.send_signal(sent)
            said = child.communicate()[0]
            self.assertEqual((child.returncode, "goes on here" in said), (130, True), said)
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)
            self.assertEqual(check.load(self.root), {})
            (self.root.parent / "pid").unlink()

    def test_a_check_whose_program_was_killed_still_keeps_others_away(self):
        child, pid = self.started("exec sleep 600")
        child.kill()
        child.wait()
        child.stdout.close()
        try:
            done = subprocess.run(**self.program("echo clean"), check=False)
            self.assertEqual((done.returncode, "another one runs here" in done.stdout), (2, True), done.stdout)
        finally:
            os.kill(pid, signal.SIGKILL)

    def test_what_a_check_leaves_behind_is_named_and_ended(self):
        program = self.program(f"setsid sleep 600 >/dev/null 2>&1 & echo $! >{self.root.parent}/pid; echo done")
        done = subprocess.run(**program, check=False)
        self.assertEqual((done.returncode, "left     secrets: ended s" in done.stdout), (0, True), done.stdout)
        self.assertFalse(pathlib.Path(f"/proc/{(self.root.parent / 'pid').read_text().strip()}").exists())

    def test_what_ran_before_the_program_began_is_left_alone(self):
        program = self.program("setsid sleep 601 >/dev/null 2>&1 & echo done")
        line = 'sleep 600 >/dev/null 2>&1 & echo $! >"$0"; exec "$@"'
        pid = self.root.parent / "wrapped"
        program["args"] = ["bash", "-c", line, str(pid), *program["args"]]
        done = subprocess.run(**program, check=False)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        self.assertEqual((done.returncode, "left     secrets: ended s" in done.stdout), (0, True), done.stdout)

    # Its neighbours

    def test_a_find_of_an_earlier_run_fails_until_it_is_mended(self):
        self.write("header", "#!/bin/sh\nfor last; do :; done\n! grep -q bad \"$last\"\n")
        (self.root / "header").chmod(0o755)
        for name, text in (("header-crash-1", "bad"), ("header-slow-unit-2", "fine"), ("headers-crash-3", "bad")):
            self.write(f"finds/{name}", text)
        with mock.patch.object(fuzz, "FINDS", self.root / "finds"):
            self.assertEqual(fuzz.unmended(self.root, ["header"]), [self.root / "finds/header-crash-1"])
            self.write("finds/header-crash-1", "mended")
            self.assertEqual(fuzz.unmended(self.root, ["header"]), [])

    def test_the_page_calls_a_script_where_it_is_now(self):
        one = {"command": "scripts/secrets.sh here", "commit": "x", "date": "x", "cpu": "x", "result": "x"}
        self.write("scripts/test/secrets.sh", "")
        self.assertIn("`scripts/test/secrets.sh here`", check.security.table({"secrets": one}, self.root))
        one["command"] = "make fuzz MINUTES=9"
        self.assertIn("`make fuzz MINUTES=9`", check.security.table({"fuzz": one}, self.root))

    # This repository's own map

    def test_everything_that_a_part_is_about_is_there(self):
        for part in check.parts(check.ROOT):
            for name in part.about:
                self.assertTrue((check.ROOT / name).exists(), f"{part.name} is about {name}")

    def test_each_crate_with_unsafe_code_is_under_the_address_sanitizer_and_each_length_of_rsa_is_timed(self):
        names = {part.name for part in check.parts(check.ROOT)}
        for name in ("wattlock", "wattlock-cpu", "wattlock-provider", "wattlock-stream", "nginx"):
            self.assertIn(f"address/{name}", names)
        timed = {kind for kinds in check.families(check.ROOT).values() for kind in kinds}
        self.assertLessEqual({"x25519-derive", "hmac-sha-1", "aes-256-cbc-encrypt", "ml-kem-768-decapsulate"}, timed)
        self.assertFalse({"sha-256", "aes-256-gcm-seal", "zstd"} & timed)
        for length in (2048, 3072, 4096):
            self.assertIn(f"timing/rsa-{length}-private", names)
        self.assertEqual(len(names), len(check.parts(check.ROOT)), "two parts of one name")

    def test_a_planted_fault_is_about_the_scripts_that_its_check_runs(self):
        about = {part.name: part.about for part in check.parts(check.ROOT)}
        rows = re.findall(r"^        ([\w-]+)\) (.*) ;;$", (SCRIPTS / "test/planted.sh").read_text(), re.M)
        self.assertLessEqual(set(check.PLANTED), {fault for fault, _ in rows})
        for fault, command in rows:
            for script in re.findall(r"scripts/[\w/.-]+", command):
                self.assertIn(script, about[f"planted/{fault}"], fault)

    def test_packages_and_fresh_machines_are_about_what_they_contain_and_read(self):
        about = {part.name: part.about for part in check.parts(check.ROOT)}
        for name, due in (("docs/use/files.md", "package/own fresh/own fresh/next"), ("examples/a", "package/next"),
                          ("corpus/0.1/a", "fresh/own"), ("scripts/test/typed.py", "fresh/own"),
                          ("scripts/release/package.sh", "package/own")):
            for part in due.split():
                self.assertEqual(check.touched([name], about[part]), name, part)
        for name in (*check.APART, "README.md", "docs/measurements/performance.md", "crates/wattlock/README.md"):
            for part in ("package/own", "fresh/own"):
                self.assertIsNone(check.touched([name], about[part]), name)

    def test_what_needs_the_machine_for_itself_comes_last(self):
        alone = [part.alone for part in check.parts(check.ROOT)]
        self.assertEqual(alone, sorted(alone))

    def test_every_planted_fault_applies_to_this_code(self):
        patches = sorted((SCRIPTS / "test/planted").glob("*.patch"))
        self.assertEqual({patch.stem for patch in patches}, set(check.PLANTED))
        for patch in patches:
            # As planted.sh applies it.
            done = subprocess.run(["git", "apply", "--check", "-C1", patch], cwd=check.ROOT, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_unsafe_code_is_found_and_words_about_it_are_not(self):
        self.write("crates/wattlock-fs/src/lib.rs", "#![forbid(unsafe_code)]\n// unsafe { }\n")
        self.assertEqual(check.unsafe_crates(self.root), ["wattlock-cpu"])

    def test_the_file_of_results_is_whole_json(self):
        self.run_(self.part("a"))
        self.assertEqual(json.loads((self.root / check.KEPT).read_text())["parts"]["a"]["command"], "echo done")


if __name__ == "__main__":
    unittest.main()
