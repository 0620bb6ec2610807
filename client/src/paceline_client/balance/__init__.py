"""Balance the cost of microbatches: assign sequences to data-parallel ranks and pack them.

The time of attention grows with the square of a sequence's length. Microbatches of equally many
tokens therefore take different times, and every rank waits for the slowest. After a batch is drawn,

>>> batch = [[[4000, 96], [2048, 2048]], [[1024] * 4, [512] * 8]]
>>> even = balance(batch, cost=Cost(linear=1.0, quadratic=1e-3))

``even[rank][microbatch]`` is a list of `Place`: the rank, microbatch and position at which each of
its sequences is now. Every sequence is used once and whole, ranks keep their number of
microbatches, and none has more tokens than the largest one had, or `max_tokens`. The result is the
same on every rank and machine, without communication.

Only the standard library is used, and no randomness. (Paper: "Understanding Stragglers in Large
Model Training Using What-if Analysis", section 5.3.)
"""

from paceline_client.balance.bins import InfeasibleError
from paceline_client.balance.cost import Cost
from paceline_client.balance.sequences import Place, assign, balance, deal, pack, step_cost

__all__ = ["Cost", "InfeasibleError", "Place", "assign", "balance", "deal", "pack", "step_cost"]
