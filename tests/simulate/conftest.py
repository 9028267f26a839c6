"""The data set of the data server's tests, and nodes that do not hurry."""

from tests.node.conftest import texts as texts
from tests.several_nodes.conftest import patient as patient
