"""`python -m tests.load.pictures demo`: the pictures of the load generator, of a real run on that model.

Writes load-dashboard.svg, load-dashboard.png, load-report.html and load-report.png into screenshots/.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path

import resvg_py
from rich.console import Console

from mini_infer.load.arrivals import Level
from mini_infer.load.campaign import Plan, Watcher
from mini_infer.load.client import Clock
from mini_infer.load.dashboard import dashboard
from mini_infer.load.figures import Slo
from mini_infer.load.html import STYLE, plots, to_html
from mini_infer.load.live import Progress
from mini_infer.load.markdown import to_markdown
from mini_infer.load.report import Report
from mini_infer.load.session import Session, run
from mini_infer.load.workload import WorkloadOptions

OUT = Path(__file__).parents[2] / "screenshots"
WIDTH = 104
LAST = "16"


class Camera(Progress):
    """Takes the picture in the middle of the last level."""

    def __init__(self, clock: Clock, title: str) -> None:
        super().__init__(clock)
        self.title = title
        self.svg = ""

    def piece(self, at: float) -> None:
        super().piece(at)
        last = self.level is not None and self.level.name == LAST and self.what == "measuring"
        if last and not self.svg and (self.share or 0.0) > 0.6:
            console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
            console.print(dashboard(self, self.title, width=WIDTH))
            svg = console.export_svg(title="mini-infer load --concurrency 1,4,16 --slo ttft=500,tpot=50")
            svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts that would be fetched
            self.svg = svg.replace("Fira Code, monospace", "DejaVu Sans Mono, monospace").replace(
                "arial", "DejaVu Sans"
            )


def main(folder: str) -> None:
    plan = Plan(
        levels=tuple(Level(concurrency=n) for n in (1, 4, int(LAST))),
        requests=32,
        warmup=4,
        slo=Slo(ttft=500, tpot=50),
        seed=1,
    )
    workload = WorkloadOptions(output_tokens=24)
    session = Session(
        plan=plan,
        workload=workload,
        own=("--model", folder),
        settings={"workload": "chat", "output_tokens": 24, "requests": 32},
    )
    cameras: list[Camera] = []

    def watch(clock: Clock, title: str) -> AbstractContextManager[Watcher]:
        cameras.append(Camera(clock, re.sub(r"http://\S+", "http://127.0.0.1:8000", title)))
        return nullcontext(cameras[0])

    report = asyncio.run(run(session, watch))
    print(to_markdown(report))
    if not cameras[0].svg:
        sys.exit("the run ended before its picture was taken")
    OUT.mkdir(exist_ok=True)
    (OUT / "load-dashboard.svg").write_text(cameras[0].svg, encoding="utf-8")
    (OUT / "load-dashboard.png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=cameras[0].svg)))
    (OUT / "load-report.html").write_text(to_html(report), encoding="utf-8")
    (OUT / "load-report.png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=sheet(report))))


def sheet(report: Report) -> str:
    """The plots of the HTML report on one page, in its light colours: SVG readers other than browsers know no var()."""
    colours = dict(re.findall(r"--(\w+): (#\w+);", STYLE.split("@media")[0]))
    rules = "".join(line for line in STYLE.split("\n") if re.match(r"svg|\.line|\.dot|\.grid", line))
    rules = re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], rules).replace("svg ", "")
    rules = rules.replace("system-ui, sans-serif", "DejaVu Sans").replace(
        ".tick { fill", ".grid { stroke: #dfe3ea } .tick { fill"
    )
    parts = []
    for number, picture in enumerate(plots(report)):
        at = f'<svg x="{10 + 480 * (number % 2)}" y="{10 + 280 * (number // 2)}" width="460" height="260" '
        parts.append(picture.replace("<svg ", at, 1))
    height = 20 + 280 * -(-len(parts) // 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" width="960" height="{height}">'
    return f'{head}<style>{rules}</style><rect width="960" height="{height}" fill="#fff"/>{"".join(parts)}</svg>'


if __name__ == "__main__":
    main(sys.argv[1])
