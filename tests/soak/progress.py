"""Where a soak stands: a bar on a terminal, and above it what happens; else a line each minute."""
import shutil
import sys
import time

BAR_MIN, BAR_MAX = 8, 30  # columns; what is said comes first


class Progress:
    def __init__(self, minutes, report, watch):
        self.seconds, self.report, self.watch = 60 * minutes, report, watch
        self.began = self.said = time.monotonic()
        self.terminal = sys.stdout.isatty()

    def line(self):
        passed = time.monotonic() - self.began
        longest = max((stall.seconds for stall in self.report.stalls), default=0)
        return (f"{passed / 60:.1f} of {self.seconds / 60:g} min: {len(self.report.violations)} violations, "
                f"step {max(s.step for s in self.watch.sites)}, {sum(self.report.faults.values())} faults in "
                f"{self.report.rounds} rounds, longest stall {longest:.1f} s")

    def show(self):
        if self.terminal:
            text, columns = self.line(), shutil.get_terminal_size().columns - 1
            bar = min(BAR_MAX, columns - len(text) - 3)
            if bar >= BAR_MIN:
                done = min(bar, int(bar * (time.monotonic() - self.began) / self.seconds))
                text = f"[{'#' * done}{'.' * (bar - done)}] {text}"
            sys.stdout.write(f"\r\33[K{text[:columns]}")
            sys.stdout.flush()
        elif time.monotonic() - self.said >= 60:
            self.said = time.monotonic()
            print(self.line(), flush=True)

    def say(self, text):
        """Above the bar, and into the report."""
        self.report.timeline.append(f"{time.strftime('%H:%M:%S')} {text}")
        if self.terminal:
            sys.stdout.write(f"\r\33[K{self.report.timeline[-1]}\n")
            self.show()

    def end(self):
        if self.terminal:
            print()
