"""Malformed clusters: files and the shorthand of the command line."""

from __future__ import annotations

from malformed import Malformed, nested

NODE = "{name: a, gpu: T4, gpus: 4}"
TWO = "nodes:\n- {name: a, gpu: T4, gpus: 4}\n- {name: b, gpu: T4, gpus: 4}\n"


def file(name: str, content: str | bytes, *says: str) -> Malformed:
    return Malformed(f"cluster: {name}", ("islands", "cluster.yaml"), says, {"cluster.yaml": content})


def node(name: str, fields: str, *says: str) -> Malformed:
    """A cluster of one entry."""
    return file(f"node: {name}", f"nodes:\n- {{{fields}}}\n", *says)


def network(name: str, fields: str, *says: str) -> Malformed:
    """Two nodes and a network."""
    return file(f"network: {name}", f"{TWO}network: {fields}\n", *says)


def short(text: str, *says: str) -> Malformed:
    return Malformed(f"shorthand: {text[:40]}", ("islands", text), says)


FILES = (
    file("empty", "", "cluster.yaml: the file is empty"),
    file("only a comment", "# nothing\n", "cluster.yaml: the file is empty"),
    file("null", "~\n", "cluster.yaml: the file is empty"),
    file(
        "a text",
        "eight GPUs\n",
        "cluster.yaml:1: expected a mapping (key: value), found a text, 'eight GPUs'",
    ),
    file("a number", "8\n", "cluster.yaml:1: expected a mapping (key: value), found a whole number, '8'"),
    file("a list", f"- {NODE}\n", "cluster.yaml:1: expected a mapping (key: value), found a list"),
    file(
        "a plan",
        '{"format": "tangram-plan", "version": 1}',
        "cluster.yaml:1: format: is a file that states its format (tangram-plan), not a cluster file",
        "tangram check and tangram simulate take plans",
    ),
    file("nodes missing", "name: lab\n", "cluster.yaml:1: the key 'nodes' is missing", "needed: nodes"),
    file("nodes empty", "nodes: []\n", "cluster.yaml:1: nodes: the list of nodes is empty"),
    file("nodes null", "nodes:\n", "cluster.yaml:1: nodes: expected a list, found an empty value"),
    file(
        "nodes a mapping", f"nodes:\n  a: {NODE}\n", "cluster.yaml:1: nodes: expected a list, found a mapping"
    ),
    file("nodes a text", "nodes: 2x8xT4\n", "cluster.yaml:1: nodes: expected a list, found a text, '2x8xT4'"),
    file(
        "a node is null",
        "nodes:\n-\n",
        "cluster.yaml:2: nodes[0]: expected a mapping (key: value), found an empty value",
    ),
    file(
        "a node is a text",
        "nodes: [a]\n",
        "cluster.yaml:1: nodes[0]: expected a mapping (key: value), found a text, 'a'",
    ),
    file(
        "unknown key",
        f"nodes: [{NODE}]\nnetwrok: {{default: 100Gbit}}\n",
        "cluster.yaml:2: netwrok: unknown key 'netwrok'",
        "did you mean 'network'?",
    ),
    file(
        "a key twice",
        f"nodes: [{NODE}]\nname: a\nname: b\n",
        "cluster.yaml:3: the key 'name' is given twice",
        "first in line 2",
    ),
    file(
        "a list as key",
        f"nodes: [{NODE}]\n? [a, b]\n: 1\n",
        "cluster.yaml:2: a list or mapping cannot be a key",
        "keys are plain words",
    ),
    file(
        "an anchor",
        f"nodes:\n- &a {NODE}\n",
        "cluster.yaml:2: anchors (&name) are not accepted",
        "write the value out where it is used",
    ),
    file(
        "an alias", "nodes: *a\n", "cluster.yaml:1: aliases (*name) are not accepted", "write the value out"
    ),
    file(
        "a bomb",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nnodes: [*c, *c]\n",
        "cluster.yaml:1: anchors (&name) are not accepted",
        "write the value out where it is used",
    ),
    file(
        "a merge key",
        "nodes:\n- {<<: {name: a}, gpu: T4, gpus: 4}\n",
        "cluster.yaml:2: nodes[0].<<: unknown key '<<'",
    ),
    file(
        "a tag",
        "nodes: !!python/object/apply:os.system ['true']\n",
        "cluster.yaml:1: the tag 'tag:yaml.org,2002:python/object/apply...' is not accepted",
        "leave it out",
    ),
    file(
        "a tag on a number",
        "nodes:\n- {name: a, gpu: T4, gpus: !!int 4}\n",
        "cluster.yaml:2: the tag 'tag:yaml.org,2002:int' is not accepted",
        "leave it out",
    ),
    file(
        "two documents",
        f"nodes: [{NODE}]\n---\nnodes: [{NODE}]\n",
        "cluster.yaml:2: a second document begins here",
        "keep one per file",
    ),
    file(
        "a tab",
        f"nodes:\n\t- {NODE}\n",
        "cluster.yaml:2:1: not valid YAML: found character that cannot start any token",
        "indent with spaces: YAML does not accept tabs",
    ),
    file(
        "a bracket left open",
        f"nodes: [{NODE}\n",
        "cluster.yaml:2:1: not valid YAML: did not find expected ',' or ']'",
    ),
    file(
        "a quote left open",
        "nodes:\n- {name: 'a, gpu: T4, gpus: 4}\n",
        "cluster.yaml:3:1: not valid YAML: found unexpected end of stream",
    ),
    file(
        "wrong indentation",
        "nodes:\n- name: a\n   gpu: T4\n",
        "cluster.yaml:3:7: not valid YAML: mapping values are not allowed in this context",
    ),
    file(
        "nested too deeply",
        f"nodes: {nested(20)}\n",
        "cluster.yaml:1: lists and mappings nest deeper than 16",
    ),
    file(
        "nested a hundred thousand deep",
        nested(100_000),
        "cluster.yaml:1:1001: not valid YAML: exceeded maximum nesting depth",
    ),
    file(
        "UTF-16",
        f"nodes: [{NODE}]\n".encode("utf-16"),
        "cluster.yaml:1: a cluster file is UTF-8 text; this is not",
    ),
    file(
        "Latin-1",
        f"# Jos\xe9\nnodes: [{NODE}]\n".encode("latin-1"),
        "cluster.yaml:1: a cluster file is UTF-8 text; this is not",
    ),
    file("NUL", b"nodes: \0\n", "cluster.yaml:1: not valid YAML: control characters are not allowed"),
    file(
        "a picture",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "cluster.yaml:1: a cluster file is UTF-8 text; this is not",
    ),
    file(
        "too large", "# " + "x" * 1024**2, "cluster.yaml: a cluster file has at most 1024 KiB; this is larger"
    ),
    file(
        "a name of control characters",
        f'name: "a\\x1b[2Jb"\nnodes: [{NODE}]\n',
        "cluster.yaml:1: name: the name has characters that cannot be printed",
    ),
    file(
        "a name that is a number",
        f"name: 12\nnodes: [{NODE}]\n",
        "cluster.yaml:1: name: expected a text, found a whole number, '12'",
        "put it in quotes if a text is meant",
    ),
    file(
        "assumed is a text",
        f"nodes: [{NODE}]\nassumed: the network\n",
        "cluster.yaml:2: assumed: expected a list, found a text, 'the network'",
    ),
    file(
        "assumed without reason",
        f"nodes: [{NODE}]\nassumed: [{{what: the network}}]\n",
        "cluster.yaml:2: assumed[0]: the key 'why' is missing",
        "needed: what, why",
    ),
    Malformed(
        "cluster: no such file",
        ("islands", "clutser.yaml"),
        (
            "clutser.yaml: no such cluster file",
            "did you mean cluster.yaml?",
        ),
        {"cluster.yaml": TWO},
    ),
    Malformed(
        "cluster: a folder",
        ("islands", "."),
        (
            ".: this is a directory, not a cluster file",
            "it holds cluster.yaml",
        ),
        {"cluster.yaml": TWO},
    ),
    Malformed(
        "cluster: a device",
        ("islands", "/dev/null"),
        ("/dev/null: this is not a regular file, so not a cluster file",),
    ),
    Malformed(
        "cluster: no name",
        ("islands", ""),
        (
            "the name of the cluster file is empty",
            "give a file or a shorthand",
        ),
    ),
    Malformed("cluster: a path with NUL", ("islands", "a\0b"), ("a?b: no such cluster file",)),
    Malformed(
        "cluster: a path that is too long",
        ("islands", "x" * 5000),
        ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",),
    ),
    Malformed("cluster: a path with an escape", ("islands", "\x1b[2J"), ("?[2J: no such cluster file",)),
)

