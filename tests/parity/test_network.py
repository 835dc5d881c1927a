"""A SuperLink and its clients as processes of their own, with TLS and keys: the same bits as in one process."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import PERSONAE, Lab, kept_states, lab

from personae.algorithms import ALGORITHMS
from personae.core.problem import Problem
from personae.deployment.certs import make_certificates
from personae.deployment.processes import environment, free_port, program
from personae.errors import ConfigError
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.forgetting import model_digests
from personae.experiment.forgotten import Forgotten
from personae.experiment.model import load_model
from personae.experiment.run import conduct
from personae.privacy.forgotten_log import verify
from personae.recognition.export import export_model

EXPERIMENT = """
name = "tiny"
seed = 3

[network]
name = "small"
embedding = 8
height = 32
width = 32

[data.private]
identities = 6
images = 6

[partition]
by = "equal"
clients = 3

[[stages]]
name = "federate"
rounds = 2

[stages.algorithm]
name = "fedpe"
training = { batch_size = 8, iterations = 2 }
"""


FLOWER = {"flower-superlink", "flower-superexec", "flwr", "flwr-serverapp"}


def test_a_run_over_a_network_ends_in_the_same_bits_and_calls_nobody_else(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", EXPERIMENT) as here:
        here.serve("--deadline", "120")
        for client in here.clients:
            here.join(client)
        alone = here.alone()
        here.done()
        here.assert_same(alone, *here.clients)
        assert_bytes_are_told(here)
        assert_offices_have_the_model(here)
        calls = [ast.literal_eval(line) for line in (here.folder / "calls.log").read_text().splitlines()]
    assert_only_loopback(calls)


def assert_bytes_are_told(here: Lab) -> None:
    """What crossed is what the ledger says, and at most a twentieth more: names of arrays, Flower's calls."""
    crossed = json.loads((here.out / "traffic.json").read_text())
    for client in here.clients:
        for direction, size in crossed[client].items():
            entries = [entry for entry in here.records("ledger") if entry["client"] == client]
            told = sum(entry["bytes"] for entry in entries if entry["direction"] == direction)
            assert told < size < 1.05 * told, (client, direction)


def assert_offices_have_the_model(here: Lab) -> None:
    """Each can export it from its home, with its own figures and bytes; the server cannot know a personal one."""
    server = load_model(here.out)
    told = [event["clients"] for event in here.records("metrics") if event["event"] == "personal"][-1]
    for client in here.clients:
        file = here.folder / "exported" / f"{client}.safetensors"
        for personal in (False, True):
            export_model(here.home(client), file, personal=personal, evaluate=False)
            assert load_model(file).digest == server.digest
        card = json.loads(file.with_suffix(".card.json").read_text())
        assert card["at_the_client"] == {k: v for k, v in told[client].items() if k.startswith("global/")}
        sent = [each for each in here.records("ledger") if (each["direction"], each["client"]) == ("up", client)]
        assert sum(each["bytes"] for each in card["left_the_clients"]) == sum(each["bytes"] for each in sent)
        assert not [other for other in here.clients if other != client and other in json.dumps(card)]
    with pytest.raises(ConfigError, match=r"personae export HOME --personal"):
        export_model(here.out, here.folder / "exported" / "x.onnx", client=here.clients[0])


def assert_only_loopback(calls: list[object]) -> None:
    started = {address[1] for address in calls if isinstance(address, tuple) and address[0] == "starts"}
    hosts = {address[0] for address in calls if isinstance(address, tuple) and address[0] != "starts"}
    assert hosts <= {"127.0.0.1", "::1"}
    assert hosts
    assert started <= {*FLOWER, "uname", "file"}  # and no installer


# ------------------------------------------------------------------------------------------------------------- slow

SETTINGS = {
    "unsupervised": 'name = "unsupervised", strength = 0.0, training = { batch_size = 4, iterations = 2 }',
    "cluster": 'name = "cluster", clustering = { name = "k-means", clusters = 2 }',
    "hf_maml": 'name = "hf_maml", meta = { batch_size = 4, iterations = 2 }',
    "hf_maml_global": 'name = "hf_maml_global", meta = { batch_size = 4, iterations = 2 }',
}


def every_algorithm() -> str:
    """A stage for each algorithm that needs nobody's faces but the client's own and public ones."""
    lines = [EXPERIMENT[: EXPERIMENT.index("[[stages]]")], "[data.public]\nfirst = 100\nidentities = 4\nimages = 4\n"]
    after = {"unsupervised": "cluster", "tune": "hf_maml"}
    for name, kind in ALGORITHMS.items():
        if not kind.pools_faces and not kind.shows_others:
            usual = f'name = "{name}", training = {{ batch_size = 4, iterations = 2 }}'
            before = "" if name == "pretrain" else f'after = "{after.get(name, "pretrain")}"\n'
            rounds = 1 if name in ("pretrain", "cluster", "tune") else 2
            algorithm = f"algorithm = {{ {SETTINGS.get(name, usual)} }}"
            lines.append(f'[[stages]]\nname = "{name}"\n{before}rounds = {rounds}\n{algorithm}\n')
    return "\n".join(lines)


