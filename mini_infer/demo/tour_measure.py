"""The tour, fourth part: what is measured, recorded and shown."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

MEASURE = (
    topic(
        "TTFT",
        what(
            "TTFT",
            "time to first token",
            "the time to the first token",
            say="TTFT is the time to first token. It runs from the arrival of a request to its first new token. "
            "Waiting and prefill are both part of it.",
            facts=("from the arrival of a request to its first new token", "waiting and prefill are both part of it"),
        ),
        ask(
            "why|is|TTFT|high",
            "how|can|I|lower TTFT",
            "why|does|the first token|take/takes|long",
            say="TTFT is high when the prompt is long or when the request waits in line. A prefix hit lowers it a lot. "
            "Fewer requests at the same time lower it too.",
            facts=("when the prompt is long or when the request waits", "a prefix hit lowers it"),
        ),
    ),
    topic(
        "TPOT",
        what(
            "TPOT",
            "time per output token",
            "the time per output token",
            say="TPOT is the time per output token. It is the time after the first token divided by the number of the "
            "later "
            "tokens. Speculation makes it smaller.",
            facts=("the time after the first token divided", "speculation makes it smaller"),
        ),
        ask(
            "why|does|TPOT|rise/rises|with more requests",
            "why|is|TPOT|high",
            "why|are|tokens|slower in a large batch",
            say="A larger batch makes each step longer, so each request writes more slowly. All requests together are "
            "still faster. "
            "This is the trade between speed and sharing.",
            facts=("makes each step longer", "all requests together are still faster"),
        ),
    ),
    topic(
        "ITL",
        what(
            "ITL",
            "inter token latency",
            "the inter token latency",
            say="ITL is the time between two tokens of one answer. The app shows how it is spread. A single long gap "
            "often comes "
            "from a prefill chunk or a preemption.",
            facts=("time between two tokens of one answer", "from a prefill chunk or a preemption"),
        ),
    ),
    topic(
        "throughput",
        what(
            "throughput",
            "the throughput",
            "*tokens per second",
            say="Throughput is the number of tokens that all requests write in one second. It grows with the batch "
            "until the "
            "machine is full. It says nothing about a single user.",
            facts=("all requests write in one second", "grows with the batch until the machine is full"),
        ),
    ),
    topic(
        "percentiles",
        what(
            "a percentile",
            "*percentiles",
            "p50",
            "the median",
            say="A percentile tells how many values lie below it. At p50, half of the requests were faster. "
            "At p99, only one in a hundred was slower.",
            facts=("half of the requests were faster", "only one in a hundred was slower"),
        ),
    ),
    topic(
        "concurrency",
        what(
            "concurrency",
            "the concurrency",
            "the number of users at once",
            say="Concurrency is the number of requests that are open at the same time. In a load test you set it with "
            "the option "
            "concurrency. More of it gives more throughput and longer waits.",
            facts=("open at the same time", "more throughput and longer waits"),
        ),
    ),
    topic(
        "the load generator",
        what(
            "the load generator",
            "a load test",
            "the command load",
            say="The load generator sends many requests to a server and measures the answers. It reports TTFT, TPOT "
            "and throughput. "
            "It can also measure other servers.",
            facts=("sends many requests to a server", "can also measure other servers"),
        ),
        ask(
            "how|do|I|start/start|a load test",
            "how|can|I|measure a server",
            "how|can|I|run a load test",
            say="Use the command load and give it the address of a server. Without an address it starts a server of "
            "its own. "
            "The option concurrency sets how many requests run at once.",
            facts=("the address of a server", "it starts a server of its own"),
        ),
    ),
    topic(
        "bench",
        what(
            "the command bench",
            "bench",
            "a benchmark",
            say="The command bench measures this machine without a server. It shows prefill, decode, prefix hits and "
            "speculation. "
            "Next to each stands the limit of the machine.",
            facts=("measures this machine without a server", "the limit of the machine"),
        ),
    ),
    topic(
        "step reports",
        what(
            "a step report",
            "*step reports",
            "the report of a step",
            say="A step report says everything that happened in one step. It lists tokens, block moves, reasons and "
            "times. "
            "All views of the app are drawn from such reports.",
            facts=("everything that happened in one step", "all views of the app are drawn"),
        ),
    ),
    topic(
        "traces",
        what(
            "a trace",
            "*traces",
            "a trace file",
            "a recording",
            say="A trace is a file with one line for each step. It begins with a header and a snapshot. "
            "You can replay it later without any model.",
            facts=("a file with one line for each step", "replay it later without any model"),
        ),
        ask(
            "how|do|I|record/record|a trace",
            "how|can|I|record a trace",
            "how|is|a trace|made",
            say="Start the playground with the option record and a file name. Every step is then written to that file. "
            "The option replay shows it again.",
            facts=("with the option record and a file name", "the option replay shows it again"),
        ),
    ),
    topic(
        "rewinding",
        what(
            "rewinding",
            "a rewind",
            "the rewind of the app",
            say="Rewinding shows an earlier step on the screen. The app keeps the last steps in memory for this. "
            "The engine itself never runs backwards.",
            facts=("shows an earlier step on the screen", "never runs backwards"),
        ),
    ),
    topic(
        "Perfetto",
        what(
            "Perfetto",
            "a Perfetto file",
            "the trace export",
            say="Perfetto is a viewer for timelines. The command trace export turns a recorded trace into a file for "
            "it. "
            "There you can zoom into every step.",
            facts=("a viewer for timelines", "turns a recorded trace into a file"),
        ),
    ),
    topic(
        "metrics",
        what(
            "*the metrics",
            "the metrics route",
            "*metrics",
            say="The metrics are counters and times of the running engine. The server offers them as plain text for a "
            "monitor. "
            "They include tokens, hits, preemptions and acceptance.",
            facts=("counters and times of the running engine", "plain text for a monitor"),
        ),
    ),
    topic(
        "snapshots",
        what(
            "a snapshot",
            "*snapshots",
            "the snapshot of the engine",
            say="A snapshot is the whole state of the engine at one moment. A view that opens late begins with it. "
            "After that the step reports keep the view up to date.",
            facts=("whole state of the engine at one moment", "a view that opens late begins with it"),
        ),
    ),
    topic(
        "the cost of watching",
        ask(
            "|does|watching|slow/slows|the engine",
            "how much|does|recording|cost/costs|",
            "|does|the app|slow/slows|the engine",
            say="Recording costs less than one percent of a step of a usual model. If nobody watches, the details are "
            "not even "
            "collected. The screen is drawn outside of the engine.",
            facts=("less than one percent of a step", "not even collected"),
        ),
    ),
)
