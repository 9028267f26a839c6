"""What a launcher decides: which hosts a list names, and which command starts a node where."""

from __future__ import annotations

import shlex
import socket
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.cluster.launcher import (
    SSH_OPTIONS,
    Host,
    Serving,
    free_ports,
    in_namespaces,
    on_ports,
    over_ssh,
    parse_hosts,
)
from brand.cluster.namespaces import Namespace
from brand.errors import UsageError
from brand.node.wire.network import check_free

TAIL = ["--token-file", "-", "--until-eof"]


@pytest.mark.parametrize(
    ("line", "login", "address"),
    [
        ("node1", "node1", "node1:7070"),
        ("node1:9000", "node1", "node1:9000"),
        ("  node1.example.org:9000   # the fast one", "node1.example.org", "node1.example.org:9000"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1:7070"),
        ("[fd00::1]", "fd00::1", "[fd00::1]:7070"),
        ("[::1]:9000", "::1", "[::1]:9000"),
        ("me@node1:9000", "me@node1", "node1:9000"),
        ("me@[::1]", "me@::1", "[::1]:7070"),
    ],
)
def test_a_line_names_a_host(line: str, login: str, address: str) -> None:
    """The port and the user may be missing; ssh gets no port, which is the node's."""
    assert parse_hosts(f"# hosts\n\n{line}\n", "hosts.txt") == [Host(login, address)]


@pytest.mark.parametrize(
    "line",
    [
        *("node1:", "node1:0", "node1:70000", "node1:port", "node one", ":7070", "@node1", "me@", "::1", "fd00::1"),
        *("[::1", "[]", "[::1]7070", "a@b@c", "node1:1:2", "node1;reboot", "$(reboot)", "http://node1"),
        *("-oProxyCommand", "me@-oProxyCommand", "-v:7070", "-v@node1"),
    ],
)
def test_what_is_no_host_is_named_with_its_line(line: str) -> None:
    """Also what ssh would take for an option, or a shell for a command."""
    with pytest.raises(UsageError, match=r"^hosts\.txt, line 2: .* is not a host; write it like"):
        parse_hosts(f"node0\n{line}\n", "hosts.txt")


def test_two_nodes_on_one_host_need_two_ports() -> None:
    """The second line is named."""
    assert len(parse_hosts("node0:1\nnode0:2\n", "hosts.txt")) == 2
    with pytest.raises(UsageError, match=r"line 3: node0:7070 is listed already; two nodes need two ports"):
        parse_hosts("node0\nnode1\nnode0:7070\n", "hosts.txt")


@pytest.mark.parametrize(("text", "count"), [("", "0 hosts"), ("# none\n\n", "0 hosts")])
def test_a_list_names_hosts(text: str, count: str) -> None:
    """An empty list is a mistake."""
    with pytest.raises(UsageError, match=f"hosts.txt names {count}; a cluster has 1 to 1,024"):
        parse_hosts(text, "hosts.txt")
    with pytest.raises(UsageError, match="names 1,025 hosts"):
        parse_hosts("\n".join(f"node{number}" for number in range(1025)), "hosts.txt")


def test_each_node_is_told_its_number_and_where_all_are() -> None:
    """`{node}` stands for the number wherever it is; what is not given is not passed on."""
    serving = Serving("/shares/{node}", {"--memory": "2GB", "--peer-memory": None, "--tls-key": "/keys/{node}.pem"})
    one, two = on_ports(serving, [4000, 5000], "python9")
    assert one.where == "127.0.0.1:4000"
    peers = ["--peers", "127.0.0.1:4000,127.0.0.1:5000"]
    head = ["python9", "-m", "brand", "serve"]
    assert one.command == [*head, "/shares/0", *_options(0), "--node", "0", *peers, *TAIL]
    assert two.command == [*head, "/shares/1", *_options(1), "--node", "1", *peers, *TAIL]
    assert serving.folder(1) == "/shares/1"


def _options(node: int) -> list[str]:
    return ["--memory", "2GB", "--tls-key", f"/keys/{node}.pem"]


def test_ssh_gets_its_options_the_host_and_one_command() -> None:
    """Nobody is asked for a password, and the wait for a host has a limit."""
    hosts = parse_hosts("me@node0\nnode1:9000\n", "hosts.txt")
    starts = over_ssh(Serving("/set", {}), hosts, "python3", ["ssh", "-p", "2222"])
    assert starts[0].command[:-1] == ["ssh", "-p", "2222", *SSH_OPTIONS, "me@node0"]
    assert starts[1].where == "node1:9000"
    assert starts[1].command[-1] == (
        "python3 -m brand serve /set --node 1 --peers node0:7070,node1:9000 --token-file - --until-eof"
    )
    assert "BatchMode=yes" in SSH_OPTIONS
    assert any(option.startswith("ConnectTimeout=") for option in SSH_OPTIONS)


@pytest.mark.slow
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_no_shell_on_the_way_changes_a_name(name: str) -> None:
    """Blanks, quotes and dollars arrive as they are."""
    dst = f"/{name}"
    (start,) = over_ssh(Serving(dst, {"--address": f"unix:@{name}"}), [Host("h", "h:1")], "python3", ["ssh"])
    words = shlex.split(start.command[-1])
    assert words[4] == dst.replace("{node}", "0")
    assert words[6] == f"unix:@{name}".replace("{node}", "0")


def test_in_a_namespace_a_node_listens_at_its_address() -> None:
    """Each at the same port; the name of the namespace is told to people."""
    spaces = [Namespace("brand-1-0", "10.77.0.1"), Namespace("brand-1-1", "10.77.0.2")]
    _, start = in_namespaces(Serving("/set", {}), spaces, "python3")
    assert start.where == "10.77.0.2:7070 in brand-1-1"
    assert start.command[:4] == ["ip", "netns", "exec", "brand-1-1"]
    assert start.command[4:8] == ["python3", "-m", "brand", "serve"]
    assert "10.77.0.1:7070,10.77.0.2:7070" in start.command


def test_free_ports_are_nobody_elses() -> None:
    """All differ; one can listen at each while they are kept, and nobody else is given one."""
    with free_ports(20) as ports, ExitStack() as taken:
        assert len(set(ports)) == 20
        for port in ports:
            check_free(f"127.0.0.1:{port}")
        others = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(200)]
        assert not {other.getsockname()[1] for other in others} & set(ports)
