"""The protos are the API and its reference: all of it is explained, clean for buf, and committed as compiled.

Each check of a property is also shown a culprit: a check that cannot fail keeps nothing out.
"""

from __future__ import annotations

import keyword
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from packaging.requirements import Requirement
from packaging.version import Version

from kvstore.peer.v1 import peer_pb2
from kvstore.v1 import admin_pb2, event_pb2, kv_pb2, model_pb2, status_pb2, watch_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"
MADE = "*_pb2*.py*"

MODULES: list[FileDescriptor] = [
    module.DESCRIPTOR for module in (admin_pb2, event_pb2, kv_pb2, model_pb2, status_pb2, watch_pb2, peer_pb2)
]
WRITES = ["PutRequest", "DeleteRequest", "BatchRequest", "PipelineRequest"]
READS = ["GetRequest", "GetManyRequest", "ScanRequest", "WatchRequest"]
SHARED_REQUEST_NUMBERS = {"request_id": 11, "session": 12, "freshness": 13, "dependencies": 14, "snapshot": 15}
SHARED_RESPONSE_NUMBERS = {"session": 12, "site": 13, "commit": 14, "staleness_ms": 15, "snapshot": 15}


def methods(service: str) -> dict[str, str]:
    """The calls of a service, each with the side that streams."""
    found = [file.services_by_name[service] for file in MODULES if service in file.services_by_name]
    (one,) = found
    sides = {(False, False): "unary", (False, True): "server", (True, True): "both", (True, False): "client"}
    return {method.name: sides[method.client_streaming, method.server_streaming] for method in one.methods}


def messages() -> Iterator[Descriptor]:
    waiting = [message for file in MODULES for message in file.message_types_by_name.values()]
    while waiting:
        message = waiting.pop()
        waiting += message.nested_types
        if not message.GetOptions().map_entry:
            yield message


def message(name: str) -> Descriptor:
    (found,) = [one for one in messages() if one.name == name]
    return found


def test_the_services_offer_what_was_agreed() -> None:
    assert methods("KeyValue") == {
        "Get": "unary",
        "Put": "unary",
        "Delete": "unary",
        "Batch": "unary",
        "Pipeline": "unary",
        "GetMany": "unary",
        "Scan": "server",
        "Watch": "server",
    }
    assert methods("Admin") == {
        "Status": "unary",
        "Explain": "unary",
        "Events": "server",
        "Backup": "unary",
        "Snapshot": "unary",
        "RenewSnapshot": "unary",
        "ReleaseSnapshot": "unary",
    }
    assert methods("Peer") == {"Link": "both", "Forward": "unary"}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_can_be_retried_and_carries_its_past(name: str) -> None:
    fields = message(name).fields_by_name
    assert {"request_id", "session", "freshness", "dependencies"} <= set(fields)
    assert fields["request_id"].type == fields["session"].type == FieldDescriptor.TYPE_BYTES
    assert fields["freshness"].message_type is model_pb2.Freshness.DESCRIPTOR
    assert fields["dependencies"].message_type is model_pb2.Dependencies.DESCRIPTOR


@pytest.mark.parametrize("name", READS)
def test_every_read_can_belong_to_a_session_and_say_how_fresh(name: str) -> None:
    assert {"session", "freshness"} <= set(message(name).fields_by_name)


@pytest.mark.parametrize("name", [*WRITES, *READS])
def test_every_response_carries_the_session_and_says_who_answered_as_of_when(name: str) -> None:
    fields = message(name.replace("Request", "Response")).fields_by_name
    assert {"session", "site", "commit"} <= set(fields)
    assert fields["session"].type == FieldDescriptor.TYPE_BYTES


def test_no_call_of_the_client_service_is_neither_read_nor_write() -> None:
    assert {f"{name}Request" for name in methods("KeyValue")} == {*WRITES, *READS}


def test_the_calls_of_a_pipeline_are_whole_requests_and_each_has_a_result() -> None:
    calls = {field.name: field.message_type for field in message("PipelineCall").oneofs_by_name["call"].fields}
    assert calls == {name: message(f"{name.title()}Request") for name in ("get", "put", "delete")}
    results = {field.name for field in message("PipelineResult").oneofs_by_name["result"].fields}
    assert results == {*calls, "error"}
    assert set(message("Error").fields_by_name) == {"reason", "message", "definite", "details"}


