"""What a deployment is made of, without any of Flower's processes."""

import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner, Result

from personae.cli import app
from personae.data import Split, synthetic_faces
from personae.deployment import processes
from personae.deployment.app import write_app
from personae.deployment.certs import enrolled, make_certificates, needed, public_key
from personae.deployment.consent import ALL
from personae.deployment.gate import Gate
from personae.deployment.job import Job
from personae.deployment.join import Member, _obstacle, join
from personae.deployment.plan import Conditions, Plan, largest_answer
from personae.deployment.processes import QUIET, end_leftovers, environment, free_port, start, stop
from personae.deployment.serve import _alone, prepare, serve
from personae.errors import ConfigError, DataError, QuorumLost
from personae.experiment.concealed import concealed
from personae.experiment.config import AuditSection, Experiment, load_experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal, own_faces
from personae.experiment.materials import Materials
from personae.experiment.recipes import RECIPES
from personae.experiment.rundir import RunDirectory
from personae.experiment.shared_secret import make_secret, read_secret
from personae.runtime.checkpoint import LATEST
from personae.runtime.excluded import Exclusions
from personae.runtime.post import Post

SECRET = "nobody-knows-this"


def experiment(**changes: Any) -> Experiment:
    plain = {
        "name": "tiny",
        "network": {"name": "small", "embedding": 8, "height": 32, "width": 32},
        "data": {"private": {"identities": 7, "images": 5}},
        "partition": {"by": "equal", "clients": 3},
        "stages": [{"name": "federate", "rounds": 2, "algorithm": {"name": "fedpe"}}],
    }
    return parse_experiment(plain | changes, "test")


# --------------------------------------------------------------------------------------------- certificates and keys


def test_certificates_are_signed_for_the_hosts_and_secrets_are_for_their_owner(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["server.example", "10.0.0.7"], ["ann", "bob"])
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server" / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for secret in ("ca.key", "server/server.key", "ann/key", "bob/key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
    assert sorted(enrolled(tmp_path / "server")) == ["ann", "bob"]
    private = load_ssh_private_key((tmp_path / "ann" / "key").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "server" / "clients" / "ann.pub").read_bytes())
    assert private.public_key() == public
    assert all(path.is_file() for path in made)


def test_a_client_without_its_copy_of_the_public_faces_is_told_before_anything_is_read(tmp_path: Path) -> None:
    stages = [
        {"name": "pretrain", "algorithm": {"name": "pretrain"}},
        {"name": "federate", "algorithm": {"name": "fedfr"}},
    ]
    data = {"public": {"source": "/somewhere/else"}, "private": {"identities": 8}}
    job = Job.of("a1", experiment(stages=stages, data=data), "exact", 1 << 20)
    bare = Member(data=tmp_path / "never read", home=tmp_path / "home", accept=frozenset({ALL}))
    with pytest.raises(ConfigError, match=r"stage federate: fedfr .* no copy of them; give their place with --public"):
        bare.host(job)
    parts = {"public": {"parts": {"a": {"identities": 2}, "b": {"identities": 2}}}, "private": {"identities": 8}}
    with pytest.raises(ConfigError, match=r"give data\.public one source instead of parts"):
        Plan.new(experiment(stages=stages, data=parts), ["ann", "bob"], Conditions())


