"""BatchNorm folded into the convolutions before it: a network that only embeds takes one pass where it took two."""

import copy
from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx, nn


class Folded:
    """A network in evaluation mode in which a convolution and the BatchNorm that directly follows it are one layer.

    It is the same function up to rounding. Those layers have weights of their own here, which `refreshed` brings up to
    date; all others are the network's. Code that cannot be traced, because its steps depend on numbers, stays as it is.
    No other thread may call a network while one of these is made: tracing watches all modules of the process.
    """

    def __init__(self, network: nn.Module) -> None:
        self._origin = self._network = network.eval()  # what is traced is what is done in evaluation
        self._pairs: list[_Pair] = []
        try:
            graph = _Layers().trace(network)
        except Exception:  # whatever somebody's code raises that is shown no numbers
            return
        self._network = fx.GraphModule(network, graph)
        for before, after, pair in list(_neighbours(graph, network)):
            self._network.set_submodule(str(before.target), pair.together)
            self._pairs.append(pair)
            after.replace_all_uses_with(before)
            graph.erase_node(after)
        self._network.recompile()
        self._network.delete_all_unused_submodules()

    @torch.no_grad()
    def refreshed(self) -> nn.Module:
        """The network in evaluation mode, with the weights as they are now."""
        self._origin.eval()
        for pair in self._pairs:
            pair.refresh()
        return self._network


class _Layers(fx.Tracer):
    """Follows a network down to its layers, whoever wrote them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return next(m.children(), None) is None


class _Pair:
    """A convolution, the BatchNorm after it, and one layer that does the work of both."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self._convolution, self._norm = convolution, norm
        self.together = copy.deepcopy(convolution).requires_grad_(False)
        self.together.bias = nn.Parameter(convolution.weight.new_zeros(convolution.out_channels), requires_grad=False)

    def refresh(self) -> None:
        convolution, norm = self._convolution, self._norm
        assert self.together.bias is not None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.affine:
            scale *= norm.weight
        shift = ((0 if convolution.bias is None else convolution.bias) - norm.running_mean) * scale
        torch.mul(convolution.weight, scale.to(convolution.weight.dtype).view(-1, 1, 1, 1), out=self.together.weight)
        self.together.bias.copy_(shift + norm.bias if norm.affine else shift)


def _neighbours(graph: fx.Graph, network: nn.Module) -> Iterator[tuple[fx.Node, fx.Node, _Pair]]:
    """Every BatchNorm with statistics that is the only one to take the output of a convolution; each is called once."""
    called = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in called)
    for before in called:
        users = list(before.users)
        if len(users) != 1 or users[0] not in called or times[before.target] > 1 or times[users[0].target] > 1:
            continue
        after = users[0]
        convolution, norm = (network.get_submodule(str(node.target)) for node in (before, after))
        if type(convolution) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.running_mean is not None:
            yield before, after, _Pair(convolution, norm)
