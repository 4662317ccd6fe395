"""The tour, third part: speculative decoding."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

SPECULATION = (
    topic(
        "speculative decoding",
        what(
            "speculative decoding",
            "speculation",
            "speculative sampling",
            say="In speculative decoding a small draft model guesses the next few tokens. The target model checks all "
            "of them in "
            "one pass. What the target agrees with is kept, and the rest is thrown away.",
            facts=("guesses the next few tokens", "checks all of them in one pass"),
        ),
        ask(
            "why|does|speculative decoding|help/helps|",
            "why|is|speculative decoding|fast",
            "why|does|speculation|save/saves|time",
            say="One pass of the target costs about the same for one token as for five. If several guesses are right, "
            "one pass "
            "writes several tokens. A wrong guess costs only the time of the draft.",
            facts=("about the same for one token as for five", "a wrong guess costs only the time of the draft"),
        ),
        ask(
            "how|does|speculative decoding|work/works|",
            "how|does|speculation|work/works|",
            "how|do|draft and target|work/work|together",
            say="The draft proposes K tokens one after another. The target computes its own probabilities for all of "
            "them at "
            "once. The verifier accepts them from left to right until the first rejection.",
            facts=("proposes k tokens one after another", "from left to right until the first rejection"),
        ),
        ask(
            "|does|speculation|change/changes|the answer",
            "|is|speculative decoding|exact",
            "|does|the draft|make/makes|answers worse",
            say="No, speculative decoding is exact. The tokens follow the distribution of the target, whatever the "
            "draft proposes. "
            "A bad draft makes the engine slower but never wrong.",
            facts=("follow the distribution of the target", "slower but never wrong"),
        ),
    ),
    topic(
        "the draft model",
        what(
            "the draft model",
            "a draft model",
            "the draft",
            "the proposer",
            say="The draft model is a small and quick model that guesses tokens for the large one. It must use the "
            "same tokenizer. "
            "The demo draft has one layer.",
            facts=("small and quick model that guesses tokens", "the demo draft has one layer"),
        ),
        ask(
            "where|does|the draft|keep/keeps|its cache",
            "how|does|the draft|store/stores|keys and values",
            "|does|the draft|have/has|a cache of its own",
            say="The draft has a tensor of its own, but it uses the same block numbers and tables as the target. "
            "One bit for each block says whether its draft rows are valid.",
            facts=("same block numbers and tables as the target", "whether its draft rows are valid"),
        ),
        ask(
            "what happens|=|when the draft is wrong|",
            "what happens|=|after a bad guess|",
            "|can|the draft|be wrong",
            say="A wrong guess is rejected by the target, and the target puts its own token there. The guesses behind "
            "it are "
            "dropped. Their blocks are trimmed.",
            facts=("the target puts its own token there", "guesses behind it are dropped"),
        ),
    ),
    topic(
        "the target model",
        what(
            "the target model",
            "a target model",
            "the target",
            "the large model",
            say="The target model is the one whose answers you read. It checks every guess of the draft. "
            "The demo target has six layers.",
            facts=("the one whose answers you read", "the demo target has six layers"),
        ),
    ),
    topic(
        "K",
        what(
            "K",
            "the number K",
            "the option draft-tokens",
            "the number of draft tokens",
            say="K is the number of tokens that the draft proposes in one round. You set it with the option "
            "draft-tokens. "
            "With auto the engine chooses it, up to eight.",
            facts=("number of tokens that the draft proposes", "up to eight"),
        ),
        ask(
            "why|is|K|zero",
            "when|is|K|zero",
            "why|does|the engine|draft/drafts|nothing",
            say="K is zero when drafting is off, when the budget or the blocks are used up, or when the draft lags "
            "behind. "
            "It is also zero near the end of an answer. The app shows the reason.",
            facts=("budget or the blocks are used up", "near the end of an answer"),
        ),
        ask(
            "why|is|K|not very large",
            "why|is|more drafting|not always better",
            "why|is|a larger K|not better",
            say="Each further guess is right only if all guesses before it were right. So late guesses are often lost. "
            "Their cost stays, and beyond some K it is more than the gain.",
            facts=("only if all guesses before it were right", "late guesses are often lost"),
        ),
    ),
    topic(
        "verification",
        what(
            "verification",
            "a verify step",
            "the verifier",
            "a verify",
            say="Verification compares the guesses with the probabilities of the target. It is one slice of K plus "
            "one tokens. "
            "The verifier is a pure function.",
            facts=("one slice of k plus one tokens", "a pure function"),
        ),
        ask(
            "how|is|a guess|accepted",
            "when|is|a draft token|accepted",
            "how|does|the verifier|decide/decides|",
            say="Let p be the probability of the target and q that of the draft. A random number is drawn, and the "
            "guess is "
            "accepted if the number is below p divided by q. So a guess that the target likes more is always kept.",
            facts=("below p divided by q", "a guess that the target likes more is always kept"),
        ),
    ),
    topic(
        "acceptance",
        what(
            "acceptance",
            "the acceptance rate",
            "an accepted token",
            say="The acceptance is the number of accepted tokens divided by the number of drafted tokens. "
            "A high value means that the draft often thinks like the target.",
            facts=("accepted tokens divided by the number of drafted tokens", "thinks like the target"),
        ),
        ask(
            "why|is|the acceptance|low",
            "when|is|the acceptance|low",
            "why|are|many guesses|rejected",
            say="The acceptance is low where the next word is open, as in the middle of a story. A high temperature "
            "makes it lower "
            "too. In fixed phrases and lists it is high.",
            facts=("where the next word is open", "in fixed phrases and lists it is high"),
        ),
        ask(
            "where|is|the acceptance|shown",
            "where|can|I|see the acceptance",
            "how|can|I|watch the acceptance",
            say="The speculation view shows it for each position and each request. Accepted tokens and rejected "
            "tokens have "
            "different colors. The first position is usually the best.",
            facts=("for each position and each request", "the first position is usually the best"),
        ),
    ),
    topic(
        "rejection",
        what(
            "a rejection",
            "a rejected token",
            "*rejected tokens",
            "the rejection of a guess",
            say="A rejection is a guess that the verifier does not keep. The target draws another token in its place "
            "from the "
            "residual. All later guesses of the round are dropped.",
            facts=("a guess that the verifier does not keep", "from the residual"),
        ),
    ),
    topic(
        "the residual",
        what(
            "the residual",
            "the residual distribution",
            "a residual",
            say="The residual is what is left of p where it is larger than q, scaled to one. After a rejection the "
            "next token is "
            "drawn from it. This makes the result exact.",
            facts=("left of p where it is larger than q", "this makes the result exact"),
        ),
    ),
    topic(
        "the bonus token",
        what(
            "a bonus token",
            "the bonus token",
            "*bonus tokens",
            "a bonus",
            say="The bonus token is a free token of the target. When all K guesses are accepted, the same pass "
            "already holds the "
            "probabilities of one more. So a round gives at most K plus one tokens.",
            facts=("a free token of the target", "at most k plus one tokens"),
        ),
    ),
    topic(
        "greedy rounds",
        what(
            "a greedy round",
            "greedy decoding with a draft",
            "speculation at temperature zero",
            say="At temperature zero a guess is accepted if it is the most likely token of the target. No random "
            "number is needed. "
            "The text is the same as without a draft.",
            facts=("if it is the most likely token of the target", "the same as without a draft"),
        ),
    ),
    topic(
        "prompt lookup",
        what(
            "prompt lookup",
            "ngram drafting",
            "the ngram proposer",
            "prompt lookup decoding",
            say="Prompt lookup drafts without a model. It looks for the last few tokens earlier in the text and "
            "proposes what came "
            "after them. You choose it with the draft option ngram.",
            facts=("drafts without a model", "proposes what came after them"),
        ),
        ask(
            "when|is|prompt lookup|good",
            "when|does|prompt lookup|help/helps|",
            "why|is|prompt lookup|fast",
            say="It is good when the answer repeats the prompt, as in copying or editing a text. It costs almost "
            "nothing. "
            "In free text it finds no match and stays silent.",
            facts=("when the answer repeats the prompt", "finds no match and stays silent"),
        ),
    ),
    topic(
        "adaptive K",
        what(
            "adaptive K",
            "the adaptive policy",
            "the automatic choice of K",
            say="Adaptive K watches the acceptance and the measured costs. It raises K where guesses are right and "
            "lowers it where "
            "they are wrong. It can also switch drafting off for a while.",
            facts=("watches the acceptance and the measured costs", "switch drafting off for a while"),
        ),
    ),
    topic(
        "lag",
        what(
            "the lag of the draft",
            "lag",
            "a lagging draft",
            say="Lag means that the draft has read less of the text than the target. It happens after a prefix hit or "
            "a resume. "
            "While the draft catches up, K is zero.",
            facts=("read less of the text than the target", "while the draft catches up"),
        ),
    ),
    topic(
        "rounds",
        what(
            "a round",
            "a round of speculation",
            "*rounds",
            say="A round is one proposal of the draft and one check by the target. It adds between one and K plus one "
            "tokens. "
            "The app draws each round as one row.",
            facts=("one proposal of the draft and one check", "between one and k plus one tokens"),
        ),
    ),
    topic(
        "the speed of speculation",
        ask(
            "how much|does|speculation|save/saves|",
            "how fast|is|speculative decoding|",
            "how much faster|is|the engine|with a draft",
            say="It depends on the acceptance and on the cost of the draft. If the draft is cheap and often right, "
            "each pass writes "
            "several tokens. If it is often wrong, plain decoding is faster.",
            facts=("on the acceptance and on the cost of the draft", "plain decoding is faster"),
        ),
        ask(
            "why|is|the draft|much smaller",
            "why|does|the draft|have/has|only one layer",
            "how big|can|a draft|be",
            say="The draft runs K times in each round, so it must be cheap. A larger draft guesses better but costs "
            "more. "
            "The demo draft is less than a quarter of its target.",
            facts=("runs k times in each round", "guesses better but costs more"),
        ),
    ),
)
