"""Links of the trust mode "enclave": evidence comes before the hello of a provider."""

import datetime
import os
import re
import struct
import threading
import uuid
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.service import _links, _tsm
from fedneighbors.service._attestation import EvidenceRefused, bind_report
from fedneighbors.service._config import BrokerConfig, ProviderConfig
from fedneighbors.service._dialling import check_evidence
from fedneighbors.service._doctor import Visitor, examine
from fedneighbors.service._enrolment import enrol
from fedneighbors.service._messages import (
    MAX_EVIDENCE_BYTES,
    Challenge,
    Evidence,
    EvidenceRequest,
)
from fedneighbors.service._tsm import Attester, EvidenceMissing
from tests.architecture.tree import ROOT
from tests.service.deployment import deployed, offered
from tests.service.evidence import DATA, Amd, Intel

POINTS = np.arange(40.0).reshape(20, 2)
SECTION = {"metric": "euclidean", "providers": ["north"]}
COLLECTIONS = {"points": {**SECTION, "trust": "enclave"}, "open": SECTION}
GUIDS = {
    "key": "63da758d-e664-4564-adc5-f4b93be8accd",
    "authority": "4ab7b379-bbac-4fe4-a02f-05aef327c782",
    "root": "c0b406a4-a803-4952-9743-3fb6014cd0ae",
}


def make_table(chain, order="bytes"):
    """Return a host's table of certificates."""
    head, body, start = b"", b"", 24 * 4
    for name, content in zip(GUIDS.values(), chain, strict=True):
        head += getattr(uuid.UUID(name), order) + struct.pack(
            "<II", start + len(body), len(content)
        )
        body += content
    return head + bytes(24) + body


class KernelImitation:
    """A folder that behaves as Linux documents /sys/kernel/config/tsm/report.

    A new folder in it gets its files at once, a report is made when it is read, and the folder is
    removed with its files.
    """

    def __init__(self, folder, make, monkeypatch, *, provider="sev_guest", auxiliary=b"", writes=1):
        self.folder, self.make, self.provider = folder, make, provider
        self.auxiliary, self.writes, self.entries = auxiliary, writes, []
        folder.mkdir()
        monkeypatch.setattr(_tsm.os, "mkdir", partial(self._mkdir, os.mkdir))
        monkeypatch.setattr(_tsm.os, "rmdir", partial(self._rmdir, os.rmdir))

    def _mkdir(self, original, path, *args, **options):
        original(path, *args, **options)
        entry = self.folder / os.path.basename(path)
        if os.path.dirname(path) != str(self.folder):
            return
        self.entries.append(entry.name)
        (entry / "inblob").write_bytes(b"")
        (entry / "provider").write_text(f"{self.provider}\n")
        (entry / "generation").write_text("0\n")
        if self.auxiliary is not None:
            (entry / "auxblob").write_bytes(self.auxiliary)
        os.mkfifo(entry / "outblob")
        threading.Thread(target=self._report, args=(entry,), daemon=True).start()

    def _report(self, entry):
        with (entry / "outblob").open("wb") as file:  # waits for a reader
            (entry / "generation").write_text(f"{self.writes}\n")
            file.write(self.make((entry / "inblob").read_bytes()))

    def _rmdir(self, original, path, *args, **options):
        if os.path.dirname(path) == str(self.folder):
            for file in (self.folder / os.path.basename(path)).iterdir():
                file.unlink()
        original(path, *args, **options)


def now():
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@pytest.fixture
def amd(tmp_path):
    return Amd(tmp_path / "amd", now())


@pytest.fixture
def kernel(tmp_path, amd, monkeypatch):
    table = make_table(amd.chain)
    return KernelImitation(tmp_path / "tsm", amd.report, monkeypatch, auxiliary=table)


@pytest.fixture
def deployment(tmp_path, kernel):
    attestation = {"folder": str(kernel.folder)}
    with deployed(tmp_path, COLLECTIONS, attestation=attestation) as running:
        yield running


def points(trust="enclave", name="points"):
    found = offered("north", name, "euclidean", POINTS)
    found.offer = replace(found.offer, trust=trust)
    return {name: found}


def start(deployment, amd, collections=None, **rules):
    """Start a provider that demands evidence of the test's authorities."""
    options = {"attestation": amd.rules(**rules), "folder": amd.folder}
    return deployment.start("north", collections or points(), **options)


