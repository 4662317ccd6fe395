"""What each command does; nothing here is imported before it is asked for.

Kernel threads of GNU's OpenMP (that of torch's Linux wheels) spin for milliseconds before they sleep, on cores that
others may want: with one busy neighbour on two cores a decode step of a 0.5B model took 718 ms, with this limit 62 ms,
and alone 30 ms either way. It is read when torch is first imported; what the environment says about it wins.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # about 100 us
