"""The tour, first part: the paged KV cache and the prefix cache."""

from __future__ import annotations

from mini_infer.demo.questions import ask, topic, what

CACHE = (
    topic(
        "blocks",
        what(
            "a block",
            "a KV block",
            "*blocks",
            "a cache block",
            say="A block is a small piece of the KV cache. It holds the keys and values of sixteen tokens. "
            "Every request keeps its memory in such blocks.",
            facts=("piece of the kv cache", "holds the keys and values of sixteen tokens"),
        ),
        ask(
            "why|do|all blocks|have|the same size",
            "why|is|the block size|fixed",
            "why|are|blocks|of one size",
            say="All blocks have the same size, so any free block fits any request. No memory is lost between "
            "requests. "
            "Only the last block of a request may be partly empty.",
            facts=("any free block fits any request", "may be partly empty"),
        ),
    ),
    topic(
        "the KV cache",
        what(
            "the KV cache",
            "the key value cache",
            "a KV cache",
            say="The KV cache stores the keys and values of every token that was already read. Attention looks at "
            "them in "
            "each step. So a new token costs one row of work instead of the whole text.",
            facts=("every token that was already read", "one row of work instead of the whole text"),
        ),
        ask(
            "how|is|the size of the KV cache|chosen",
            "how big|is|the KV cache|",
            "how much memory|does|the KV cache|take/takes|",
            say="You set the size of the cache with the option kv-blocks or kv-memory. The command info prints the "
            "memory "
            "plan. The tensor is made once at the start and never grows.",
            facts=("option kv-blocks or kv-memory", "made once at the start"),
        ),
    ),
    topic(
        "paged attention",
        what(
            "paged attention",
            "paging in attention",
            "a paged cache",
            say="Paged attention reads keys and values from blocks that may lie anywhere in memory. The block table "
            "says "
            "where they are. It works like the pages of an operating system.",
            facts=("blocks that may lie anywhere", "pages of an operating system"),
        ),
        ask(
            "why|is|the cache|paged",
            "why|does|the engine|use/uses|pages",
            "why|is|paging|useful",
            say="Without pages each request would need one long piece of memory for its longest possible answer. Most "
            "of it "
            "would stay empty. With pages a request takes a new block only when it needs one.",
            facts=("one long piece of memory", "takes a new block only when it needs one"),
        ),
    ),
    topic(
        "block tables",
        what(
            "a block table",
            "*block tables",
            "the block table of a request",
            "the page table",
            say="A block table lists the blocks of one request in order. It turns a position in the text into a place "
            "in the "
            "cache. A new block is added at its end.",
            facts=("lists the blocks of one request in order", "a position in the text into a place"),
        ),
        ask(
            "how|does|a block table|grow/grows|",
            "when|does|a block table|get/gets|longer",
            "when|does|a request|take/takes|a new block",
            say="When the last block of a request is full, the next token needs a new one. The pool hands out a free "
            "block, "
            "and its number is written at the end of the table. Unused draft blocks are trimmed again.",
            facts=("when the last block of a request is full", "unused draft blocks are trimmed"),
        ),
    ),
    topic(
        "the block pool",
        what(
            "the block pool",
            "a block pool",
            "the pool of blocks",
            "the pool",
            say="The block pool owns all blocks of the cache. Each block is free, cached or in use, and these three "
            "always "
            "add up to the whole pool. When a request ends, its blocks go back at once.",
            facts=("owns all blocks", "free, cached or in use"),
        ),
        ask(
            "what happens|=|when the pool is empty|",
            "what happens|=|when no block is free|",
            "what happens|=|when memory runs out|",
            say="First the pool reuses cached blocks that nobody holds. If there is none left, the scheduler preempts "
            "a running "
            "request and takes its blocks. New requests must wait.",
            facts=("reuses cached blocks that nobody holds", "preempts a running request"),
        ),
    ),
    topic(
        "the free list",
        what(
            "the free list",
            "the list of free blocks",
            "a free list",
            say="The free list holds every block that no request uses. Blocks without a hash stand at its head and "
            "are used "
            "first. Hashed blocks stand at its tail, because they may still be hit.",
            facts=("every block that no request uses", "blocks without a hash stand at its head"),
        ),
        ask(
            "why|is|the free list|linked",
            "why|is|the free list|a linked list",
            "how|is|a block|taken out of the free list",
            say="The free list is a doubly linked list. A cached block that is hit can be taken out of the middle in "
            "constant "
            "time. No search is needed.",
            facts=("doubly linked", "out of the middle in constant time"),
        ),
    ),
    topic(
        "reference counts",
        what(
            "a reference count",
            "*reference counts",
            "the reference count of a block",
            say="The reference count of a block says how many block tables hold it. A shared block has a count above "
            "one. "
            "At zero the block goes back to the free list.",
            facts=("how many block tables hold it", "at zero the block goes back"),
        ),
        ask(
            "|can|two requests|share a block",
            "how|do|requests|share|a block",
            "when|do|two requests|share|blocks",
            say="Yes, two requests share a block when their texts begin with the same tokens. The block is stored "
            "once and its "
            "count is two. Nobody writes into it while it is shared.",
            facts=("texts begin with the same tokens", "nobody writes into it while it is shared"),
        ),
    ),
    topic(
        "slots",
        what(
            "a slot",
            "*slots",
            "a slot in the cache",
            say="A slot is the place of one token in the cache. Its number is the block number times the block size "
            "plus the "
            "offset in the block. The model writes new keys and values into slots.",
            facts=("place of one token in the cache", "plus the offset in the block"),
        ),
    ),
    topic(
        "the prefix cache",
        what(
            "the prefix cache",
            "prefix caching",
            "a prefix cache",
            "prefix sharing",
            say="The prefix cache lets a request reuse blocks of an earlier text that begins in the same way. These "
            "tokens are "
            "not computed again. A shared system prompt is the most common case.",
            facts=("reuse blocks of an earlier text", "a shared system prompt is the most common case"),
        ),
        ask(
            "how|does|the prefix cache|work/works|",
            "how|does|the prefix cache|find/finds|a block",
            "how|are|equal prefixes|found",
            say="Each full block gets a key from its tokens and the key of the block before it. A new prompt is "
            "looked up block "
            "by block until the first miss. On a hit the tokens are compared as well.",
            facts=("key of the block before it", "until the first miss"),
        ),
        ask(
            "why|does|the prefix cache|help/helps|",
            "why|is|the prefix cache|useful",
            "why|is|prefix caching|fast",
            say="A hit skips the prefill of all shared tokens. So the first token comes sooner and the blocks are "
            "stored only "
            "once. The longer the common beginning, the more time is saved.",
            facts=("skips the prefill of all shared tokens", "the longer the common beginning"),
        ),
    ),
    topic(
        "prefix hits",
        what(
            "a prefix hit",
            "a cache hit",
            "*prefix hits",
            "a hit in the prefix cache",
            say="A prefix hit means that a block of your prompt is already in the cache. Only whole blocks can hit. "
            "Hits are counted once, when a request is first admitted.",
            facts=("only whole blocks can hit", "when a request is first admitted"),
        ),
        ask(
            "why|is|the last token|never a hit",
            "why|is|the last token|always computed",
            "why|does|a full hit|compute/computes|one block again",
            say="The last token must be computed, because its row gives the logits of the next token. So a hit never "
            "covers "
            "the whole prompt. Even a known prompt computes its last block again.",
            facts=("its row gives the logits of the next token", "a hit never covers the whole prompt"),
        ),
    ),
    topic(
        "prefix misses",
        what(
            "a prefix miss",
            "a cache miss",
            "*prefix misses",
            "a miss in the prefix cache",
            say="A prefix miss is the point where your prompt stops matching the cache. From there on every token is "
            "computed. "
            "The app names the reason of each miss.",
            facts=("stops matching the cache", "names the reason of each miss"),
        ),
        ask(
            "why|did|my prefix|miss",
            "why|did|the prefix cache|miss",
            "what|are|the reasons for a miss|",
            say="The text may differ at one token, or the block was evicted, or it was never seen. A different salt "
            "also stops "
            "the match. The prefix view shows which of these it was.",
            facts=("differ at one token", "evicted, or it was never seen"),
        ),
    ),
    topic(
        "block hashes",
        what(
            "a block hash",
            "the key of a block",
            "*block hashes",
            "the hash of a block",
            say="The hash of a block is its key in the prefix index. It covers the tokens of the block, the key of "
            "its parent "
            "and the name of the model. Equal keys mean equal beginnings.",
            facts=("its key in the prefix index", "equal keys mean equal beginnings"),
        ),
        ask(
            "why|does|a hash|contain/contains|the parent",
            "why|is|the parent|part of the hash",
            "why|do|hashes|form|a chain",
            say="The same sixteen tokens mean something else after another beginning. Because the parent is part of "
            "the key, "
            "two blocks match only if everything before them matches too.",
            facts=("after another beginning", "only if everything before them matches too"),
        ),
    ),
    topic(
        "eviction",
        what(
            "eviction",
            "an evicted block",
            "the eviction of a block",
            say="Eviction means that a cached block is reused for other tokens. Its key is removed from the index. "
            "Only blocks that no request holds can be evicted.",
            facts=("is reused for other tokens", "only blocks that no request holds"),
        ),
        ask(
            "which block|=|is evicted first|",
            "how|does|the pool|choose/chooses|a block to evict",
            "what|is|the order of eviction|",
            say="The block that was unused for the longest time goes first. This rule is called LRU, least recently "
            "used. "
            "Of one request, the last block goes before the first.",
            facts=("unused for the longest time", "least recently used"),
        ),
    ),
    topic(
        "published blocks",
        what(
            "a published block",
            "*published blocks",
            "the publishing of a block",
            say="A published block has a key in the prefix index, so other requests can find it. Only full blocks "
            "whose rows are "
            "all computed are published. Their rows are never written again.",
            facts=("so other requests can find it", "never written again"),
        ),
        ask(
            "when|is|a block|published",
            "when|does|a block|enter/enters|the prefix index",
            "when|can|other requests|find a block",
            say="A block is published in the commit that computes its last row. This holds for prompt and answer "
            "alike. "
            "So a long prompt can be shared while it is still being read.",
            facts=("in the commit that computes its last row", "shared while it is still being read"),
        ),
    ),
    topic(
        "forks",
        what(
            "a fork",
            "*forks",
            "a request with n above one",
            "forking",
            say="A fork gives several answers to one prompt. The prompt is read once and all answers share its blocks. "
            "Each answer then draws its own tokens.",
            facts=("several answers to one prompt", "all answers share its blocks"),
        ),
        ask(
            "how|does|copy on write|work/works|",
            "what happens|=|when a shared block is written|",
            "when|is|a block|copied",
            say="Who wants to write into a shared block gets a fresh copy first. The last holder may write in place. "
            "This is called copy on write.",
            facts=("gets a fresh copy first", "the last holder may write in place"),
        ),
    ),
    topic(
        "the cache salt",
        what(
            "a cache salt",
            "the cache salt",
            "a salt",
            say="A cache salt is a word that a request adds to its block keys. Only requests with the same salt share "
            "blocks. "
            "It keeps the users of a server apart.",
            facts=("a word that a request adds to its block keys", "keeps the users of a server apart"),
        ),
    ),
    topic(
        "cached blocks",
        what(
            "a cached block",
            "*cached blocks",
            "an idle cached block",
            say="A cached block belongs to no request, but its rows are still good. If a new prompt begins with them, "
            "it is a hit. "
            "Otherwise the block waits until it is evicted.",
            facts=("belongs to no request", "its rows are still good"),
        ),
        ask(
            "why|do|blocks|stay|after a request",
            "why|are|blocks|kept after the end of a request",
            "what happens|=|to the blocks of a finished request|",
            say="A finished request gives all its blocks back. They keep their hash until they are reused, so your "
            "next turn "
            "finds the whole conversation in the cache. Keeping them costs nothing.",
            facts=("keep their hash until they are reused", "finds the whole conversation in the cache"),
        ),
    ),
    topic(
        "the block view",
        what(
            "the block view",
            "the map of blocks",
            "the colored grid",
            say="The block view draws every block of the pool as one small cell. The color tells which request owns "
            "it. "
            "Free, cached and shared blocks look different.",
            facts=("every block of the pool as one small cell", "the color tells which request owns it"),
        ),
    ),
    topic(
        "partial blocks",
        what(
            "a partial block",
            "*partial blocks",
            "a block that is not full",
            say="A partial block has fewer tokens than it could hold. It is the last block of a text. "
            "It has no hash and cannot be shared through the index.",
            facts=("fewer tokens than it could hold", "has no hash and cannot be shared"),
        ),
    ),
)