class Broker:
    """A hostile source of evidence."""

    def __init__(self, make):
        self.make, self.n_asked = make, 0

    async def answer(self, request, fingerprint):
        self.n_asked += 1
        return self.make(request.nonce, fingerprint)


def refusal(deployment, task):
    """Return why a provider did not join; it has sent no hello."""
    with pytest.raises(EvidenceRefused) as info:
        task.result(20)
    assert deployment.broker.registry.links == {}
    return info.value


@pytest.fixture
def hellos(monkeypatch):
    """Return the first messages that a broker has taken for a hello."""
    seen = []
    accept = _links.LinkRegistry.accept

    def listen(self, frame, *args):
        seen.append(frame)
        return accept(self, frame, *args)

    monkeypatch.setattr(_links.LinkRegistry, "accept", listen)
    return seen


def test_a_provider_joins_after_evidence_and_answers_say_so(deployment, amd, kernel):
    start(deployment, amd)
    deployment.wait("north")
    client = deployment.client("points")
    assert client.kneighbors([[0.0, 1.0]], 1)[1][0][0] == ("north", "0")
    assert client.results_[0]["trust"] == "enclave"
    assert len(set(kernel.entries)) == 2  # at the start, and for the provider
    assert list(kernel.folder.iterdir()) == []


def test_evidence_is_demanded_again_for_each_link(deployment, amd, kernel):
    for _ in range(2):
        start(deployment, amd)
        deployment.wait("north")
        deployment.stop("north")
    assert len(set(kernel.entries)) == 3


@pytest.mark.parametrize("order", ["bytes", "bytes_le"])
def test_certificates_come_from_the_host(kernel, amd, order):
    kernel.auxiliary = make_table(amd.chain, order)
    assert Attester(kernel.folder).read(DATA).certificates == amd.chain


def test_certificates_come_from_a_file(kernel, amd, tmp_path):
    kernel.auxiliary = None
    file = tmp_path / "chain.pem"
    file.write_text(amd.leaf.pem + amd.middle.pem + amd.root.pem)
    evidence = Attester(kernel.folder, file).read(DATA)
    check_evidence(evidence, amd.rules(), amd.folder, report_data=DATA)


@pytest.mark.parametrize(
    ("rules", "step"),
    [
        ({"measurements": [{"measurement": "00" * 48}]}, "measurement"),
        ({"min_tcb": {"snp": 6}}, "TCB"),
        ({"roots": []}, "root"),
        ({"vmpl": 2}, "VMPL"),
        ({"crls": ["missing.crl"]}, "file"),
    ],
)
def test_a_provider_joins_no_broker_that_breaks_its_rules(deployment, amd, hellos, rules, step):
    assert refusal(deployment, start(deployment, amd, **rules)).step == step
    assert hellos == []