@pytest.mark.slow
def test_every_algorithm_over_a_network(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", every_algorithm()) as here:
        here.serve("--deadline", "240")
        for client in here.clients:
            here.join(client)
        alone = here.alone()
        here.done(3600)
        here.assert_same(alone, *here.clients)
        assert len(list((here.out / "models").iterdir())) == 14


@pytest.mark.slow
def test_ten_clients_of_one_process_end_in_the_same_bits(tmp_path: Path) -> None:
    """One of them cannot even open its faces, and the others do not notice."""
    text = EXPERIMENT.replace("clients = 3", "clients = 11").replace("identities = 6", "identities = 22")
    with lab(tmp_path / "lab", text) as here:
        broken, *others = here.clients
        (here.folder / "dealt" / f"{broken}.zip").write_bytes(b"no zip")
        here.serve("--deadline", "120", "--wait", "20")
        here.join_all()
        here.done()
        failed = [event["failed"] for event in here.records("metrics") if event["event"] == "round"]
        assert failed == [{broken: "it is not connected"}] * 2
        alone = here.alone(lost={(broken, number) for number in (1, 2)})
        models = [(out / "models" / "federate.safetensors").read_bytes() for out in (here.out, alone)]
        assert models[0] == models[1]
        for client in others:
            (kept,) = (here.home(client) / "runs").iterdir()
            assert kept_states(kept / client) == kept_states(alone / "private" / client)
            assert f"{client}: federate, round 2: train as {client}\n" in here.log("all")
        assert f"{broken}: " in here.log("all")
        assert not (here.home(broken) / "runs").exists()


# In the first round, so much training of so few faces leads to variances that the firewall refuses.
LONGER = EXPERIMENT.replace("iterations = 2", "iterations = 200").replace("rounds = 2", "rounds = 3\nquorum = 0.3")


@pytest.mark.slow
def test_a_client_that_is_killed_is_missed_until_it_is_back(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", LONGER.replace("rounds = 3", "rounds = 7")) as here:
        here.serve("--deadline", "300")
        for client in here.clients:
            here.join(client)
        here.wait_for("work in the first round", lambda: "round 1: train as client-002" in here.log("client-002"))
        here.kill("client-002")
        here.join("client-002")
        here.done()
        failed = [event["failed"] for event in here.records("metrics") if event["event"] == "round"]
        assert failed[0] == {"client-002": Problem.INTERRUPTED.words}  # it says so as soon as it is back
        assert failed[-1] == {}
        alone = here.alone(lost={("client-002", number) for number, names in enumerate(failed, 1) if names})
        models = [(out / "models" / "federate.safetensors").read_bytes() for out in (here.out, alone)]
        assert models[0] == models[1]


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", LONGER) as here:
        here.serve("--deadline", "120")
        for client in here.clients:
            here.join(client)
        here.wait_for("work in the second round", lambda: "round 2: train as" in here.log("client-001"))
        here.kill("serve")
        assert len(here.records("timing")) <= 1
        here.serve("--deadline", "120", "--resume")
        # Then only its SuperLink, which it starts again by itself.
        here.wait_for("work in the third round", lambda: "round 3: train as" in here.log("client-001"))
        here.kill_superlink()
        here.done()
        assert "ended before its time; it goes on" in here.log("serve")
        here.assert_same(here.alone(), *here.clients)


@pytest.mark.slow
def test_spoiled_answers_and_unknown_keys_change_nothing_for_the_others(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("rounds = 2", "rounds = 4")
    with lab(tmp_path / "lab", text) as here:
        certs = here.folder / "certs"
        make_certificates(certs, (), ["stranger"])
        (certs / "server" / "clients" / "stranger.pub").unlink()
        here.serve("--deadline", "60", "--largest", "2")
        here.join("client-000")
        here.join("client-001")
        here.join("client-002", program=[sys.executable, str(Path(__file__).with_name("rogue.py"))])
        here.start("stranger", [*PERSONAE, *here.joining("client-000", "stranger")])
        here.done()
        events = [event for event in here.records("metrics") if event["event"] == "round"]
        assert events[0]["rejected"] == {"client-002": "ModelState holds values that are not finite"}
        assert "is not what was declared" in events[1]["failed"]["client-002"]
        assert list(events[2]["failed"]) == ["client-002"]
        assert (events[3]["rejected"], events[3]["failed"]) == ({}, {})
        assert json.loads((here.out / "traffic.json").read_text()).keys() == set(here.clients)
        alone = here.alone(spoiled={("client-002", number) for number in (1, 2, 3)})
        models = [(out / "models" / "federate.safetensors").read_bytes() for out in (here.out, alone)]
        assert models[0] == models[1]
        assert "the server does not know this client's key" in here.log("stranger")


# A server whose app would leave a mark where a client loads it.
LIAR = """
import personae.deployment.app as app
app._CLIENT += "import pathlib\\npathlib.Path({mark!r}).touch()\\n"
from personae.__main__ import main
main()
"""


@pytest.mark.slow
def test_a_client_never_runs_what_the_server_sends_and_secret_sums_travel(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = EXPERIMENT.replace("rounds = 2", 'rounds = 2\nlayers = [{ name = "secret-sum" }]')
    with lab(tmp_path / "lab", text) as here:
        here.serve("--deadline", "120", program=[sys.executable, "-c", LIAR.format(mark=str(mark))])
        for client in here.clients:
            here.join(client)
        alone = here.alone()
        here.done()
        assert str(mark) in (here.out / "app" / "personae_run" / "client.py").read_text()
        here.assert_same(alone, *here.clients)
    assert not mark.exists()


SUMS = '{ name = "secret-sum" }'
SUMS_OF_NOISE = '{ name = "local-noise", norm = 0.3, multiplier = 2.0 }, ' + SUMS
NOISE = '{ name = "noise", norm = 0.3, multiplier = 2.0 }'


@pytest.mark.slow
@pytest.mark.parametrize("layers", [SUMS, SUMS_OF_NOISE, NOISE])
def test_a_client_is_forgotten_over_a_network(layers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With secret sums the bits are those of a run without it; noise is drawn again, and epsilon is as stated."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    text = EXPERIMENT.replace("clients = 3", "clients = 4").replace("identities = 6", "identities = 8")
    with lab(tmp_path / "lab", text.replace("rounds = 2", f"rounds = 2\nlayers = [{layers}]")) as here:
        gone = here.clients[0]
        here.serve("--deadline", "120")
        for client in here.clients:
            here.join(client)
        here.done()
        before = model_digests(here.out)
        assert here.start("forget", [*PERSONAE, "forget", str(here.out), gone]).wait() == 0, here.log("forget")
        here.serve("--deadline", "120", "--resume")  # all four still knock
        here.done()
        assert gone not in (here.out / "metrics.jsonl").read_text() + (here.out / "ledger.jsonl").read_text()
        (entry,) = verify(here.out).entries
        assert entry.before == before != model_digests(here.out)
        assert ("noise is drawn again" in entry.how) == ("noise" in layers)
        spent = [event["epsilon"] for event in here.records("metrics") if event["event"] == "privacy"]
        assert bool(spent) == ("noise" in layers)
        if layers == SUMS:
            forgotten = {"forgotten": (Forgotten(client=gone),)}
            without = load_experiment(here.experiment).model_copy(update=forgotten)
            conduct(without, here.folder / "alone", Execution(cache=here.folder / "cache"))
            assert model_digests(here.out) == model_digests(here.folder / "alone")


@pytest.mark.slow
def test_a_superlink_that_somebody_else_runs(tmp_path: Path) -> None:
    """They start it, let the gate in and start the run; ours is the gate."""
    with lab(tmp_path / "lab", EXPERIMENT) as here:
        port, home, certs = free_port(), here.folder / "flower", here.folder / "certs"
        make_certificates(here.folder / "gate", (), ["gate"])
        authority = certs / "server" / "ca.crt"
        (here.folder / "gate" / "gate" / "ca.crt").write_bytes(authority.read_bytes())
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.theirs]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{authority}"\n'
        )
        tls = [f"--ssl-{kind}file={certs / 'server' / name}" for kind, name in TLS]
        here.start("superlink", ["env", *flower_in(home), program("flower-superlink"), f"--port={port}", *tls, AUTH])

        def flwr(*words: str) -> bool:
            command = [program("flwr"), *words]
            return subprocess.run(command, env=environment(home), capture_output=True, check=False).returncode == 0

        gate = str(here.folder / "gate" / "server" / "clients" / "gate.pub")
        here.wait_for("the SuperLink", lambda: flwr("supernode", "register", gate, "theirs", "--name", "gate"))
        elsewhere = ("--superlink", f"127.0.0.1:{port}", "--superlink-certs", str(here.folder / "gate" / "gate"))
        here.serve("--deadline", "120", *elsewhere)
        for client in here.clients:
            here.join(client)
        here.wait_for("the gate", lambda: "starts the run there" in here.log("serve"))
        assert flwr("run", str(here.out / "app"), "theirs")
        here.done()
        here.assert_same(here.alone(), *here.clients)


TLS = (("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key"))
AUTH = "--enable-supernode-auth"


def flower_in(home: Path) -> list[str]:
    """Its settings, as words for `env`."""
    return [f"{name}={value}" for name, value in environment(home).items() if name.startswith(("FLWR_", "PATH"))]
