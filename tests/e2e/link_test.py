#!/usr/bin/env python3
"""`isthmus link test` between real gateways on loopback: before a run, with a rate limit of the hour, during an exchange."""
import json
import os
import signal
import subprocess
import time
import unittest

from federation import BAD_USAGE, Case, DONE, Federation, ISTHMUS, STOPPED, UNAVAILABLE, isthmus, wait_until


class Gateways:
    """Only the gateways of a federation: no ranks, no run."""

    def __init__(self, federation, *arguments):
        self.federation, self.arguments = federation, arguments

    def __enter__(self):
        self.processes = []
        for site in self.federation.sites:
            log = open(self.federation.folder / f"{site.name}.gateway.log", "wb")
            self.processes.append(subprocess.Popen([ISTHMUS, "gateway", site.file, *self.arguments], stdin=subprocess.DEVNULL,
                                                   stdout=log, stderr=subprocess.STDOUT, cwd=self.federation.folder))
            log.close()
        for site in self.federation.sites:
            site.log = self.federation.folder / f"{site.name}.gateway.log"
            site.wait_for_event("wire_up", 20, lane="bulk")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)


def link_test(federation, peer, here, *arguments):
    return isthmus("link", "test", peer, federation[here].file, *arguments, cwd=federation.folder)


class LinkTest(Case):
    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_another_user_hears_whose_gateway_it_is(self):
        with Federation("alpha", "beta") as federation, Gateways(federation):
            subprocess.run(["chmod", "-R", "a+rX", federation.folder], check=True)
            for command in (("status",), ("link", "test", "beta")):
                try:
                    said = subprocess.run([ISTHMUS, *command, federation["alpha"].file], user=65534, group=65534, extra_groups=[],
                                          cwd=federation.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                except PermissionError:
                    self.skipTest(f"others may not read {ISTHMUS}")
                self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
                self.assertIn("gateway.sock is another user's: run this as the user who runs the site", said.stdout)

    def test_gateways_without_a_run_measure_their_link(self):
        hour = '[{ from = "00:00", to = "24:00", rate_limit = "16 Mbit/s" }]'
        with Federation("alpha", "beta") as federation, Gateways(federation, "--set", f"gateway.windows={hour}"):
            said = link_test(federation, "beta", "alpha", "--json", "--time", "2 s")
            self.assertEqual(said.returncode, DONE, said.stdout)
            report = json.loads(said.stdout)
            self.assertEqual((report["here"], report["peer"]), ("alpha", "beta"))
            self.assertLess(report["round_trip_ms"]["min"], 100)
            for direction in ("to_peer", "from_peer"):
                self.assertLessEqual(report[direction]["mbit_s"], 17, direction)
                self.assertGreaterEqual(report[direction]["mbit_s"], 12, direction)
                self.assertEqual(report[direction]["rate_limit_mbit_s"], 16, direction)
                self.assertTrue(report[direction]["congestion_control"], direction)
            self.assertNotEqual(report["to_peer"]["dialed"], report["from_peer"]["dialed"])
            with open("/proc/sys/net/ipv4/tcp_rmem", encoding="ascii") as rmem:
                self.assertEqual(report["kernel_there"]["tcp_rmem"].split(), rmem.read().split())
            self.assertIn("its rate_limit is what bounds this direction", said.stdout)
            status = isthmus("status", federation["alpha"].file, cwd=federation.folder)
            self.assertIn("16 Mbit/s until 00:00", status.stdout)

            text = link_test(federation, "alpha", "beta", "--bytes", "2 MiB")
            self.assertEqual(text.returncode, DONE, text.stdout)
            self.assertIn("beta to alpha", text.stdout)
            self.assertIn("what to do", text.stdout)

            # Its bytes are none of the run's. What a test moved stands apart once it has come to rest.
            def links():
                said = isthmus("status", federation["alpha"].file, "--json", cwd=federation.folder)
                return json.loads(said.stdout)["links"][0]
            self.assertGreater(links()["link_test_sent_bytes"], 4_000_000)
            self.assertGreater(links()["link_test_received_bytes"], 4_000_000)
            time.sleep(6)
            self.assertLess(links()["wire_sent_bytes"], 200_000)
            self.assertLess(links()["wire_received_bytes"], 200_000)

            wrong = link_test(federation, "gamma", "alpha")
            self.assertEqual(wrong.returncode, BAD_USAGE, wrong.stdout)
            self.assertIn('no other site "gamma" with a gateway; there is beta', wrong.stdout)
            self.assertEqual(link_test(federation, "beta", "alpha", "--time", "2 min").returncode, BAD_USAGE)

    def test_whoever_asked_and_has_gone_ends_it_at_both_gateways(self):
        with Federation("alpha", "beta") as federation, Gateways(federation, "--set", 'gateway.rate_limit="16 Mbit/s"'):
            for number, code in ((signal.SIGINT, STOPPED), (signal.SIGTERM, STOPPED), (signal.SIGKILL, -signal.SIGKILL)):
                command = [ISTHMUS, "link", "test", "beta", federation["alpha"].file, "--time", "30 s"]
                asker = subprocess.Popen(command, cwd=federation.folder, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                while "alpha to beta" not in asker.stdout.readline():
                    self.assertIsNone(asker.poll())
                time.sleep(0.5)
                began = time.monotonic()
                asker.send_signal(number)
                said, _ = asker.communicate(timeout=20)
                self.assertEqual(asker.returncode, code, said)
                self.assertLess(time.monotonic() - began, 3)
                if code == STOPPED:
                    self.assertIn("stopped, and the test with it", said)
                # Within moments both are free.
                for peer, here in (("alpha", "beta"), ("beta", "alpha")):
                    def tested():
                        return link_test(federation, peer, here, "--time", "1 s", "--bytes", "128 KiB")
                    wait_until(lambda: tested().returncode == DONE, 5, lambda: tested().stdout)

    def test_a_killed_gateway_ends_it_at_the_other_one(self):
        limit = ("--set", 'gateway.rate_limit="16 Mbit/s"')
        with Federation("alpha", "beta") as federation, Gateways(federation, *limit) as gateways:
            command = [ISTHMUS, "link", "test", "beta", federation["alpha"].file, "--time", "30 s"]
            asker = subprocess.Popen(command, cwd=federation.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True)
            while "alpha to beta" not in asker.stdout.readline():
                self.assertIsNone(asker.poll())
            time.sleep(0.5)
            began = time.monotonic()
            gateways.processes[1].kill()
            said, _ = asker.communicate(timeout=20)
            self.assertEqual(asker.returncode, UNAVAILABLE, said)
            self.assertIn("the connection with beta is gone, and the test with it", said)
            self.assertLess(time.monotonic() - began, 3)

    def test_an_exchange_comes_first_unless_the_test_is_forced(self):
        # 1.7 million parameters: longer at this rate than the test beside them, which waits for its turn.
        with Federation("alpha", "beta", layers=2, hidden=256, ffn=768, outer_steps=1, inner_steps=4) as federation:
            federation.launch("--set", 'gateway.rate_limit="512 kbit/s"', "--set", "train.warmup_steps=0")
            site = federation["alpha"]
            wait_until(lambda: site.run_dir.exists() and any(e["event"] == "session_began" for e in site.events()), 60,
                       site.output)
            def exchanging():
                said = isthmus("status", site.file, "--json", cwd=federation.folder)
                return said.returncode == DONE and json.loads(said.stdout)["phase"] == "exchanging"
            wait_until(exchanging, 60, site.output)
            refused = link_test(federation, "beta", "alpha")
            self.assertEqual(refused.returncode, UNAVAILABLE, refused.stdout)
            self.assertRegex(refused.stdout, "being exchanged|on their way")
            self.assertIn("--force", refused.stdout)
            said = link_test(federation, "beta", "alpha", "--json")
            for_programs = json.loads(next(line for line in said.stdout.splitlines() if line.startswith("{")))
            self.assertEqual((for_programs["peer"], for_programs["error"]["code"]), ("beta", "busy"))
            self.assertIn("--force", for_programs["error"]["message"])
            forced = link_test(federation, "beta", "alpha", "--force", "--time", "1 s", "--json")
            self.assertEqual(forced.returncode, DONE, forced.stdout)
            self.assertGreater(json.loads(forced.stdout)["round_trip_ms"]["min"], 0)


if __name__ == "__main__":
    unittest.main()