HOSTILE = {
    "old evidence": (lambda amd: lambda *_: amd.evidence(), "report data"),
    "evidence of another server": (
        lambda amd: lambda nonce, _: amd.evidence(bind_report(nonce, b"f" * 32)),
        "report data",
    ),
    "evidence for another nonce": (
        lambda amd: lambda _, fingerprint: amd.evidence(bind_report(b"n" * 32, fingerprint)),
        "report data",
    ),
    "unsigned evidence": (
        lambda amd: lambda *_: Evidence("amd", bytes(1184), amd.chain),
        "format",
    ),
    "long evidence": (
        lambda _: lambda *_: Evidence("amd", bytes(MAX_EVIDENCE_BYTES), ()),
        "format",
    ),
    "another vendor": (lambda _: lambda *_: Evidence("intel", b"", ()), "vendor"),
    "another message": (lambda _: lambda *_: Challenge.new(), "format"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_provider_never_joins_without_verified_evidence(deployment, amd, hellos, case):
    make, step = HOSTILE[case]
    deployment.broker.attester = Broker(make(amd))
    assert refusal(deployment, start(deployment, amd)).step == step
    assert hellos == []
    assert deployment.broker.attester.n_asked == 1


def test_the_recorded_report_cannot_be_replayed(deployment, amd, hellos, data_folder):
    folder = data_folder / "attestation/sev-snp"
    raw = (folder / "attestation.bin").read_bytes()
    deployment.broker.attester = Broker(lambda *_: Evidence("amd", raw, amd.chain))
    assert refusal(deployment, start(deployment, amd)).step == "signature"
    assert hellos == []


def test_a_broker_without_evidence_is_never_joined(tmp_path, amd):
    with deployed(tmp_path / "broker", {"points": SECTION}) as deployment:
        error = refusal(deployment, start(deployment, amd))
    assert error.step == "evidence"
    assert "not a hello of this version" in str(error)


def test_a_provider_without_rules_never_joins(deployment, hellos):
    assert refusal(deployment, deployment.start("north", points())).step == "rules"
    assert hellos == []


def test_a_broker_that_cannot_make_evidence_now_is_asked_again(deployment, amd):
    attester = deployment.broker.attester
    failed = threading.Event()

    def fail(*_):
        deployment.broker.attester = attester
        failed.set()
        raise EvidenceMissing("busy")

    deployment.broker.attester = Broker(fail)
    start(deployment, amd)
    assert failed.wait(20)
    deployment.wait("north")


def test_other_trust_modes_ask_for_no_evidence(deployment, amd, kernel):
    start(deployment, amd, points("trusted", "open"))
    deployment.wait("north")
    assert len(kernel.entries) == 1  # at the start
    client = deployment.client("open")
    client.kneighbors([[0.0, 1.0]], 1)
    assert client.results_[0]["trust"] == "trusted"


def test_trust_must_agree_between_broker_and_provider(deployment, amd):
    task = start(deployment, amd, points("enclave", "open"))
    with pytest.raises(Exception, match="'trust' differs: collection 'open' has 'trusted'"):
        task.result(20)


def test_a_quote_of_intel_is_verified_over_a_link(tmp_path, monkeypatch):
    intel = Intel(tmp_path / "intel", now())
    make = partial(intel.quote, version=5)
    options = {"provider": "tdx_guest", "auxiliary": None}
    kernel = KernelImitation(tmp_path / "tsm", make, monkeypatch, **options)
    attestation = {"folder": str(kernel.folder)}
    with deployed(tmp_path, COLLECTIONS, attestation=attestation) as deployment:
        start(deployment, intel)
        deployment.wait("north")
        deployment.stop("north")
        intel.write_collateral(tcb_info=intel.tcb_info("Revoked"))
        assert "Revoked" in str(refusal(deployment, start(deployment, intel)))


def test_a_link_needs_a_whole_nonce(deployment):
    with pytest.raises(ValueError, match="32 bytes"):
        EvidenceRequest(b"short")


# --- the kernel's interface ---


def test_the_imitated_kernel_gets_a_new_folder_for_each_report(kernel, amd):
    attester = Attester(kernel.folder)
    reports = [attester.read(bytes([number]) * 64).report for number in range(3)]
    assert len(set(kernel.entries)) == 3
    assert [raw[0x50] for raw in reports] == [0, 1, 2]
    assert list(kernel.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"provider": "arm_cca"}, "found 'arm_cca'"),
        ({"writes": 2}, "another process has written"),
        ({"auxiliary": b""}, "the host provides no certificates"),
        ({"auxiliary": None}, "the host provides no certificates"),
        ({"auxiliary": b"\1" * 100}, "the host provides no certificates"),
        ({"make": lambda _: bytes(1 << 16)}, "too long"),
    ],
)
def test_the_imitated_kernels_faults_are_named(kernel, change, message):
    for name, value in change.items():
        setattr(kernel, name, value)
    with pytest.raises(EvidenceMissing, match=message):
        Attester(kernel.folder).read(DATA)
    assert list(kernel.folder.iterdir()) == []


def test_an_imitated_kernel_that_refuses_is_named(kernel, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_tsm.os, "mkdir", refuse)
    with pytest.raises(EvidenceMissing, match=r"makes no report: .*Permission denied"):
        Attester(kernel.folder).read(DATA)


def test_a_missing_file_of_certificates_is_named(kernel, tmp_path):
    with pytest.raises(EvidenceMissing, match=r"chain\.pem"):
        Attester(kernel.folder, tmp_path / "chain.pem").read(DATA)


def test_a_broker_without_the_hardware_does_not_start(tmp_path):
    path = tmp_path / "broker.toml"
    path.write_text(
        f"""
format = 1
[attestation]
folder = "{tmp_path}/none"
[collections.points]
metric = "euclidean"
providers = ["north"]
trust = "enclave"
"""
    )
    with pytest.raises(EvidenceMissing, match="confidential virtual machine"):
        Attester.of(BrokerConfig.read(path))
    result = CliRunner().invoke(app, ["broker", "serve", "--config", str(path)])
    assert result.exit_code == 1
    assert "confidential virtual machine" in " ".join(result.output.split())
    assert not (tmp_path / "state").exists()