def test_a_condition_is_absence_or_a_version() -> None:
    for put in (kv_pb2.PutRequest, kv_pb2.Operation.Put):
        oneof = put.DESCRIPTOR.oneofs_by_name["expect"]
        assert [field.name for field in oneof.fields] == ["expect_absent", "expect_version"]
    assert kv_pb2.PutRequest(expect_absent=True).WhichOneof("expect") == "expect_absent"
    assert kv_pb2.PutRequest(key=b"k").WhichOneof("expect") is None


def test_scans_and_multi_gets_can_read_a_snapshot() -> None:
    assert "snapshot" in message("ScanRequest").fields_by_name
    assert "snapshot" in message("GetManyRequest").fields_by_name


def test_a_watch_position_is_site_incarnation_and_index() -> None:
    assert set(message("Position").fields_by_name) == {"site", "incarnation", "index"}


def test_the_hello_names_all_that_both_sides_must_agree_on() -> None:
    must_agree = {"wire_version", "cluster_id", "view", "protocol_hash", "placement_hash", "merge_hash"}
    assert must_agree | {"site", "name", "incarnation", "sent", "oldest"} <= set(message("Hello").fields_by_name)
    assert {"up_to", "incarnation"} <= set(message("Accepted").fields_by_name)
    assert {"reason", "yours", "ours"} <= set(message("Refused").fields_by_name)


def test_one_field_has_one_number_in_all_requests_and_responses() -> None:
    wrong = []
    for one in messages():
        numbers = SHARED_REQUEST_NUMBERS if one.name.endswith("Request") else SHARED_RESPONSE_NUMBERS
        if one.name.endswith(("Request", "Response")):
            found = {name: field.number for name, field in one.fields_by_name.items() if name in numbers}
            wrong += [f"{one.name}.{name} = {number}" for name, number in found.items() if number != numbers[name]]
    assert wrong == []


def test_no_name_needs_getattr_in_python() -> None:
    names = [field.name for one in messages() for field in one.fields]
    assert [name for name in names if keyword.iskeyword(name)] == []


def test_an_enum_value_of_zero_says_that_nothing_was_said() -> None:
    enums = [enum for one in messages() for enum in one.enum_types]
    enums += [enum for file in MODULES for enum in file.enum_types_by_name.values()]
    assert enums
    assert [enum.name for enum in enums if not enum.values_by_number[0].name.endswith("_UNSPECIFIED")] == []


# Comments

# What has a name and a comment, by its field number in google/protobuf/descriptor.proto.
INSIDE: Mapping[str, Mapping[int, str]] = {
    "file": {4: "message", 5: "enum", 6: "service"},
    "message": {2: "field", 3: "message", 4: "enum", 8: "oneof"},
    "enum": {2: "value"},
    "service": {2: "call"},
}


