"""The tour, fifth part: the model, its text, and how a token is chosen."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

MODEL = (
    topic(
        "tokens",
        what(
            "a token",
            "*tokens",
            "a text token",
            say="A token is a piece of text that the model reads or writes in one go. It may be a word, a part of a "
            "word or a sign. "
            "Each token has a number.",
            facts=("a piece of text that the model reads or writes", "each token has a number"),
        ),
    ),
    topic(
        "the tokenizer",
        what(
            "the tokenizer",
            "a tokenizer",
            "byte pair encoding",
            say="The tokenizer cuts text into tokens and joins tokens to text again. The demo has a vocabulary of "
            "about four "
            "thousand tokens. Unknown words are written in smaller pieces.",
            facts=("cuts text into tokens", "unknown words are written in smaller pieces"),
        ),
    ),
    topic(
        "the chat template",
        what(
            "the chat template",
            "a chat template",
            "ChatML",
            say="The chat template writes a conversation as one text. Control tokens mark where a message begins and "
            "ends. "
            "Your own words can never make a control token.",
            facts=("writes a conversation as one text", "can never make a control token"),
        ),
    ),
    topic(
        "the system prompt",
        what(
            "the system prompt",
            "a system prompt",
            "the system message",
            say="The system prompt is a text that stands before every conversation. It tells the model who it is. "
            "Because it is always the same, its blocks are shared through the prefix cache.",
            facts=("stands before every conversation", "its blocks are shared through the prefix cache"),
        ),
    ),
    topic(
        "sampling",
        what(
            "sampling",
            "the sampler",
            "the sampling of a token",
            say="Sampling draws the next token from the probabilities of the model. Temperature, top-k and top-p "
            "shape them first. "
            "Greedy sampling always takes the most likely token.",
            facts=("draws the next token from the probabilities", "greedy sampling always takes the most likely"),
        ),
    ),
    topic(
        "temperature",
        what(
            "temperature",
            "the temperature",
            "the option temperature",
            say="The temperature divides the logits before a token is drawn. A low value makes the answer safe, and a "
            "high value "
            "makes it wild. At zero the most likely token always wins.",
            facts=("divides the logits", "at zero the most likely token always wins"),
        ),
        ask(
            "why|does|the answer|change/changes|each time",
            "why|is|each answer|different",
            "why|do|I|get/get|another answer every time",
            say="Tokens are drawn at random unless the temperature is zero. Set the temperature to zero or give a "
            "seed. "
            "Then the answer stays the same.",
            facts=("drawn at random unless the temperature is zero", "then the answer stays the same"),
        ),
    ),
    topic(
        "top-p",
        what(
            "top-p",
            "top p sampling",
            "nucleus sampling",
            say="Top-p keeps the most likely tokens until their probabilities add up to p. All others are cut off. "
            "A small p makes the text more careful.",
            facts=("until their probabilities add up to p", "a small p makes the text more careful"),
        ),
    ),
    topic(
        "top-k",
        what(
            "top-k",
            "top k sampling",
            "the option top-k",
            say="Top-k keeps only the k most likely tokens. With k equal to one the choice is greedy. "
            "At zero the rule is switched off.",
            facts=("only the k most likely tokens", "with k equal to one the choice is greedy"),
        ),
    ),
    topic(
        "min-p",
        what(
            "min-p",
            "min p sampling",
            "the option min-p",
            say="Min-p drops every token whose probability is too small next to the best one. If the model is sure, "
            "few tokens "
            "remain. If it is not sure, many remain.",
            facts=("too small next to the best one", "if it is not sure, many remain"),
        ),
    ),
    topic(
        "seeds",
        what(
            "a seed",
            "the seed",
            "the option seed",
            say="A seed fixes the random numbers of a request. The same seed gives the same answer, whatever the "
            "batch or K. "
            "Each answer of a fork gets its own numbers.",
            facts=("fixes the random numbers of a request", "whatever the batch or k"),
        ),
    ),
    topic(
        "penalties",
        what(
            "a penalty",
            "*penalties",
            "the repetition penalty",
            say="A penalty lowers the chance of tokens that were already used. It keeps a model from saying the same "
            "thing again "
            "and again. The demo works well without one.",
            facts=("tokens that were already used", "works well without one"),
        ),
    ),
    topic(
        "stop strings",
        what(
            "a stop string",
            "*stop strings",
            "the option stop",
            say="A stop string ends the answer when it appears. It is cut off and you never see it. A possible "
            "beginning of it is "
            "held back until it is clear.",
            facts=("ends the answer when it appears", "held back until it is clear"),
        ),
    ),
    topic(
        "the end of an answer",
        what(
            "the end token",
            "EOS",
            "the EOS token",
            say="The end token is how the model says that it is done. When it is drawn, the request ends with the "
            "reason stop. "
            "Otherwise the answer ends with length at the limit.",
            facts=("how the model says that it is done", "ends with length at the limit"),
        ),
        ask(
            "how|does|the model|know/knows|when to stop",
            "when|does|an answer|end/ends|",
            "why|did|the answer|stop",
            say="An answer ends with the end token, with a stop string or at the limit of max-tokens. The finish "
            "reason tells which "
            "one it was. You can also abort it yourself.",
            facts=("with a stop string or at the limit of max-tokens", "the finish reason tells which"),
        ),
    ),
    topic(
        "logits",
        what(
            "*logits",
            "a logit",
            "the logits of a row",
            say="Logits are the raw scores of all tokens in the vocabulary. A softmax turns them into probabilities. "
            "The engine computes them only for the rows that need them.",
            facts=("raw scores of all tokens", "only for the rows that need them"),
        ),
    ),
    topic(
        "the context length",
        what(
            "the context length",
            "the context",
            "the context window",
            say="The context length is the number of tokens that prompt and answer may have together. For the demo it "
            "is 1024. "
            "A longer request is refused or ends with length.",
            facts=("that prompt and answer may have together", "for the demo it is 1024"),
        ),
    ),
    topic(
        "attention",
        what(
            "attention",
            "an attention head",
            "self attention",
            say="Attention lets each token look back at all tokens before it. A query is compared with the keys, and "
            "the values are "
            "mixed by the result. That is why keys and values are kept.",
            facts=("look back at all tokens before it", "the values are mixed by the result"),
        ),
    ),
    topic(
        "grouped query attention",
        what(
            "grouped query attention",
            "GQA",
            "a key value head",
            say="In grouped query attention several query heads share one key and value head. The cache becomes "
            "smaller by that "
            "factor. The demo target has four query heads and two shared ones.",
            facts=("several query heads share one key and value head", "the cache becomes smaller"),
        ),
    ),
    topic(
        "RoPE",
        what(
            "RoPE",
            "the rotary embedding",
            "a position embedding",
            say="RoPE tells the model where a token stands. It turns pairs of numbers in queries and keys by an angle "
            "that grows "
            "with the position. So attention sees distances.",
            facts=("where a token stands", "by an angle that grows with the position"),
        ),
    ),
    topic(
        "the demo model",
        what(
            "the demo model",
            "the demo pair",
            "this model",
            say="The demo model is a tiny target with an even smaller draft. Both were trained by this project on "
            "text that it "
            "made itself. They need no download.",
            facts=("a tiny target with an even smaller draft", "they need no download"),
        ),
        ask(
            "how big|are|you|",
            "how big|is|the demo model|",
            "how many parameters|does|the demo model|have/has|",
            say="The demo target has about five million parameters in six layers. The draft has about one million in "
            "one layer. "
            "Large models have a thousand times as many.",
            facts=("about five million parameters", "a thousand times as many"),
        ),
        ask(
            "how|was|the demo model|trained",
            "where|does|your knowledge|come/comes|from",
            "how|were|you|trained",
            say="A program of this project wrote the training text: stories, answers about this app and small tasks. "
            "The target learned from the text, and the draft learned from the target.",
            facts=("wrote the training text", "the draft learned from the target"),
        ),
    ),
    topic(
        "layers",
        what(
            "a layer",
            "*layers",
            "a transformer layer",
            say="A layer is one stage of the model. It has an attention part and an MLP part. "
            "The layers run one after another, and each has keys and values of its own.",
            facts=("one stage of the model", "an attention part and an mlp part"),
        ),
    ),
    topic(
        "weights",
        what(
            "*weights",
            "the weights of a model",
            "a weight file",
            say="Weights are the numbers that a model has learned. They are read from safetensors files straight into "
            "their place. "
            "For every new token all of them are used.",
            facts=("the numbers that a model has learned", "straight into their place"),
        ),
    ),
    topic(
        "bfloat16",
        what(
            "bfloat16",
            "bf16",
            "the number format",
            say="Bfloat16 is a number format of sixteen bits. It needs half the memory of float32. "
            "The weights of the demo are stored in it.",
            facts=("a number format of sixteen bits", "half the memory of float32"),
        ),
    ),
)
