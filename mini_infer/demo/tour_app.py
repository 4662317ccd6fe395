"""The tour, sixth part: the commands and the server."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

APP = (
    topic(
        "mini-infer",
        what(
            "mini-infer",
            "this engine",
            "this program",
            "this app",
            say="This is mini-infer, an engine that runs language models and shows every decision it takes. It is "
            "written in plain "
            "PyTorch. You can read its core in an afternoon.",
            facts=("shows every decision it takes", "read its core in an afternoon"),
        ),
        ask(
            "what|can|I|do here",
            "what|does|this app|show/shows|",
            "what|can|I|see here",
            say="You can chat with a model and watch the engine at work. The views show blocks, the queue, prefix "
            "hits and "
            "speculation. You can pause, make single steps and look back.",
            facts=("watch the engine at work", "pause, make single steps and look back"),
        ),
        ask(
            "how|does|mini-infer|work/works|",
            "how|does|the engine|work/works|",
            "how|does|this app|work/works|",
            say="Requests arrive at a scheduler that plans each step. The model runs one flat batch, and the sampler "
            "draws tokens. "
            "Keys and values stay in a paged cache.",
            facts=("a scheduler that plans each step", "stay in a paged cache"),
        ),
    ),
    topic(
        "the playground",
        what(
            "the playground",
            "the terminal playground",
            "the command tui",
            say="The playground is a screen in your terminal. It runs the engine and draws what happens in each step. "
            "You start it with the command tui.",
            facts=("a screen in your terminal", "start it with the command tui"),
        ),
    ),
    topic(
        "the server",
        what(
            "the server",
            "the command serve",
            "a headless server",
            say="The server offers the engine over HTTP without a screen. It speaks the same language as the OpenAI "
            "API. "
            "You start it with the command serve.",
            facts=("offers the engine over http", "start it with the command serve"),
        ),
        ask(
            "how|do|I|start/start|the server",
            "how|can|I|start a server",
            "how|can|I|use the API",
            say="Type mini-infer serve in your terminal. The server then listens on port 8000 of your own machine. "
            "Any client of the OpenAI API can talk to it.",
            facts=("type mini-infer serve", "listens on port 8000"),
        ),
    ),
    topic(
        "streaming",
        what(
            "streaming",
            "a streamed answer",
            "the stream",
            say="Streaming sends each piece of an answer as soon as it is written. You see the first words early. "
            "A half character or a possible stop string is held back.",
            facts=("as soon as it is written", "a half character or a possible stop string"),
        ),
    ),
    topic(
        "the command generate",
        what(
            "the command generate",
            "generate",
            "the generate command",
            say="The command generate prints one answer to one prompt. It takes options like temperature and seed. "
            "With the flag json it prints a single object.",
            facts=("prints one answer to one prompt", "with the flag json"),
        ),
    ),
    topic(
        "the command info",
        what(
            "the command info",
            "info",
            "the info command",
            say="The command info shows the version of torch, the device and the memory. It also prints the memory "
            "plan of the "
            "chosen models. It is the first thing to try when something is wrong.",
            facts=("the version of torch, the device and the memory", "first thing to try"),
        ),
    ),
    topic(
        "other models",
        ask(
            "how|can|I|use another model",
            "how|do|I|load/load|another model",
            "|can|I|use a bigger model",
            say="Give the option model a folder or the name of a repository. Models of the kinds Qwen2, Qwen3 and "
            "Llama work. "
            "A name is downloaded once and then kept.",
            facts=("a folder or the name of a repository", "qwen2, qwen3 and llama"),
        ),
        ask(
            "how|can|I|change the draft",
            "how|do|I|choose/choose|a draft",
            "how|can|I|switch speculation off",
            say="The option draft takes a folder, a repository, ngram or none. With none there is no speculation. "
            "The demo model brings its own draft.",
            facts=("takes a folder, a repository, ngram or none", "brings its own draft"),
        ),
    ),
    topic(
        "the network",
        ask(
            "|do|you|need/need|the internet",
            "|does|the demo|work/works|offline",
            "|is|my text|sent anywhere",
            say="The demo needs no network at all. The model is part of the package and runs on your own machine. "
            "Your text never leaves it.",
            facts=("needs no network at all", "your text never leaves it"),
        ),
    ),
    topic(
        "a GPU",
        ask(
            "|do|I|need/need|a GPU",
            "|does|mini-infer|need/needs|a GPU",
            "|can|the engine|run on a CPU",
            say="No, a GPU is not needed. The demo runs well on an ordinary processor. "
            "For large models a GPU is much faster.",
            facts=("a gpu is not needed", "runs well on an ordinary processor"),
        ),
    ),
    topic(
        "starting points",
        ask(
            "what|should|I|try first",
            "where|do|I|start/start|",
            "what|should|I|look at first",
            say="Ask for a story and watch the blocks fill up. Then ask the same question again and look for the "
            "prefix hit. "
            "After that send four requests at once and see how they share a step.",
            facts=("watch the blocks fill up", "send four requests at once"),
        ),
        ask(
            "how|can|I|see a preemption",
            "how|can|I|cause a preemption",
            "how|can|I|make memory run out",
            say="Start the app with very few blocks, for instance with the option kv-blocks at 32. Then ask for "
            "several long "
            "stories at once. Soon one of them loses its blocks and waits.",
            facts=("start the app with very few blocks", "one of them loses its blocks"),
        ),
        ask(
            "how|can|I|see a prefix hit",
            "how|can|I|watch the prefix cache",
            "how|can|I|share a prefix",
            say="Ask two questions one after another. Both begin with the same system prompt, so the second one hits "
            "its blocks. "
            "The prefix view shows where the match ends.",
            facts=("ask two questions one after another", "shows where the match ends"),
        ),
        ask(
            "how|can|I|see a high acceptance",
            "what|should|I|ask for a high acceptance",
            "how|can|I|make the draft look good",
            say="Ask me to copy a list or ask about this app. Such answers are easy to guess, so the draft is often "
            "right. "
            "A story at a high temperature shows the opposite.",
            facts=("such answers are easy to guess", "shows the opposite"),
        ),
    ),
    topic(
        "the core of the engine",
        ask(
            "which language|is|the engine|written in",
            "how|is|the engine|written",
            "what|is|the code of the engine|like",
            say="The engine is written in Python with plain PyTorch. It needs no compiler and no custom kernels. "
            "Each module holds one idea and stays short.",
            facts=("python with plain pytorch", "each module holds one idea"),
        ),
        ask(
            "who|=|made you|",
            "who|=|made this app|",
            "who|=|wrote mini-infer|",
            say="The mini-infer project made me, from the first word of my training text to the last weight. "
            "Its code is open under the Apache license.",
            facts=("the mini-infer project made me", "under the apache license"),
        ),
    ),
)
