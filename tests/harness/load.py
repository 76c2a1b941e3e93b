"""The load of `segue bench` on routers, and what it says was harmed."""

import json
import os
import signal
import subprocess

HARM = ("lost", "duplicated", "misrouted", "reordered", "dual_writer_overlaps")


class Load:
    """Keys of which each has one write at a time, compared with the pods' logs."""

    def __init__(self, segue, port, partitions, log, folder):
        self.log, self.report = log, os.path.join(folder, "report.json")
        with open(self.report, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen([
                segue, "bench", f"http://127.0.0.1:{port}", "--partitions", str(partitions), "--clients", "16", "--rate", "200",
                "--duration", "1h", "--log-dir", log, "--json",
            ], stdout=out)

    def has_written(self):
        return any(entry.stat().st_size for entry in os.scandir(self.log))

    def kill(self):
        self.process.kill()

    def end(self):
        """Ends it. Returns the number of requests, and in words what was harmed: errors and breaches, with their number."""
        assert self.process.poll() is None, f"the load ended by itself with {self.process.returncode}"
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        with open(self.report, encoding="utf-8") as file:
            report = json.load(file)
        assert report["checked"]["log_records"], "the load did not see the pods' logs"
        errors = {text: number for by_text in report["errors"].values() for text, number in by_text.items()}
        harm = {kind: report[kind] for kind in HARM if report[kind]}
        texts = [f"{number} × {text}" for text, number in errors.items()] + [f"{kind}: {report['harm']}" for kind in harm]
        return report["requests"], texts, sum(errors.values()) + sum(harm.values())
