"""Longer texts of the playground: the keys and the tour."""

from __future__ import annotations

KEYS = """# Keys

Letters and digits work outside the text field: *escape* leaves it (*tab* while an answer runs, which
escape stops), *i* or *enter* goes back.

| key | does |
|---|---|
| *F1* or *?* | this help: the view, the keys, the tour |
| *0* … *6* | cockpit, Chat, Blocks, Sched, Prefix, Spec, Trace |
| *F2* or *space* | pause and run the engine |
| *F3* or *.* | one engine step while paused; one step forward in history |
| *,* | one step back |
| *[* and *]* | ten steps back and forward |
| *home* and *end* | the oldest step, and live again |
| *F4*, *+* and *-* | speed: 0.5, 1, 2, 5, 10, 30 steps a second, full speed |
| *F8* or *b* | break on a preemption, an eviction, an end, … |
| *n* and *N* | next and previous request |
| *w* | why does it wait, why did its prefix stop matching |
| *ctrl+t* | the token lens: off, source, probability, step |
| *enter* and *ctrl+j* | send, new line |
| *up* and *down* | what you sent before |
| *ctrl+n* | new chat |
| *escape* or *ctrl+c* | stop the answer; what there is stays |
| *ctrl+l* | background load: six more requests |
| *F5* | sampling parameters of the next message |
| *k* | drafts per round: automatic, 0 to 8 |
| *d* | drafting on and off |
| *x* | abort the selected request |
| *c* | clear the prefix cache |
| *ctrl+s* and *ctrl+o* | save and open a trace |
| *y* | copy the view as text |
| *ctrl+p* | everything, by name |
| *ctrl+q* | quit |
"""

TOUR = """# The tour

1. **Send a message.** Its prompt is cut into blocks of 16 tokens. What the cache already holds is not computed again:
   the line below the answer says how much.
2. **ctrl+l** starts six more requests. They share a system prompt, so they share its blocks: in *Blocks* those show
   `*n`, the number of requests that hold them.
3. **F2** pauses. **F3** takes one step. In *Sched* each column is a step: who read a chunk of prompt, who made a
   token, who waited, and why.
4. **,** goes back in time, as far as 2,000 steps, while the engine runs on. **end** is now.
5. **F8**, *a request is preempted*: the engine stops at that very step. *Sched* says who needed the block.
6. With a draft model, **ctrl+t** shows which tokens of an answer were guessed ahead and kept. *Spec* shows each round:
   what was proposed, with which probability, and where it was cut.
7. **ctrl+s** saves all of this. `mini-infer tui --replay FILE` shows it again.
"""