def compiled(protos: Path, out: Path) -> list[FileDescriptorProto]:
    """The protos as protoc understands them, with their comments."""
    names = sorted(path.relative_to(protos).as_posix() for path in protos.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={protos}", f"--descriptor_set_out={out}"]
    subprocess.run([*command, "--include_source_info", *names], check=True)
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def places_without_comment(file: FileDescriptorProto) -> Iterator[str]:
    """Everything with a name that no comment stands before. A place is a path: a field number, an index, and so on."""
    for location in file.source_code_info.location:
        if is_named(list(location.path)) and not location.leading_comments.strip():
            yield f"{file.name} line {location.span[0] + 1}"


def is_named(path: Sequence[int]) -> bool:
    kind = "file"
    for number in path[::2]:
        kind = INSIDE.get(kind, {}).get(number, "")
    return kind not in ("", "file") and len(path) % 2 == 0


def test_everything_in_the_protos_is_explained(tmp_path: Path) -> None:
    files = compiled(PROTOS, tmp_path / "protos.bin")
    assert len(files) == len(MODULES)
    assert [place for file in files for place in places_without_comment(file)] == []


@pytest.mark.parametrize(
    "source",
    [
        "message A {}",
        "// A.\nmessage A {\n  bytes key = 1;\n}",
        "// A.\nmessage A {\n  // B.\n  message B {\n    bytes key = 1;\n  }\n}",
        "// A.\nmessage A {\n  // B.\n  enum B {\n    B_UNSPECIFIED = 0;\n  }\n}",
        "// A.\nmessage A {\n  oneof b {\n    // C.\n    bytes c = 1;\n  }\n}",
        "// A.\nenum A {\n  A_UNSPECIFIED = 0;\n}",
        "// A.\nmessage A {}\n// S.\nservice S {\n  rpc Call(A) returns (A);\n}",
    ],
)
def test_what_is_not_explained_is_noticed(source: str, tmp_path: Path) -> None:
    (tmp_path / "culprit.proto").write_text(f'syntax = "proto3";\npackage culprit;\n\n{source}\n')
    (file,) = compiled(tmp_path, tmp_path / "culprit.bin")
    assert len(list(places_without_comment(file))) == 1


# buf


@pytest.fixture
def buf(require_program: Callable[[str], str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs buf in a folder. The package buf-bin puts it beside the Python that runs the tests."""
    beside = Path(sys.executable).parent / "buf"
    program = str(beside) if beside.exists() else require_program("buf")
    environment = os.environ | {"BUF_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = [program, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run


def test_buf_has_nothing_to_complain_about(buf) -> None:
    lint = buf("lint", folder=ROOT)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
    layout = buf("format", "--diff", "--exit-code", folder=ROOT)
    assert (layout.returncode, layout.stdout, layout.stderr) == (0, "", "")


def test_buf_notices_a_proto_that_breaks_the_rules(buf, tmp_path: Path) -> None:
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(PROTOS, tmp_path / "protos")
    kv = tmp_path / "protos" / "kvstore" / "v1" / "kv.proto"
    kv.write_text(kv.read_text() + "\nmessage lower_case {\n  bytes key = 1;\n}\n")
    lint = buf("lint", folder=tmp_path)
    assert lint.returncode != 0
    assert "PascalCase" in lint.stdout and "comment" in lint.stdout


# The committed code


def generated_files(root: Path) -> dict[str, bytes]:
    paths = [path for path in (root / "kvstore").rglob(MADE) if path.suffix in (".py", ".pyi")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def test_the_committed_code_is_what_the_protos_make(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROTOS / "generate.py", "--out", tmp_path], check=True)
    fresh, committed = generated_files(tmp_path), generated_files(ROOT)
    assert set(fresh) == set(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run `make protos`"


def test_a_run_removes_the_code_of_a_proto_that_is_gone(tmp_path: Path) -> None:
    stale, own = tmp_path / "kvstore" / "v1" / "gone_pb2.py", tmp_path / "kvstore" / "v1" / "__init__.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    own.touch()
    subprocess.run([sys.executable, PROTOS / "generate.py", "--out", tmp_path], check=True)
    assert own.exists() and not stale.exists()


def test_the_committed_code_lies_where_python_imports_it() -> None:
    for file in MODULES:
        folder = ROOT / Path(file.name).parent
        assert (PROTOS / file.name).is_file()
        assert (folder / "__init__.py").is_file() and (folder / f"{Path(file.name).stem}_pb2.pyi").is_file()
        assert file.package == Path(file.name).parent.as_posix().replace("/", ".")


def floors_needed() -> dict[str, Version]:
    """The oldest runtimes that the committed code accepts; it raises an error when it is imported with older ones."""
    patterns = {
        "protobuf": re.compile(rb"^# Protobuf Python Version: (\S+)$", re.MULTILINE),
        "grpcio": re.compile(rb"^GRPC_GENERATED_VERSION = '(\S+)'$", re.MULTILINE),
    }
    code = b"\n".join(generated_files(ROOT).values())
    return {name: max(Version(found.decode()) for found in pattern.findall(code)) for name, pattern in patterns.items()}


@pytest.mark.parametrize("name", ["protobuf", "grpcio"])
def test_the_package_asks_for_the_runtime_that_its_code_needs(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert name in wanted
    floors = [Version(one.version) for one in wanted[name] if one.operator == ">="]
    assert floors and max(floors) >= floors_needed()[name]