NODES = (
    node(
        "no GPU",
        "name: a, gpus: 4",
        "cluster.yaml:2: nodes[0]: the key 'gpu' is missing",
        "needed: name, gpu, gpus",
    ),
    node(
        "no name",
        "gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0]: the key 'name' is missing",
        "needed: name, gpus",
    ),
    node(
        "no number of GPUs",
        "name: a, gpu: T4",
        "cluster.yaml:2: nodes[0]: the key 'gpus' is missing",
        "needed: name, gpus",
    ),
    node(
        "unknown key",
        "name: a, gpu: T4, gpus: 4, memory: 16GiB",
        "cluster.yaml:2: nodes[0].memory: unknown key 'memory'",
    ),
    node(
        "unknown GPU",
        "name: a, gpu: T40, gpus: 4",
        "cluster.yaml:2: nodes[0].gpu: unknown GPU 'T40'",
        "did you mean 'T4'",
    ),
    node(
        "GPU of several variants",
        "name: a, gpu: A100, gpus: 4",
        "cluster.yaml:2: nodes[0].gpu: GPU 'A100' does not say which variant",
        "write A100-40GB-SXM",
    ),
    node(
        "GPU is a number",
        "name: a, gpu: 4090, gpus: 4",
        "cluster.yaml:2: nodes[0].gpu: expected a GPU such as A100-80GB-SXM, found a whole number, '4090'",
    ),
    node(
        "GPU is a list",
        "name: a, gpu: [T4], gpus: 4",
        "cluster.yaml:2: nodes[0].gpu: expected a GPU such as A100-80GB-SXM, found a list",
    ),
    node("GPU is blank", "name: a, gpu: ' ', gpus: 4", "cluster.yaml:2: nodes[0].gpu: the text is blank"),
    node(
        "GPU of a thousand letters",
        f"name: a, gpu: {'x' * 1000}, gpus: 4",
        "cluster.yaml:2: nodes[0].gpu: unknown GPU",
    ),
    node(
        "no GPUs",
        "name: a, gpu: T4, gpus: 0",
        "cluster.yaml:2: nodes[0].gpus: 0 is out of range",
        "legal: 1 to 256",
    ),
    node(
        "too many GPUs",
        "name: a, gpu: T4, gpus: 257",
        "cluster.yaml:2: nodes[0].gpus: 257 is out of range",
        "legal: 1 to 256",
    ),
    node(
        "GPUs a text",
        "name: a, gpu: T4, gpus: four",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a text, 'four'",
        "legal: 1 to 256",
    ),
    node(
        "GPUs in quotes",
        "name: a, gpu: T4, gpus: '4'",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a text, '4'",
        "legal: 1 to 256",
    ),
    node(
        "GPUs a fraction",
        "name: a, gpu: T4, gpus: 4.0",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a number, '4.0'",
        "legal: 1 to 256",
    ),
    node(
        "GPUs in octal",
        "name: a, gpu: T4, gpus: 010",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a value that YAML readers disagree",
        "legal: 1 to 256",
    ),
    node(
        "GPUs in base 60",
        "name: a, gpu: T4, gpus: 1:30",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a value that YAML readers disagree",
        "legal: 1 to 256",
    ),
    node(
        "GPUs yes",
        "name: a, gpu: T4, gpus: yes",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a yes/no value, 'yes'",
        "legal: 1 to 256",
    ),
    node(
        "GPUs nan",
        "name: a, gpu: T4, gpus: .nan",
        "cluster.yaml:2: nodes[0].gpus: expected a whole number, found a number, '.nan'",
        "legal: 1 to 256",
    ),
    node(
        "GPUs of a hundred digits",
        f"name: a, gpu: T4, gpus: {'9' * 100}",
        "cluster.yaml:2: nodes[0].gpus: 9999999999999999999999999999999999999... is out of range",
        "legal: 1 to 256",
    ),
    node(
        "count 0",
        "name: a, count: 0, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].count: 0 is out of range",
        "legal: 1 to 65536",
    ),
    node(
        "count negative",
        "name: a, count: -2, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].count: -2 is out of range",
        "legal: 1 to 65536",
    ),
    node(
        "count beyond all clusters",
        "name: a, count: 65537, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].count: 65537 is out of range",
        "legal: 1 to 65536",
    ),
    node(
        "name with a space",
        "name: my node, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].name: 'my node' cannot be a name",
        "up to 64 letters, digits, '.', '_' and '-', no space",
    ),
    node(
        "name is a number",
        "name: 1, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].name: expected a text, found a whole number, '1'",
        "put it in quotes if a text is meant",
    ),
    node(
        "name is no",
        "name: no, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].name: expected a text, found a yes/no value, 'no'",
        "put it in quotes if a text is meant",
    ),
    node(
        "name of 65 letters",
        f"name: {'a' * 65}, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].name: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...' cannot be a name",
        "up to 64 letters, digits, '.', '_' and '-', no space",
    ),
    node(
        "host with a slash",
        "name: a, host: a/b, gpu: T4, gpus: 4",
        "cluster.yaml:2: nodes[0].host: 'a/b' cannot be a name",
        "up to 64 letters, digits, '.', '_' and '-', no space",
    ),
    node(
        "link unknown",
        "name: a, gpu: T4, gpus: 4, intra: infiniband",
        "cluster.yaml:2: nodes[0].intra: unknown link 'infiniband'",
        "legal: nvlink, nvlink-pairs, xgmi, pcie, pcie-host or a bandwidth such as 300GB/s",
    ),
    node(
        "link that the part lacks",
        "name: a, gpu: T4, gpus: 4, intra: nvlink",
        "cluster.yaml:2: nodes[0].intra: T4 has no nvlink",
        "legal: pcie or a bandwidth such as 300GB/s",
    ),
    node(
        "link of another vendor",
        "name: a, gpu: A100-80GB-SXM, gpus: 4, intra: xgmi",
        "cluster.yaml:2: nodes[0].intra: A100-80GB-SXM has no xgmi",
        "legal: nvlink or pcie or a bandwidth such as 300GB/s",
    ),
    node(
        "bridge of pairs",
        "name: a, gpu: A40, gpus: 4, intra: nvlink",
        "cluster.yaml:2: nodes[0].intra: the nvlink bridge of A40 joins pairs, not 4 GPUs",
        "write nvlink-pairs, or pcie where there are no bridges",
    ),
    node(
        "link without unit",
        "name: a, gpu: T4, gpus: 4, intra: '300'",
        "cluster.yaml:2: nodes[0].intra: '300' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    node(
        "link a number",
        "name: a, gpu: T4, gpus: 4, intra: 300",
        "cluster.yaml:2: nodes[0].intra: expected nvlink, nvlink-pairs, xgmi, pcie, pcie-host or a bandwidth",
    ),
    node(
        "pairs of three GPUs",
        "name: a, gpu: A40, gpus: 3, intra: nvlink-pairs",
        "cluster.yaml:2: nodes[0].intra: 3 GPUs are no pairs",
        "an entry of their own, on the same host",
    ),
    node(
        "GPUs without a number",
        "name: a, gpus: [T4:2, A40]",
        "cluster.yaml:2: nodes[0].gpus[1]: 'A40' does not say how many",
        "a part and how many, such as RTX-4090:2",
    ),
    node(
        "matrix of another size",
        "name: a, gpu: T4, gpus: 3, intra: {matrix: [[-, 5], [5, -]], unit: GB/s}",
        "cluster.yaml:2: nodes[0].intra.matrix: 2 rows for 3: GPU 0, GPU 1, GPU 2",
    ),
    node(
        "matrix of one direction",
        "name: a, gpu: T4, gpus: 2, intra: {matrix: [[-, 5], [-, -]], unit: GB/s}",
        "cluster.yaml:2: nodes[0].intra.matrix[1][0]: this cell is empty",
        "state both directions",
    ),
    node(
        "domain over PCIe",
        "name: a, count: 2, gpu: T4, gpus: 4, domain: 2",
        "cluster.yaml:2: nodes[0].domain: the link inside 'a' is PCIe, which joins no domain",
        "write domain: none",
    ),
    node(
        "link of bytes",
        "name: a, gpu: T4, gpus: 4, intra: 300GB",
        "cluster.yaml:2: nodes[0].intra: '300GB' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    node(
        "link too fast",
        "name: a, gpu: T4, gpus: 4, intra: 300000TB/s",
        "cluster.yaml:2: nodes[0].intra: '300000TB/s' is out of range",
        "legal: 1Mbit to 100TB/s",
    ),
    node(
        "link with a latency alone",
        "name: a, gpu: T4, gpus: 4, intra: {latency: 3us}",
        "cluster.yaml:2: nodes[0].intra: the key 'link' is missing",
        "or give a matrix",
    ),
    node(
        "latency without unit",
        "name: a, gpu: T4, gpus: 4, intra: {link: pcie, latency: '3'}",
        "cluster.yaml:2: nodes[0].intra.latency: '3' has no unit of time",
        "write for example 5us",
    ),
    node(
        "latency of a minute",
        "name: a, gpu: T4, gpus: 4, intra: {link: pcie, latency: 60s}",
        "cluster.yaml:2: nodes[0].intra.latency: '60s' is out of range",
        "legal: 0s to 1s",
    ),
    node(
        "NICs without unit",
        "name: a, gpu: T4, gpus: 4, nics: '100'",
        "cluster.yaml:2: nodes[0].nics: '100' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    node(
        "NICs 0",
        "name: a, gpu: T4, gpus: 4, nics: 0Gbit",
        "cluster.yaml:2: nodes[0].nics: bandwidth '0Gbit' is not above zero",
        "write for example 100Gbit or 300GB/s",
    ),
    node(
        "no NICs",
        "name: a, gpu: T4, gpus: 4, nics: 100Gbit x0",
        "cluster.yaml:2: nodes[0].nics: 0 NICs are out of range",
        "legal: x1 to x64",
    ),
    node(
        "a thousand NICs",
        "name: a, gpu: T4, gpus: 4, nics: 100Gbit x1000",
        "cluster.yaml:2: nodes[0].nics: 1000 NICs are out of range",
        "legal: x1 to x64",
    ),
    node(
        "NICs negative",
        "name: a, gpu: T4, gpus: 4, nics: -100Gbit",
        "cluster.yaml:2: nodes[0].nics: '-100Gbit' is not a bandwidth such as 100Gbit or 300GB/s",
    ),
    node(
        "NICs infinite",
        "name: a, gpu: T4, gpus: 4, nics: 1e999Gbit",
        "cluster.yaml:2: nodes[0].nics: bandwidth '1e999Gbit' is too large a number",
        "write for example 100Gbit or 300GB/s",
    ),
    node(
        "NICs are many",
        "name: a, gpu: T4, gpus: 4, nics: many",
        "cluster.yaml:2: nodes[0].nics: 'many' is not a bandwidth such as 100Gbit or 300GB/s",
    ),
    file(
        "two nodes of one name",
        f"nodes:\n- {NODE}\n- {NODE}\n",
        "cluster.yaml:3: nodes[1]: the name 'a' is taken",
        "another entry uses it, in line 2",
    ),
    file(
        "name of a numbered node",
        f"nodes:\n- {{name: b, count: 2, gpu: T4, gpus: 4}}\n- {NODE[:-1]}, "
        "host: b}\n- {name: b-1, gpu: T4, gpus: 4}\n",
        "cluster.yaml:4: nodes[2]: the name 'b-1' is taken",
        "another entry uses it, in line 2",
    ),
    file(
        "too many nodes in all",
        "nodes:\n- {name: a, count: 40000, gpu: T4, gpus: 1}\n- {name: b, count: 40000, gpu: T4, gpus: 1}\n",
        "cluster.yaml:3: nodes[1]: the cluster has more than 65536 nodes",
    ),
    file(
        "a host of unequal counts",
        "nodes:\n- {name: a, host: h, count: 2, gpu: T4, gpus: 1}\n"
        "- {name: b, host: h, count: 3, gpu: A10, gpus: 1}\n",
        "cluster.yaml:3: nodes[1]: 'b' and 'a' share hosts, so they need the same count",
    ),
    file(
        "a host of two kinds of NICs",
        "nodes:\n- {name: a, host: h, gpu: T4, gpus: 1, nics: 10Gbit}\n"
        "- {name: b, host: h, gpu: A10, gpus: 1, nics: 25Gbit}\n",
        "cluster.yaml:3: nodes[1]: 'b' and 'a' share host 'h' but state different NICs",
        "state the NICs of a shared host once",
    ),
)