# --- configuration ---

PROVIDER = """
format = 1
[provider]
name = "north"
broker = "URL"
[attestation]
vendor = "amd"
measurements = [{ measurement = "MEASUREMENT", host_data = "HOST" }]
min_tcb = { snp = 5, microcode = 200 }
crls = ["amd/root.crl"]
roots = ["amd/root.pem"]
[collections.points]
metric = "euclidean"
source = { file = "points.csv" }
trust = "enclave"
"""


def provider_text(url):
    registers = {"MEASUREMENT": (b"m" * 48).hex(), "HOST": (b"h" * 32).hex(), "URL": url}
    text = PROVIDER
    for name, value in registers.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("https:", "http:"), "a broker https"),
        (("[attestation]", "[attestation_]"), "unknown key"),
        (('amd"', 'arm"'), "attestation"),
        ((provider_text("").split("[attestation]")[1].split("[coll")[0], "\n"), "attestation"),
        (('vendor = "amd"', 'vendor = "intel"'), "mrtd: this key is required"),
        (('crls = ["amd/root.crl"]', ""), "crls: this key is required"),
        (("snp = 5", "snp = 300"), "less than or equal to 255"),
        (("snp = 5", "spn = 5"), "min_tcb"),
        (("6d6d", "6d"), "measurement"),
    ],
)
def test_invalid_rules_of_a_provider_are_named(tmp_path, change, message):
    path, text = tmp_path / "provider.toml", provider_text("https://broker.example")
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(DataError, match=message):
        ProviderConfig.read(path)


def test_tls_ends_in_a_broker_with_evidence(tmp_path):
    config = {"format": 1, "server": {"tls": False}, "collections": COLLECTIONS}
    with pytest.raises(ValueError, match=r"expected server\.tls"):
        BrokerConfig.model_validate(config)


def test_configurations_of_the_how_to_are_valid(tmp_path):
    page = (ROOT / "docs/how-to/run-in-a-confidential-vm.md").read_text("utf-8")
    broker, amd, intel = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    collection = amd[amd.index("[collections") :]
    head = amd[: amd.index("[attestation]")]
    for name, text in (("broker", broker), ("amd", amd), ("intel", head + intel + collection)):
        (tmp_path / name).write_text(text)
    assert BrokerConfig.read(tmp_path / "broker").collections["patients"].trust == "enclave"
    assert ProviderConfig.read(tmp_path / "amd").attestation.vendor == "amd"
    assert ProviderConfig.read(tmp_path / "intel").attestation.vendor == "intel"


# --- doctor ---


@pytest.fixture
def path(deployment, amd, tmp_path):
    folder = tmp_path
    (folder / "points.csv").write_text("a,b\n1,2\n3,4\n")
    written = folder / "provider.toml"
    written.write_text(provider_text(deployment.url))
    state = deployment.broker.state
    code = state.new_code("north", deployment.broker.fingerprint)
    enrol(ProviderConfig.read(written), str(code))
    return written


def test_the_doctor_verifies_evidence(path):
    hops = list(examine(Visitor.of(ProviderConfig.read(path))))
    names = [hop.name for hop in hops]
    assert names[names.index("version") :] == [
        "version",
        "evidence",
        "identity",
        "policy",
        "source",
    ]
    assert all(hop.is_ok for hop in hops)


def test_the_doctor_names_the_failing_step_of_evidence(path, deployment, hellos):
    path.write_text(path.read_text().replace("microcode = 200", "microcode = 214"))
    hop = next(h for h in examine(Visitor.of(ProviderConfig.read(path))) if not h.is_ok)
    assert hop.name == "evidence"
    assert "refused (TCB): expected at least {'microcode': 214}" in hop.text
    assert hellos == []
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.exit_code == 1
    assert "evidence failed" in " ".join(result.output.split())


def test_provider_check_names_a_missing_file_of_the_rules(path, amd):
    result = CliRunner().invoke(app, ["provider", "check", "--config", str(path)])
    assert (result.exit_code, "points: 2 objects" in result.output) == (0, True)
    (amd.folder / "root.crl").unlink()
    result = CliRunner().invoke(app, ["provider", "check", "--config", str(path)])
    assert result.exit_code == 1
    assert "root.crl cannot be read" in " ".join(result.output.split())
