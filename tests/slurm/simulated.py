"""SLURM's commands as shell scripts over text files: a scheduler that does what a test says."""

from __future__ import annotations

import os
from pathlib import Path

SBATCH = r"""
if [ "$1" = --test-only ]; then
  cat > /dev/null
  [ -s "$here/test_only" ] && { cat "$here/test_only" >&2; exit 1; }
  exit 0
fi
if [ -s "$here/answers" ]; then
  answer=$(head -n 1 "$here/answers")
  sed -i 1d "$here/answers"
  [ "$answer" = ok ] || { echo "sbatch: error: $answer" >&2; exit 1; }
fi
number=$(($(cat "$here/number") + 1))
echo $number > "$here/number"
name=$(sed -n 's/^#SBATCH --job-name=//p' "$1")
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\)%.*/\1/p' "$1")
if [ -n "$last" ]; then
  for index in $(seq 0 $last); do
    echo "$name|$number|$index|PENDING|Priority"
  done >> "$here/queue"
else
  echo "$name|$number|N/A|PENDING|Priority" >> "$here/queue"
fi
echo "Submitted batch job $number"
"""
SQUEUE = """
[ -e "$here/down" ] && { echo "squeue: error: connect failure" >&2; exit 1; }
cat "$here/queue"
"""
SCANCEL = """
for job in "$@"; do
  case $job in
    *_*) sed -i "/|${job%_*}|${job#*_}|/d" "$here/queue" ;;
    *) sed -i "/|$job|/d" "$here/queue" ;;
  esac
done
"""
COMMANDS = {
    "sbatch": SBATCH,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "scontrol": 'echo "MaxArraySize            = $(cat "$here/largest")"',
    "sinfo": "echo debug",
    "srun": "exit 0",
}


class Simulated:
    """The folder of the commands and of the files they read and write."""

    def __init__(self, folder: Path, largest: int = 1001):
        self.folder = folder
        folder.mkdir()
        for name, body in COMMANDS.items():
            self.command(name, body)
        self.write("queue", "")
        self.write("number", "100")
        self.write("largest", str(largest))

    def command(self, name: str, body: str) -> None:
        path = self.folder / name
        log = f'echo "{name} $*" >> "$here/calls"'
        path.write_text(f'#!/bin/bash\nhere=$(dirname "$0")\n{log}\n{body}\n')
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def calls(self, name: str) -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def queue(self) -> list[list[str]]:
        lines = (self.folder / "queue").read_text().splitlines()
        return [line.split("|") for line in lines]

    def set_state(self, state: str, index: str | None = None) -> None:
        """Give all tasks, or those at one place of their array, a state."""
        rows = self.queue()
        for row in rows:
            if index in (None, row[2]):
                row[3] = state
        self.write("queue", "".join("|".join(row) + "\n" for row in rows))

    @property
    def path(self) -> str:
        """For PATH: these commands before all others."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