NETWORKS = (
    network(
        "a text",
        "100Gbit",
        "cluster.yaml:4: network: expected a mapping (key: value), found a text, '100Gbit'",
    ),
    network("unknown key", "{speed: 100Gbit}", "cluster.yaml:4: network.speed: unknown key 'speed'"),
    network(
        "default a number",
        "{default: 100}",
        "cluster.yaml:4: network.default: expected a bandwidth such as 100Gbit, found a whole number, '100'",
    ),
    network(
        "default in bytes",
        "{default: 100GB}",
        "cluster.yaml:4: network.default: '100GB' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    network(
        "default 0",
        "{default: 0Gbit}",
        "cluster.yaml:4: network.default: bandwidth '0Gbit' is not above zero",
        "write for example 100Gbit or 300GB/s",
    ),
    network(
        "default too slow",
        "{default: 1bit}",
        "cluster.yaml:4: network.default: '1bit' is out of range",
        "legal: 1Mbit to 100TB/s",
    ),
    network(
        "latency negative",
        "{latency: -5us}",
        "cluster.yaml:4: network.latency: '-5us' is not a duration such as 5us",
    ),
    network(
        "latency a number",
        "{latency: 5}",
        "cluster.yaml:4: network.latency: expected a duration such as 5us, found a whole number, '5'",
    ),
    network(
        "latency of a day",
        "{latency: 86400s}",
        "cluster.yaml:4: network.latency: '86400s' is out of range",
        "legal: 0s to 1s",
    ),
    network(
        "links a mapping",
        "{links: {between: [a, b], bandwidth: 10Gbit}}",
        "cluster.yaml:4: network.links: expected a list, found a mapping",
    ),
    network(
        "link without bandwidth",
        "{links: [{between: [a, b]}]}",
        "cluster.yaml:4: network.links[0]: the key 'bandwidth' is missing",
        "needed: between, bandwidth",
    ),
    network(
        "link without ends",
        "{links: [{bandwidth: 10Gbit}]}",
        "cluster.yaml:4: network.links[0]: the key 'between' is missing",
        "needed: between, bandwidth",
    ),
    network(
        "link of three",
        "{links: [{between: [a, b, a], bandwidth: 10Gbit}]}",
        "cluster.yaml:4: network.links[0].between: expected two names, found 3",
        "between: [a, b]",
    ),
    network(
        "link of a text",
        "{links: [{between: a b, bandwidth: 10Gbit}]}",
        "cluster.yaml:4: network.links[0].between: expected a list, found a text, 'a b'",
    ),
    network(
        "link to nobody",
        "{links: [{between: [a, c], bandwidth: 10Gbit}]}",
        "cluster.yaml:4: network.links[0].between[1]: unknown node or group 'c'",
    ),
    network(
        "link to itself",
        "{links: [{between: [a, a], bandwidth: 10Gbit}]}",
        "cluster.yaml:4: network.links[0].between: 'a' and 'a' are one host, so no network link joins them",
        "the field 'intra' describes links inside a node",
    ),
    network(
        "link twice",
        "{links: [{between: [a, b], bandwidth: 10Gbit},\n {between: [b, a], bandwidth: 1Gbit}]}",
        "cluster.yaml:5: network.links[1]: the link between 'b' and 'a' is given twice",
        "first in line 4",
    ),
)