def test_what_is_there_stays_and_clients_can_be_added(tmp_path: Path) -> None:
    make_certificates(tmp_path, [], ["ann"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made = make_certificates(tmp_path, [], ["ann", "zoe"])
    assert {path.parent.name for path in made} == {"zoe", "clients"}
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("name", ["", "server", "../x", "a/b", ".hidden", "x" * 80])
def test_names_of_clients_are_names_of_folders(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        make_certificates(tmp_path, [], [name])


def test_missing_files_and_keys_of_another_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server.crt: there is no such file; personae certs"):
        needed(tmp_path, "server.crt")
    with pytest.raises(ConfigError, match="no public key of any client"):
        enrolled(tmp_path)
    make_certificates(tmp_path, [], ["ann"])
    key = tmp_path / "server" / "clients" / "ann.pub"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJmvOcyk9tSPB1Qq0IzyRYzTlYQy0nGNKVYG3JhZPXJj ann")
    with pytest.raises(ConfigError, match=r"ann.pub: not an ECDSA key"):
        public_key(key)
    key.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ann.pub: not a public key"):
        public_key(key)


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_key_that_others_can_read_is_refused_with_what_to_type(tmp_path: Path, mode: int) -> None:
    make_certificates(tmp_path, [], ["ann"])
    own, servers = tmp_path / "ann" / "key", tmp_path / "server" / "server.key"
    for key in (own, servers):
        key.chmod(mode)
    with pytest.raises(ConfigError, match=f"others on this machine may read this key; chmod 600 {own}"):
        join("127.0.0.1:9", Member(data=tmp_path, home=tmp_path / "home"), own.parent)
    with pytest.raises(ConfigError, match=f"others on this machine may read this key; chmod 600 {servers}"):
        serve(experiment(), tmp_path / "run", servers.parent)
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "run").exists()


def test_a_client_does_not_speak_to_a_server_with_a_wrong_certificate(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        make_certificates(tmp_path / name, [], ["ann"])
    (tmp_path / "faces").mkdir()
    member = Member(data=tmp_path / "faces", home=tmp_path / "home")
    keys, port = enrolled(tmp_path / "wrong" / "server"), free_port()
    with (
        Gate("127.0.0.1", port, tmp_path / "wrong" / "server", keys, 1 << 20, Post(tmp_path / "post")) as gate,
        pytest.raises(ConfigError, match=r"the server's certificate is not one of .*; nothing was sent"),
    ):
        join(f"127.0.0.1:{port}", member, tmp_path / "right" / "ann")
    assert gate.traffic["ann"].up == 0
    with Gate("127.0.0.1", port, tmp_path / "wrong" / "server", keys, 1 << 20, Post(tmp_path / "post")):
        for name, expected in (("wrong", None), ("right", "the server does not know this client's key")):
            key = tmp_path / name / "ann" / "key"
            said = _obstacle("127.0.0.1", port, tmp_path / "wrong" / "ca.crt", key)
            assert said == expected or said.startswith(expected)
    assert "cannot be reached" in _obstacle("127.0.0.1", port, tmp_path / "wrong" / "ca.crt", key)
    with pytest.raises(ConfigError, match="--server nowhere: write it as HOST:PORT"):
        join("nowhere", member, tmp_path / "right" / "ann")
    with pytest.raises(DataError, match="there are no faces here"):
        join("127.0.0.1:1", Member(data=tmp_path / "none", home=tmp_path / "home"), tmp_path / "right" / "ann")


# --------------------------------------------------------------------------------------------- what is agreed upon


@pytest.mark.parametrize(
    "recipe", sorted(RECIPES.rglob("*.toml")), ids=lambda path: path.relative_to(RECIPES).as_posix()
)
def test_a_client_is_told_the_very_experiment(recipe: Path) -> None:
    known = load_experiment(recipe)
    told = Job.parse(Job.of("a1", known, "exact", 10).text()).parsed()
    assert told.resolved() == known.resolved()
    assert told.recipe == known.recipe


def test_a_client_can_be_put_out_when_a_run_goes_on_and_let_in_again(tmp_path: Path) -> None:
    out, conditions = tmp_path / "run", Conditions()
    watched = experiment().model_copy(update={"audit": AuditSection(rounds=(1,))})
    with pytest.raises(ConfigError, match=r"\[audit\] is for personae run"):
        prepare(watched, out, ["ann", "bob"], conditions, resume=False)
    prepare(experiment(), out, ["ann", "bob", "eve"], conditions, resume=False, exclude=["eve"])
    assert Exclusions.of(out).names() == {"eve"}
    prepare(experiment(), out, ["ann"], conditions, resume=True, exclude=["bob"])  # their keys are gone
    assert Exclusions.of(out).names() == {"bob", "eve"}
    assert Plan.read(out).clients == ("ann", "bob", "eve")
    with pytest.raises(ConfigError, match="there are keys of ann"):
        prepare(experiment(), out, ["ann"], conditions, resume=True, include=["bob"])
    prepare(experiment(), out, ["ann", "bob"], conditions, resume=True, include=["bob"])
    assert Exclusions.of(out).names() == {"eve"}
    with pytest.raises(ConfigError, match="no client 'max' in this run"):
        prepare(experiment(), tmp_path / "new", ["ann", "bob"], conditions, resume=False, exclude=["max"])
    assert not (tmp_path / "new").exists()


def test_a_plan_is_kept_and_only_its_patience_may_change(tmp_path: Path) -> None:
    clients = ["ann", "bob"]
    plan = Plan.new(experiment(), clients, Conditions())
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    assert Plan.new(experiment(), clients, Conditions()).job.run != plan.job.run
    assert plan.resumed(clients, Conditions(deadline=5)).job.run == plan.job.run
    with pytest.raises(ConfigError, match=r"begun with the clients ann, bob; .* keys of ann; put a client out"):
        plan.resumed(["ann"], Conditions())
    with pytest.raises(ConfigError, match="begun with --coding exact"):
        plan.resumed(clients, Conditions(coding="fp16"))
    with pytest.raises(ConfigError, match="no run over a network was begun here"):
        Plan.read(tmp_path / "elsewhere")
    (tmp_path / "deployment.json").write_text("{")
    with pytest.raises(DataError, match=r"deployment.json: this file is damaged"):
        Plan.read(tmp_path)
    for seconds in (0.0, math.nan, math.inf):  # with nan, nobody would ever have answered in time
        with pytest.raises(ConfigError, match="deadline"):
            Conditions(deadline=seconds)


def linked(secret: str) -> Experiment:
    return experiment(stages=[{"name": "train", "rounds": 1, "algorithm": {"name": "fedgc", "link": secret}}])


def test_a_secret_of_the_experiment_stands_in_no_file_that_is_there_to_be_read(tmp_path: Path) -> None:
    config = json.loads(json.dumps(linked(SECRET).resolved()))
    assert SECRET not in str(config)
    assert config["stages"][0]["algorithm"]["link"] == concealed(SECRET)
    # What was read back is the same experiment, and one with another secret is not.
    assert json.loads(json.dumps(parse_experiment(config, "config.json").resolved())) == config
    RunDirectory.create(tmp_path / "run", config, linked(SECRET).recipe, {}).close()
    RunDirectory.reopen(tmp_path / "run", linked(SECRET).resolved()).close()
    with pytest.raises(ConfigError, match=r"another experiment \(stages\.train\.algorithm\.link was"):
        RunDirectory.reopen(tmp_path / "run", linked("another").resolved())


def test_clients_share_a_secret_of_which_the_server_has_a_digest_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf'link: clients share this secret, .* write link = "{concealed(SECRET)}"'):
        prepare(linked(SECRET), tmp_path / "run", ["ann", "bob"], Conditions(), resume=False)
    digest = make_secret(tmp_path / "secret")
    assert make_secret(tmp_path / "secret") == digest  # what is there stays
    secret = read_secret(tmp_path / "secret")
    prepare(linked(digest), tmp_path / "run", ["ann", "bob"], Conditions(), resume=False)
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and secret in path.read_text()]

    faces = deal(Materials(experiment(), Execution(cache=tmp_path / "cache")), tmp_path / "dealt")[0]
    member = Member(
        data=faces, home=tmp_path / "home", execution=Execution(cache=tmp_path / "cache"), accept=frozenset({ALL})
    )
    job = Job.parse(Plan.read(tmp_path / "run").job.text())
    with pytest.raises(ConfigError, match="takes a secret that its clients share; join with --secret FILE"):
        member.host(job)
    (tmp_path / "other").write_text("quite another secret of theirs")
    (tmp_path / "other").chmod(0o600)
    with pytest.raises(ConfigError, match="the server has the digest of another secret"):
        replace(member, secret=tmp_path / "other").host(job)
    (tmp_path / "other").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        replace(member, secret=tmp_path / "other").host(job)
    host = replace(member, secret=tmp_path / "secret").host(job)
    assert host.federation.recipe[0].algorithm.link == secret  # type: ignore[attr-defined]
    home = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert home
    assert not [path for path in home if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("content", ["", "short", "scrypt:0123456789abcdef0123456789"])
def test_what_is_no_secret_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "secret").write_text(content)
    with pytest.raises(ConfigError, match="secret: this is not a secret of at least 16 characters"):
        read_secret(tmp_path / "secret")
    with pytest.raises(ConfigError, match="absent: this secret cannot be read"):
        read_secret(tmp_path / "absent")


def test_what_an_answer_may_hold_follows_from_the_network() -> None:
    small = experiment()
    weights = sum(entry.numel() for entry in small.network.layout().parameters())
    assert (64 << 20) + 16 * weights <= largest_answer(small) < (64 << 20) + 32 * weights


def test_what_cannot_run_over_a_network_is_refused_before_it_starts() -> None:
    central = {"name": "pooled", "algorithm": {"name": "central"}}
    oracle = {"name": "bound", "algorithm": {"name": "oracle"}}
    noise = {"name": "noise", "norm": 1.0, "multiplier": 1.0, "randomness": "seed"}
    predictable = {"name": "hidden", "algorithm": {"name": "fedpe"}, "layers": [noise]}
    for changes, complaint in (
        ({"stages": [central]}, "stage pooled: central needs everybody's faces in one place"),
        ({"stages": [predictable]}, "stage hidden: its noise follows from the seed, which every client is sent"),
        ({"stages": [oracle]}, "stage bound: oracle shows every client the class embeddings of all others"),
        ({"partition": {"by": "equal", "clients": 3, "new_clients": 2}}, "new_clients is 2 of 2 clients"),
        ({"partition": {"by": "domain", "source": "web"}}, "source is 'web', and no client has a key of that name"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            Plan.new(experiment(**changes), ["ann", "bob"], Conditions())
    with pytest.raises(ConfigError, match="no coding 'zip'"):
        Plan.new(experiment(), ["ann"], Conditions(coding="zip"))


def test_the_app_of_a_run_holds_its_place_and_asks_for_nothing_to_be_installed(tmp_path: Path) -> None:
    import tomllib

    prepare(experiment(), tmp_path / "out", ["ann"], Conditions(), resume=False)
    project = tomllib.loads((tmp_path / "out" / "app" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    config = project["tool"]["flwr"]["app"]["config"]
    plan = Plan.read(tmp_path / "out")
    assert config == {"out": str(tmp_path / "out")}  # nothing of the experiment, which may have secrets
    completed_a_round(tmp_path / "out")
    prepare(experiment(), tmp_path / "out", ["ann"], Conditions(deadline=1), resume=True)
    assert Plan.read(tmp_path / "out").job.run == plan.job.run
    with pytest.raises(ConfigError, match="the folder is not empty"):
        prepare(experiment(), tmp_path / "out", ["ann"], Conditions(), resume=False)
    awkward = tmp_path / 'quotes " and \\ and \n and ü'
    write_app(tmp_path / "app", awkward)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["out"] == str(awkward)


def test_where_no_round_is_complete_a_resumed_server_begins(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for known in (experiment(seed=1), experiment(seed=2)):  # the first one had to be corrected
        prepare(known, out, ["ann"], Conditions(), resume=True)
        assert Plan.read(out).job.parsed().seed == known.seed
    begun = Plan.read(out).job.run
    prepare(experiment(seed=2), out, ["ann"], Conditions(), resume=True)
    completed_a_round(out)
    prepare(experiment(seed=2), out, ["ann"], Conditions(), resume=True)
    assert Plan.read(out).job.run == begun
    with pytest.raises(ConfigError, match=r"of another experiment \(seed was 2 and is 3\)"):
        prepare(experiment(seed=3), out, ["ann"], Conditions(), resume=True)
    (out / "deployment.json").unlink()
    with pytest.raises(ConfigError, match="the folder is not empty"):  # a run in one process
        prepare(experiment(seed=2), out, ["ann"], Conditions(), resume=True)


def completed_a_round(out: Path) -> None:
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / LATEST).touch()


def test_only_a_server_does_without_private_faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", (), ["ann", "bob"])

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, [words[0], "deploy/offices", *words[1:]])

    for words in (("run",), ("run", "--dry-run"), ("deal",)):
        error = call(*words).exception
        assert isinstance(error, ConfigError)
        assert str(error).startswith("data.private is missing: say in [data.private] which faces")
    assert {path.name for path in tmp_path.iterdir()} == {"certs"}
    monkeypatch.setattr("personae.deployment.serve._until_done", lambda *_: {"code": 6, "error": "nobody came"})
    for _ in range(2):
        served = call("serve", "--certs", "certs/server", "--out", "out", "--resume", "--port", str(free_port()))
        assert isinstance(served.exception, QuorumLost)
    plan = Plan.read(tmp_path / "out")
    assert plan.clients == ("ann", "bob")
    assert plan.job.parsed().resolved() == load_experiment("deploy/offices").resolved()
    assert CliRunner().invoke(app, ["report", "out"]).exit_code == 0


# ------------------------------------------------------------------------------------------------------------ faces


def test_dealt_faces_are_those_that_the_client_has_in_one_process(tmp_path: Path) -> None:
    known = experiment(partition={"by": "equal", "clients": 3, "shared": 0.5, "min_images": 2})
    materials = Materials(known, Execution(cache=tmp_path / "cache"))
    dealt = deal(materials, tmp_path / "dealt")
    assert [path.stem for path in dealt] == list(materials.clients.clients)
    assert {stat.S_IMODE(path.stat().st_mode) for path in dealt} == {0o600}
    for path in dealt:
        theirs, ours = (
            materials.clients.of(path.stem),
            own_faces(path, known, Execution(cache=tmp_path / "cache")).of("whatever"),
        )
        assert ours.strangers is None
        for part in ("train", "val", "test"):
            one, other = getattr(theirs, part), getattr(ours, part)
            assert one.identities == other.identities
            assert one.labels.tolist() == other.labels.tolist()
            every = np.arange(len(one))
            assert np.array_equal(one.pixels.take(one.stored[every]), other.pixels.take(other.stored[every]))
    again = deal(materials, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in dealt]


def test_faces_without_a_mark_are_split_as_the_experiment_plans(tmp_path: Path) -> None:
    import zipfile

    known = experiment(partition={"by": "equal", "clients": 1, "train": 0.6, "val": 0.2, "test": 0.2})
    (dealt,) = deal(Materials(known, Execution(cache=tmp_path / "cache")), tmp_path)
    for column, check in (("", None), ("TRAIN", "the column split holds 'TRAIN'; there are train, val, test")):
        path = tmp_path / f"other{column}.zip"
        with zipfile.ZipFile(dealt) as source, zipfile.ZipFile(path, "w") as target:
            for member in source.infolist():
                content = source.read(member)
                if member.filename == "labels.csv":
                    rows = [line.split(",") for line in content.decode().split()]
                    kept = [
                        row[:2] if not column else [*row[:2], "split" if not i else column]
                        for i, row in enumerate(rows)
                    ]
                    content = "\n".join(",".join(row) for row in kept).encode()
                target.writestr(member, content)
        if check:
            with pytest.raises(DataError, match=check):
                own_faces(path, known, Execution(cache=tmp_path / "cache"))
            continue
        faces = own_faces(path, known, Execution(cache=tmp_path / "cache"))
        counts = np.bincount(faces.held.partition.split, minlength=len(Split))
        assert counts.tolist() == [21, 7, 7]


# -------------------------------------------------------------------------------------------------------- processes


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_children_report_to_nobody_and_end_with_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    known = environment(tmp_path)
    assert known["FLWR_HOME"] == str(tmp_path)
    assert {name: known[name] for name in QUIET} == {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    script = "trap '' TERM; sleep 600 & echo $!; env; wait"
    with (tmp_path / "log").open("wb") as log:
        child = start(["bash", "-c", script], tmp_path, log)
        while "FLWR_HOME" not in (tmp_path / "log").read_text():
            assert child.poll() is None
    stop(child)
    grandchild = int((tmp_path / "log").read_text().split()[0])
    end = time.monotonic() + 30
    while running(grandchild):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "FLWR_TELEMETRY_ENABLED=0" in (tmp_path / "log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what others were started with")
def test_what_left_its_group_is_ended_too_and_nobody_elses(tmp_path: Path) -> None:
    sleepers = {}
    for name in ("home", "home-2"):
        home = tmp_path / name
        home.mkdir()
        with (home / "log").open("wb") as log:
            child = start(["setsid", "--fork", "bash", "-c", "echo $$; exec sleep 600"], home, log)
        child.wait()
        while not (home / "log").read_text().endswith("\n"):
            time.sleep(0.01)
        sleepers[name] = int((home / "log").read_text())
    try:
        assert all(map(running, sleepers.values()))
        end_leftovers(tmp_path / "home")
        end = time.monotonic() + 30
        while running(sleepers["home"]):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert running(sleepers["home-2"])
    finally:
        end_leftovers(tmp_path / "home-2")


def test_a_server_ends_what_a_killed_one_has_left_and_no_other_servers(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    orphan = subprocess.Popen(command, env={**os.environ, "FLWR_HOME": str(out / "flower")})
    bystander = subprocess.Popen(command, env={**os.environ, "FLWR_HOME": str(tmp_path / "other" / "flower")})
    try:
        with _alone(out):
            assert orphan.wait(10) == -signal.SIGKILL
            with pytest.raises(ConfigError, match="run: another server is at work in this run"), _alone(out):
                pass
            assert bystander.poll() is None
        assert not out.exists()  # nothing came of it
        with _alone(out):
            (out / "config.json").write_text("{}")
        assert out.exists()
    finally:
        for process in (orphan, bystander):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("server", "complaint"), [("here", "write it as HOST:PORT"), ("here:99999", "a port is between 1 and 65535")]
)
def test_a_server_that_is_no_address(tmp_path: Path, server: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"--server {server}: {complaint}"):
        join(server, Member(data=tmp_path, home=tmp_path / "home"), tmp_path)


def test_nobody_else_can_look_into_a_home_a_cache_or_what_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        faces = synthetic_faces(identities=2, images=2, size=32, cache=tmp_path / "cache")
        RunDirectory.create(tmp_path / "run", {}, (), {}).close()
        with suppress(ConfigError):
            make_certificates(tmp_path / "certs", (), ["ann"])
            member = Member(data=tmp_path, home=tmp_path / "home")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("personae.deployment.join._stay_connected", lambda *_: None)
                join("127.0.0.1:9", member, tmp_path / "certs" / "ann")
    finally:
        os.umask(before)
    assert len(faces) == 4
    (pixels,) = {path.parent for path in (tmp_path / "cache").rglob("pixels.*")}
    for folder in (tmp_path / "home", tmp_path / "run" / "private", pixels):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    for file in pixels.glob("pixels.*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
