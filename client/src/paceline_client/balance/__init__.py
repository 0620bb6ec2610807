"""Even out what microbatches cost: which sequences a data-parallel rank gets, how it packs them.

Attention takes time with the square of a sequence's length, so that microbatches of as many tokens
take different times, and every rank waits for the slowest one. After a batch is drawn,

>>> batch = [[[4000, 96], [2048, 2048]], [[1024] * 4, [512] * 8]]
>>> even = balance(batch, cost=Cost(linear=1.0, quadratic=1e-3))

says where its sequences should go: ``even[rank][microbatch]`` is a list of `Place`, each the rank,
microbatch and position at which a sequence is now. No sequence is lost, cut or doubled, ranks keep
their number of microbatches, and none holds more tokens than the largest one did, or `max_tokens`.
The same batch gives the same answer on every rank and machine: ranks need not talk to agree.

Only the standard library is used, and no randomness. (Paper: "Understanding Stragglers in Large
Model Training Using What-if Analysis", section 5.3.)
"""

from paceline_client.balance.bins import InfeasibleError
from paceline_client.balance.cost import Cost
from paceline_client.balance.sequences import Place, assign, balance, deal, pack, step_cost

__all__ = ["Cost", "InfeasibleError", "Place", "assign", "balance", "deal", "pack", "step_cost"]