SHORTHANDS = (
    short(
        "2x8",
        "cluster '2x8': '2x8' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
    short(
        "2x8x",
        "cluster '2x8x': '2x8x' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
    short("0x8xT4", "cluster '0x8xT4': 0 nodes is out of range", "legal: 1 to 65536"),
    short("2x0xT4", "cluster '2x0xT4': 0 GPUs per node is out of range", "legal: 1 to 256"),
    short("2x257xT4", "cluster '2x257xT4': 257 GPUs per node is out of range", "legal: 1 to 256"),
    short("65537x1xT4", "cluster '65537x1xT4': 65537 nodes is out of range", "legal: 1 to 65536"),
    short("40000x1xT4+40000x1xA10", "cluster '40000x1xT4+40000x1xA10': more than 65536 nodes"),
    short(
        "99999999999x8xT4",
        "cluster '99999999999x8xT4': '99999999999x8xT4' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
    short("2x8xT5", "cluster '2x8xT5': unknown GPU 'T5'", "did you mean 'T4'?"),
    short("2x8xH10", "cluster '2x8xH10': unknown GPU 'H10'", "did you mean 'H100-NVL' or 'H100-80GB-SXM'"),
    short(
        "2x8xH100",
        "cluster '2x8xH100': GPU 'H100' does not say which variant",
        "write H100-80GB-SXM",
    ),
    short(
        "2x8xT4+",
        "cluster '2x8xT4+': '' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
    short(
        "2x8xT4++1x8xT4",
        "cluster '2x8xT4++1x8xT4': '' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
    short("2x8xT4@", "cluster '2x8xT4@', after @: '' is not a bandwidth such as 100Gbit or 300GB/s"),
    short(
        "2x8xT4@fast", "cluster '2x8xT4@fast', after @: 'fast' is not a bandwidth such as 100Gbit or 300GB/s"
    ),
    short(
        "2x8xT4@100",
        "cluster '2x8xT4@100', after @: '100' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    short(
        "2x8xT4@100GB",
        "cluster '2x8xT4@100GB', after @: '100GB' has no unit of bandwidth",
        "write for example 100Gbit or 300GB/s",
    ),
    short(
        "2x8xT4@-1Gbit",
        "cluster '2x8xT4@-1Gbit', after @: '-1Gbit' is not a bandwidth such as 100Gbit or 300GB/s",
    ),
    short(
        "2x8xT4@1e30Gbit",
        "cluster '2x8xT4@1e30Gbit', after @: '1e30Gbit' is out of range",
        "legal: 1Mbit to 100TB/s",
    ),
    short(
        "2x8xT4@100Gbit@10Gbit",
        "cluster '2x8xT4@100Gbit@10Gbit', after @: '100Gbit@10Gbit' is not a bandwidth such as 100Gbit or",
    ),
    short("2x8xT4\x1b[2J", "cluster '2x8xT4\\x1b[2J': unknown GPU 'T4\\x1b[2J'"),
    short(
        "2x8x" + "T" * 5000,
        "cluster '2x8xTTTT",
        "unknown GPU 'TTTT",
    ),
    short("-2x8xT4", "no such option: -2"),
    short(
        "8xT4",
        "cluster '8xT4': '8xT4' does not follow the form of a shorthand",
        "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    ),
)

CASES = (*FILES, *NODES, *NETWORKS, *SHORTHANDS)
