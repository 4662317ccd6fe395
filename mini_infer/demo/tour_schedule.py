"""The tour, second part: steps, the scheduler, and what happens when something goes wrong."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

SCHEDULE = (
    topic(
        "continuous batching",
        what(
            "continuous batching",
            "iteration level batching",
            "batching in this engine",
            say="Continuous batching means that the batch is chosen anew in every step. A new request joins as soon "
            "as there is "
            "room. A finished one leaves at once and nobody waits for it.",
            facts=("the batch is chosen anew in every step", "a finished one leaves at once"),
        ),
        ask(
            "why|is|continuous batching|fast",
            "why|does|continuous batching|help/helps|",
            "why|are|requests|batched",
            say="Reading the weights costs the same time for one token as for many. With many requests in one step "
            "this cost is "
            "shared. So the whole machine writes more tokens each second.",
            facts=("costs the same time for one token as for many", "more tokens each second"),
        ),
    ),
    topic(
        "a step",
        what(
            "a step",
            "one step",
            "a step of the engine",
            "*steps",
            say="A step is one round of the engine. It makes a plan, runs the model once over one flat batch, samples "
            "tokens and "
            "commits them. Then the next step begins.",
            facts=("one round of the engine", "runs the model once over one flat batch"),
        ),
        ask(
            "what happens|=|in a step|",
            "how|does|a step|work/works|",
            "what|are|the parts of a step|",
            say="First the scheduler plans, then the draft proposes tokens. The target computes all rows in one pass "
            "and the "
            "sampler decides. Only the commit changes tokens and counters.",
            facts=("first the scheduler plans", "only the commit changes tokens"),
        ),
    ),
    topic(
        "the scheduler",
        what(
            "the scheduler",
            "a scheduler",
            "the job of the scheduler",
            say="The scheduler decides which tokens are computed in the next step. It reserves the blocks for them. "
            "It knows nothing about tensors and never calls the model.",
            facts=("which tokens are computed in the next step", "never calls the model"),
        ),
        ask(
            "which order|does|the scheduler|follow/follows|",
            "who|=|is planned first|",
            "how|are|requests|ordered",
            say="Running decodes come first, then running chunks, then waiting requests. Among equals the priority "
            "counts, and "
            "then the time of arrival. All of them share one token budget.",
            facts=("running decodes come first", "then the time of arrival"),
        ),
    ),
    topic(
        "the plan",
        what(
            "a plan",
            "the plan of a step",
            "the plan",
            say="The plan of a step lists what each request computes. It also holds the block moves and the reason of "
            "each waiting "
            "request. A plan is frozen and contains only ids and numbers.",
            facts=("lists what each request computes", "contains only ids and numbers"),
        ),
    ),
    topic(
        "the token budget",
        what(
            "the token budget",
            "a token budget",
            "the option max-batch-tokens",
            say="The token budget limits how many tokens one step computes. On a CPU the default is 256. A small "
            "budget keeps steps "
            "short, and a large one reads prompts faster.",
            facts=("how many tokens one step computes", "the default is 256"),
        ),
    ),
    topic(
        "chunked prefill",
        what(
            "chunked prefill",
            "a prefill chunk",
            "*prefill chunks",
            "a chunk",
            say="Chunked prefill reads a long prompt in several pieces. Each step takes one piece next to the decodes "
            "of other "
            "requests. Several prompts can be read at the same time.",
            facts=("reads a long prompt in several pieces", "next to the decodes of other requests"),
        ),
        ask(
            "why|are|prompts|cut into chunks",
            "why|is|prefill|chunked",
            "why|does|the engine|split/splits|long prompts",
            say="A long prompt in one piece would stop all other answers for a while. In chunks it takes only a part "
            "of each step. "
            "So the other requests keep writing without a pause.",
            facts=("would stop all other answers", "keep writing without a pause"),
        ),
        ask(
            "how big|is|a chunk|",
            "how long|can|a chunk|be",
            "how|is|the chunk size|set",
            say="The option max-chunk limits the prompt tokens of one request in one step. Its default is half of the "
            "token budget. "
            "The last chunk may be shorter.",
            facts=("option max-chunk", "half of the token budget"),
        ),
    ),
    topic(
        "prefill",
        what(
            "prefill",
            "the prefill of a prompt",
            "the prefill phase",
            say="Prefill is the reading of the prompt. All its tokens are known, so many of them go through the model "
            "together. "
            "At its end the first new token is drawn.",
            facts=("reading of the prompt", "at its end the first new token is drawn"),
        ),
        ask(
            "how|is|prefill|different from decode",
            "what|is|the difference between prefill and decode|",
            "why|is|prefill|faster than decode",
            say="Prefill computes many tokens in one pass and is limited by arithmetic. Decode computes one token at "
            "a time and is "
            "limited by memory. In this engine both are slices of the same batch.",
            facts=("limited by arithmetic", "both are slices of the same batch"),
        ),
    ),
    topic(
        "decode",
        what(
            "decode",
            "decoding",
            "a decode",
            "the decode phase",
            say="A decode computes one new token of a running request. It reads the cache of all tokens before it. "
            "An answer of a hundred tokens takes about a hundred decodes without speculation.",
            facts=("one new token of a running request", "a hundred decodes without speculation"),
        ),
        ask(
            "why|is|decode|slow",
            "why|does|each token|take/takes|so long",
            "why|is|decoding|limited by memory",
            say="For each token all weights must be read from memory. The arithmetic for a single row is small. So "
            "the memory is "
            "the limit and the processor often waits.",
            facts=("all weights must be read from memory", "the processor often waits"),
        ),
    ),
    topic(
        "preemption",
        what(
            "preemption",
            "a preempted request",
            "the preemption of a request",
            say="Preemption takes the blocks of a running request when memory runs out. The request goes back to the "
            "waiting line. "
            "It resumes later and loses no text.",
            facts=("takes the blocks of a running request", "resumes later and loses no text"),
        ),
        ask(
            "which request|=|is preempted first|",
            "how|is|the victim|chosen",
            "who|is|the victim of a preemption|",
            say="The request with the lowest priority is the victim. Among equals it is the newest one. A request "
            "that is already "
            "planned in this step is never taken.",
            facts=("lowest priority is the victim", "among equals it is the newest"),
        ),
        ask(
            "how|does|a request|resume/resumes|",
            "what happens|=|after a preemption|",
            "how|does|a preempted request|come/comes|back",
            say="The engine computes the lost tokens again, like a prompt. Its old blocks keep their hash, so most of "
            "this is a "
            "prefix hit. Then the answer goes on where it stopped.",
            facts=("computes the lost tokens again", "goes on where it stopped"),
        ),
    ),
    topic(
        "waiting requests",
        what(
            "a waiting request",
            "the waiting line",
            "*waiting requests",
            "the queue",
            say="A waiting request has arrived but is not yet in the batch. It needs a seat, tokens and blocks. "
            "The app shows for each one why it waits.",
            facts=("has arrived but is not yet in the batch", "needs a seat, tokens and blocks"),
        ),
        ask(
            "why|is|my request|waiting",
            "why|does|a request|wait/waits|",
            "what|are|the reasons for waiting|",
            say="There may be too few free blocks, no tokens left in the step, or no free seat. It may also stand "
            "behind an older "
            "request, or the engine is paused. The queue view names the reason.",
            facts=("too few free blocks", "stand behind an older request"),
        ),
    ),
    topic(
        "admission",
        what(
            "admission",
            "the admission of a request",
            "an admitted request",
            say="Admission moves a request from the waiting line into the batch. Its whole prompt must fit into the "
            "free blocks. "
            "One more block for each running request is kept in reserve.",
            facts=("from the waiting line into the batch", "is kept in reserve"),
        ),
        ask(
            "why|is|one block|kept in reserve",
            "why|is|there|a watermark",
            "why|does|the scheduler|keep/keeps|a reserve",
            say="Every running request will soon need one more block. Without a reserve a new prompt would take the "
            "last block and "
            "cause a preemption right away. The reserve is called the watermark.",
            facts=("will soon need one more block", "called the watermark"),
        ),
    ),
    topic(
        "the running limit",
        what(
            "the option max-running",
            "the running limit",
            "a seat in the batch",
            say="The option max-running limits how many requests run at the same time. On a CPU the default is 16. "
            "Further requests wait for a free seat.",
            facts=("how many requests run at the same time", "the default is 16"),
        ),
    ),
    topic(
        "fairness",
        what(
            "fairness",
            "the fairness of the scheduler",
            "starvation",
            say="Fairness means that every request makes progress. Each running request gets a token before any draft "
            "does. "
            "The first one in line can be passed only eight times.",
            facts=("every request makes progress", "passed only eight times"),
        ),
    ),
    topic(
        "priorities",
        what(
            "a priority",
            "the priority of a request",
            "*priorities",
            say="The priority of a request decides who is planned first. Equal priorities are served in order of "
            "arrival. "
            "A low priority is also preempted first.",
            facts=("decides who is planned first", "a low priority is also preempted first"),
        ),
    ),
    topic(
        "pausing",
        what(
            "a pause",
            "the paused state",
            "pausing the engine",
            say="A pause stops the engine between two steps. Requests can still arrive or be aborted. "
            "You can then go on or make single steps and watch each of them.",
            facts=("stops the engine between two steps", "make single steps"),
        ),
    ),
    topic(
        "aborting",
        what(
            "an abort",
            "an aborted request",
            "aborting a request",
            say="An abort ends a request before its answer is complete. It takes effect between two steps. "
            "Its blocks are free right after it.",
            facts=("before its answer is complete", "its blocks are free right after it"),
        ),
    ),
    topic(
        "commit",
        what(
            "the commit",
            "a commit",
            "the commit of a step",
            say="The commit is the end of a step. It adds the new tokens, publishes full blocks and ends finished "
            "requests. "
            "Before it nothing has changed but reserved blocks.",
            facts=("the end of a step", "publishes full blocks and ends finished requests"),
        ),
        ask(
            "what happens|=|when a step fails|",
            "how|does|the engine|survive/survives|an error",
            "how|does|a rollback|work/works|",
            say="If the model fails, the reserved blocks are given back and no counter moves. Then each request is "
            "tried alone. "
            "Only the one that fails alone ends with an error.",
            facts=("no counter moves", "only the one that fails alone"),
        ),
    ),
    topic(
        "slices",
        what(
            "a slice",
            "*slices",
            "a slice of the plan",
            say="A slice is the part of one request in a step. A decode is a slice of length one, and a prefill chunk "
            "is a longer "
            "one. So the engine needs no separate phases.",
            facts=("part of one request in a step", "needs no separate phases"),
        ),
    ),
    topic(
        "the flat batch",
        what(
            "the flat batch",
            "a flat batch",
            "a ragged batch",
            say="The flat batch puts the tokens of all requests behind one another. There is no padding between them. "
            "Attention still keeps every request to its own blocks.",
            facts=("tokens of all requests behind one another", "there is no padding"),
        ),
    ),
    topic(
        "determinism",
        what(
            "determinism",
            "the determinism of the engine",
            "a repeatable answer",
            say="With temperature zero or a seed the same prompt gives the same answer. The size of the batch does "
            "not matter. "
            "Only two tokens that are almost equally likely may change places.",
            facts=("the same prompt gives the same answer", "almost equally likely"),
        ),
    ),
)
