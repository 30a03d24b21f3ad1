#!/usr/bin/env python3
"""A site of two ranks (mesh.data = 2, through mpirun) in a federation with a site of one."""
import os
import pathlib
import signal
import unittest

from federation import Case, DONE, Federation, STOPPED, wait_until
import outer_files


def ranks_of(site):
    """The processes that run `isthmus train` at this site, by rank."""
    found = {}
    for pid in site.pids():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[0].endswith(b"isthmus") and words[1] == b"train":
            rank = [int(e.split(b"=")[1]) for e in environment if e.startswith(b"OMPI_COMM_WORLD_RANK=")]
            found[rank[0] if rank else 0] = pid
    return found


class Ranks(Case):
    def launch(self, federation):
        alpha, beta = federation.sites
        alpha.launch("--set", "mesh.data=2")
        beta.launch()

    def check_end(self, federation, steps):
        roots = {}
        for site in federation.sites:
            newest = outer_files.Site(site.run_dir).states()[0]
            self.assertEqual(newest.step, steps, f"{site.name}:\n{site.output()}")
            roots[site.name] = newest.claimed_root.hex()
        self.assertEqual(len(set(roots.values())), 1, roots)

    def test_two_ranks_train_stop_and_go_on(self):
        with Federation("alpha", "beta", outer_steps=30) as federation:
            alpha, beta = federation.sites
            self.launch(federation)
            alpha.wait_for_event("step_applied", count=3)
            self.assertEqual(sorted(ranks_of(alpha)), [0, 1])
            self.assertEqual(sorted(ranks_of(beta)), [0])
            for site in federation.sites:
                site.interrupt()
            for site in federation.sites:
                self.assertEqual(site.wait(30), STOPPED, site.output())
                self.assertEqual(site.pids(), [], "processes are left")
            self.assertTrue(list((alpha.run_dir / "checkpoints").glob("step_*")))

            self.launch(federation)
            federation.wait()
            self.check_end(federation, 30)
            # Its ranks see different samples: twice the tokens of the other site.
            record = outer_files.Site(alpha.run_dir).records()[-1]
            self.assertEqual(record["parts"][0]["tokens"], 2 * record["parts"][1]["tokens"])
            for site in federation.sites:
                self.assertEqual(site.events("tokens_lost"), [])

    def kill(self, rank):
        with Federation("alpha", "beta", outer_steps=30) as federation:
            alpha, _ = federation.sites
            self.launch(federation)
            alpha.wait_for_event("step_applied", count=3)
            os.kill(ranks_of(alpha)[rank], signal.SIGKILL)
            federation.wait(60)
            self.check_end(federation, 30)
            self.assertTrue(alpha.events("process_restarted"), alpha.output())

    def test_the_first_rank_is_killed(self):
        self.kill(0)

    def test_the_second_rank_is_killed(self):
        self.kill(1)


if __name__ == "__main__":
    unittest.main()
