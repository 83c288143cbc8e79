"""The commands of the page "Deploy with Flower", run for a hub and three parties on loopback."""

import getpass
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from fedneighbors import KNNPerClassifier
from fedneighbors.datasets import read_table
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn._party import FedPNNParty
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from tests.architecture.tree import ROOT
from tests.e2e.network import BIN, free_port, is_listening, kill_processes, wait_until

pytestmark = pytest.mark.e2e
PAGE = (ROOT / "docs" / "how-to" / "deploy-flower.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PARTIES = {
    "hospital-a": slice(0, 200),
    "hospital-b": slice(200, 400),
    "hospital-c": slice(400, 569),
}
LIMIT_S = 800
FAST = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}  # the page recommends a shorter pause
NGINX = """
user {user}; pid {folder}/nginx.pid; error_log {folder}/nginx.log; daemon off; events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {server}
}}
"""


def find_block(start):
    """Return the code block of the page that begins with ``start``."""
    (content,) = [text for _, text in BLOCK.findall(PAGE) if text.startswith(start)]
    return content


class Machine:
    """The hub or a party, with another folder than /srv/federation and other ports.

    The environment of the tests replaces the virtual environment of the page; the tests of the
    wheel install one.
    """

    def __init__(self, folder, ports, party="hospital-a"):
        self.folder, self.ports, self.party = folder, ports, party
        folder.mkdir()
        create, install, *profile = self.adapt(find_block("python3 -m venv")).splitlines(
            keepends=True
        )
        assert "-m venv" in create
        assert "pip install 'fedneighbors[flower,data]'" in install
        self.profile = "".join(line for line in profile if "/venv/bin" not in line)

    def adapt(self, text):
        """Replace the folder, host and ports of the page by those of this machine."""
        places = {
            "/srv/federation": str(self.folder),
            "hub.example.org:443": f"localhost:{self.ports['https']}",
            "listen 443": f"listen 127.0.0.1:{self.ports['https']}",
            "127.0.0.1:8000": f"127.0.0.1:{self.ports['superlink']}",
            "--port 8000": f"--port {self.ports['superlink']}",
            "--port 9094": f"--port {self.ports[self.party]}",
            "flower-supernode": f"flower-supernode --port {self.ports[self.party]}",
            "hospital-a": self.party,
            "n-rounds=20": 'n-rounds=2 hidden="[8]" participation=0.34',
        }
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    def start(self, command):
        """Start the commands of a block, with their output in ``log``."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["bash", "-euc", self.profile + self.adapt(command)],
                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **FAST, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
            )  # fmt: skip

    def run(self, command):
        """Run the commands of a block and wait for them."""
        status = self.start(command).wait(timeout=LIMIT_S)
        assert status == 0, self.log.read_text()

    def run_python(self, *blocks):
        """Run Python blocks in one process."""
        (self.folder / "page.py").write_text("\n".join(blocks))
        self.run("python page.py")

    @property
    def log(self):
        return self.folder / "log"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    """Return the path of nginx, unpacked from Debian's package and not installed."""
    folder = tmp_path_factory.mktemp("nginx")
    for command in ("apt-get update -qq", "apt-get download -qq nginx"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("nginx_*.deb")
    subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr" / "sbin" / "nginx"


@pytest.fixture(scope="module")
def machines(tmp_path_factory, nginx):
    """Yield the hub and the three parties of the page, connected."""
    folder = tmp_path_factory.mktemp("page")
    ports = {name: free_port() for name in ("https", "superlink", *PARTIES)}
    hub = Machine(folder / "hub", ports)
    parties = {name: Machine(folder / name, ports, name) for name in PARTIES}
    try:
        proxy = start_hub(hub, nginx)
        for name, party in parties.items():
            join(party, name, hub)
        yield hub, parties
        proxy.terminate()
    finally:
        kill_processes(f"{folder}/")


def start_hub(hub, nginx):
    hub.run(find_block("openssl req"))
    hub.run(find_block("fedneighbors preflight --port 8000"))
    hub.start(find_block("flower-superlink"))
    wait_until(lambda: is_listening(hub.ports["superlink"]), "the SuperLink listens", hub.log)
    server = hub.adapt(find_block("server {"))
    (hub.folder / "nginx.conf").write_text(
        NGINX.format(user=getpass.getuser(), folder=hub.folder, server=server)
    )
    proxy = hub.start(f"exec {nginx} -c {hub.folder}/nginx.conf -p {hub.folder}")
    wait_until(lambda: is_listening(hub.ports["https"]), "nginx listens", hub.log)
    (hub.folder / "flower" / "config.toml").write_text(hub.adapt(find_block("[superlink]")))
    for app in ROOT.glob("examples/flower-*"):
        shutil.copytree(app, hub.folder / app.name)
    return proxy


def join(party, name, hub):
    shutil.copy(hub.folder / "ca.crt", party.folder)
    party.run(find_block("ssh-keygen"))
    shutil.copy(party.folder / "node.pub", hub.folder / f"{name}.pub")
    hub.run(find_block("flwr supernode register").replace("hospital-a", name))
    party.run_python(find_block("import numpy"))
    header, *lines = (party.folder / "data.csv").read_text().splitlines(keepends=True)
    (party.folder / "data.csv").write_text(header + "".join(lines[PARTIES[name]]))
    (party.folder / "new-visits.csv").write_text(header + "".join(lines[:5]))
    party.run(find_block("fedneighbors preflight --port 9094"))
    party.start(find_block("flower-supernode"))


def train(hub, name):
    """Run the page's command for a method; return the path of the coordinator's model."""
    hub.run(find_block(f"flwr run flower-{name}"))
    path = hub.folder / f"{name}.model"
    assert path.exists(), hub.log.read_text()
    return path


def test_flynn_of_the_page_is_the_model_of_one_process(machines):
    hub, parties = machines
    pooled = Machine(hub.folder.parent / "pooled", hub.ports)

    common = train(hub, "flynn").read_bytes()
    pooled.run_python(
        find_block("import numpy"), find_block("from fedneighbors import FlyNNClassifier")
    )

    assert common == (pooled.folder / "flynn.model").read_bytes()
    assert {(p.folder / "flynn.model").read_bytes() for p in parties.values()} == {common}


def test_nginx_refuses_the_control_interface(machines):
    hub, _ = machines
    address = f"https://localhost:{hub.ports['https']}/v1/control/"

    hub.run(f"curl --silent --cacert ca.crt -o answer -w '%{{http_code}}' {address} > status")

    assert (hub.folder / "status").read_text() == "403"


def read_parties(parties, **options):
    """Return the table of each party."""
    paths = {name: party.folder / "data.csv" for name, party in parties.items()}
    return {name: read_table(path, label="diagnosis", **options) for name, path in paths.items()}


def test_fedpnn_of_the_page_is_the_model_of_one_process(machines):
    hub, parties = machines
    members = []
    for name, table in read_parties(parties, keep_missing=True).items():
        names = {"feature_names": table.feature_names, "label_name": "diagnosis"}
        members.append(FedPNNParty(name, table.x, table.y, **names))
    expected = run(coordinate(FedPNNSettings()), members).result.to_bytes()

    common = train(hub, "fedpnn").read_bytes()

    assert common == expected
    for party in parties.values():
        assert (party.folder / "fedpnn.model").read_bytes() == expected
        assert "centers of 5 rows or more each" in party.log.read_text()


def test_knnper_of_the_page_predicts_like_one_process(machines):
    hub, parties = machines
    tables = read_parties(parties)
    x, y = (np.concatenate([getattr(table, n) for table in tables.values()]) for n in "xy")
    owner = np.repeat(list(tables), [len(table.y) for table in tables.values()])
    expected = KNNPerClassifier(hidden=(8,), n_rounds=2, participation=0.34, trainer="reuse")
    expected.fit(x, y, parties=owner)

    common = KNNPerClassifier.load(train(hub, "knnper"))
    parties["hospital-a"].run(find_block("fedneighbors predict --model knnper.model"))

    assert common.weights_.tobytes() == expected.weights_.tobytes()
    for name, party in parties.items():
        loaded = KNNPerClassifier.load(party.folder / "knnper.model")
        probabilities = expected.predict_proba(x, [name] * len(x))
        assert loaded.predict_proba(x).tobytes() == probabilities.tobytes()
        assert not list(party.folder.glob("*.pending"))
    lines = (parties["hospital-a"].folder / "predictions.csv").read_text().split()
    assert lines == ["prediction", *expected.predict(x[:5], ["hospital-a"] * 5)]


def test_the_page_has_only_blocks_of_known_languages():
    languages = {language for language, _ in BLOCK.findall(PAGE)}

    assert languages == {"bash", "python", "nginx", "toml"}
