"""DOOR: the Docker engine through its SDK: look images up, pull, run a program, read files, put a layer on, tag.

Every container is named `overlay-RUN-N`, so one that a killed process left behind can be told from others; all but the
one that is committed (its labels would go into the image) carry the label `io.github.sglang-overlay.run=RUN` too.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from posixpath import basename, dirname
from typing import IO, Any, cast

import docker
import docker.errors
import docker.utils
import requests
import urllib3

from builder.container_streams import AttachedStreams
from builder.doors import EngineInfo, Limits, Progress
from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.image_pull import PullProgress, pull_error, without_credentials
from builder.layer import WHITEOUT, thin_archive
from builder.model import Completed, Digest, ImageRef, Layer, LocalImage, Platform

RUN_LABEL = "io.github.sglang-overlay.run"
WAYS = ("load", "commit")
_WAYS_VARIABLE = "OVERLAY_LOAD_WAYS"
_WHERE = "docker"
_CONNECT_SECONDS = 15
_ANSWER_SECONDS = 900
_PROCESSES = 4096
_SCRATCH = "/tmp"
_TRANSPORT_ERRORS = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError)
# Names nothing that can run: containers that are never started must name a program all the same.
_NOTHING = "-"


def connect(ways: Sequence[str] | None = None) -> DockerEngine:
    """Connect to the engine that the `docker` command would use: DOCKER_HOST, else its current context.

    `ways` are the ways in which a layer may be put on, in order; OVERLAY_LOAD_WAYS (`load,commit`) is the default.
    """
    wanted = tuple(ways or os.environ.get(_WAYS_VARIABLE, ",".join(WAYS)).split(","))
    if unknown := set(wanted) - set(WAYS):
        raise InputError(_WAYS_VARIABLE, f"expected some of {', '.join(WAYS)}; found {', '.join(sorted(unknown))}")
    address = "the default address"
    try:
        endpoint = _endpoint()
        address = str(endpoint.get("base_url") or address)
        client = docker.APIClient(version="auto", timeout=_CONNECT_SECONDS, **endpoint)
    except _TRANSPORT_ERRORS as error:
        raise _no_engine(error, address) from None
    # A 40 GB image on a slow disk takes its time; only whether anybody is there must be known soon.
    client.timeout = _ANSWER_SECONDS
    return DockerEngine(client, wanted)


def _endpoint() -> dict[str, Any]:
    if os.environ.get("DOCKER_HOST"):
        return dict(docker.utils.kwargs_from_env())
    context = docker.ContextAPI.get_current_context()
    if context is None or context.name == "default" or not context.Host:
        return dict(docker.utils.kwargs_from_env())
    return {"base_url": context.Host, **({"tls": context.TLSConfig} if context.TLSConfig else {})}


def _no_engine(error: Exception, address: str) -> Unavailable:
    words = without_credentials(str(error))
    hint = "start it (systemctl start docker), or set DOCKER_HOST"
    if "ermission denied" in words:
        hint = "run as a member of the group docker, or as root"
    elif os.environ.get("DOCKER_HOST"):
        hint = "check DOCKER_HOST, or unset it"
    return Unavailable(_WHERE, f"no engine answers at {without_credentials(address)}", hint=hint, facts=[words[:300]])


class DockerEngine:
    """The container engine. Not thread-safe; `close` gives its connections back."""

    def __init__(self, client: docker.APIClient, ways: Sequence[str] = WAYS) -> None:
        self._client: Any = client  # the SDK's stubs leave out half of what is used here
        self._ways = tuple(ways)
        self._run = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._homes: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Close the connections to the engine."""
        self._client.close()

    def info(self) -> EngineInfo:
        """Tell the engine's version, image store and platform."""
        with _speaking("version"):
            version, info = self._client.version(), self._client.info()
        details = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2)
        is_containerd = "io.containerd" in str(details.get("driver-type", ""))
        store = "containerd" if is_containerd else str(info.get("Driver", ""))
        return EngineInfo(str(version["Version"]), store, Platform(str(version["Os"]), str(version["Arch"])))

    # --- images

    def inspect(self, reference: str) -> LocalImage | None:
        """Look an image up by reference or id; None if the engine does not have it. Never pulls."""
        if not reference:
            return None
        with _speaking(f"inspect {reference}"):
            try:
                told = self._client.inspect_image(reference)
                history = self._client.history(told["Id"])
            except docker.errors.NotFound:
                return None
        return _local_image(told, history)

    def find(self, label: str, value: str) -> tuple[LocalImage, ...]:
        """List the local images that carry a label with this value; what was built on one of them does too."""
        return tuple(self._list({"label": f"{label}={value}"}, with_hidden=True))

    def images(self) -> Iterator[LocalImage]:
        """List the local images, without the untagged steps of builds."""
        yield from self._list({}, with_hidden=False)

    def _list(self, filters: Mapping[str, str], *, with_hidden: bool) -> Iterator[LocalImage]:
        with _speaking("list images"):
            listed = self._client.images(all=with_hidden, filters=dict(filters))
        for entry in sorted(listed, key=lambda entry: str(entry["Id"])):
            # None: it was removed since it was listed.
            if (image := self.inspect(entry["Id"])) is not None:
                yield image

    def pull(self, reference: ImageRef, platform: Platform, progress: Progress) -> LocalImage:
        """Pull by digest, else by a tag that no local image has yet: a pull must not move a tag unasked."""
        if reference.digest is None and self.inspect(str(reference)) is not None:
            message = "a local image has this tag, and a pull by tag could move it"
            raise Refused(str(reference), message, hint="pull by digest, or remove the local tag")
        wanted = reference.digest or reference.tag or "latest"
        shown = PullProgress(str(reference), progress)
        try:
            with _speaking(f"pull {reference}"):
                for event in self._client.pull(
                    reference.repository, tag=wanted, stream=True, decode=True, platform=str(platform)
                ):
                    if "error" in event:
                        raise pull_error(reference, str(event["error"]))
                    shown.take(event)
        except _EngineSaid as said:
            raise pull_error(reference, said.words) from None
        name = f"{reference.repository}{'@' if reference.digest else ':'}{wanted}"
        image = self.inspect(name)
        if image is None:
            raise Unavailable(str(reference), f"was pulled, but the engine does not know {name} afterwards")
        return image

    def tag(self, image: Digest, reference: ImageRef) -> None:
        """Give an image a tag; another image that had it loses it."""
        if reference.digest is not None:
            raise InputError(str(reference), "is pinned by digest and cannot be a tag", hint="leave @sha256:... away")
        with _speaking(f"tag {reference}"):
            self._client.tag(image, reference.repository, reference.tag or "latest")

    def remove(self, image: Digest) -> None:
        """Remove an untagged image of ours; one that is tagged, known by a repository digest or in use stays."""
        found = self.inspect(image)
        if found is None or found.repo_tags or found.repo_digests:
            return
        with _speaking(f"remove {image}"):
            try:
                # noprune: removing ours must not take an untagged base along.
                self._client.remove_image(image, noprune=True)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise

    # --- containers

    def run(
        self,
        image: Digest,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        limits: Limits | None = None,
        user: str | None = None,
    ) -> Completed | None:
        """Run one program in a throwaway container, entrypoint bypassed; None if the image has no such program.

        See `doors.Engine.run`. HOME is /tmp, so that nothing the image has in its own home is hidden; Python's user
        packages of that home stay importable. A program that is there but may not run gives exit code 126, as in a
        shell. Of each output the last 16 MB are kept.
        """
        limits = limits or Limits()
        config: dict[str, Any] = {
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "Env": self._environment(image, user, environment or {}),
            "AttachStdout": True,
            "AttachStderr": True,
            "AttachStdin": bool(stdin),
            "OpenStdin": bool(stdin),
            "StdinOnce": bool(stdin),
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": _confinement(limits),
        }
        config |= {key: value for key, value in (("WorkingDir", working_dir), ("User", user)) if value is not None}
        with _speaking(f"run {argv[0]}"), self._container(image, config) as name:
            return self._attached_run(name, stdin, limits)

    def _attached_run(self, name: str, stdin: bytes, limits: Limits) -> Completed | None:
        streams = {"stdin": int(bool(stdin)), "stdout": 1, "stderr": 1, "stream": 1}
        # Attached before the start, so that no output is missed.
        with AttachedStreams(self._client.attach_socket(name, params=streams)) as attached:
            try:
                self._client.start(name)
            except docker.errors.APIError as error:
                return _not_started(error)
            deadline = time.monotonic() + limits.seconds
            is_late = not attached.talk(stdin, deadline) or not self._wait(name, deadline)
            if is_late:
                # First: an engine that cannot hand on the output may not get to the killing.
                attached.hang_up()
                self._kill(name)
            state = self._client.inspect_container(name)["State"]
            stdout, stderr = attached.stdout.text(), attached.stderr.text()
        if is_late:
            return Completed(None, stdout, stderr, "time")
        if state.get("OOMKilled"):
            return Completed(None, stdout, stderr, "memory")
        return Completed(int(state["ExitCode"]), stdout, stderr)

    def _wait(self, name: str, deadline: float) -> bool:
        """Wait for the program's end; False at the deadline."""
        try:
            # One second at least: what closed its output is ending.
            self._client.wait(name, timeout=max(deadline - time.monotonic(), 1.0))
        except (requests.ReadTimeout, requests.ConnectionError):
            return not self._client.inspect_container(name)["State"]["Running"]
        return True

    def _kill(self, name: str) -> None:
        with suppress(docker.errors.APIError):  # it ended by itself in this moment
            self._client.kill(name)
        self._client.wait(name, timeout=30)

    def _environment(self, image: Digest, user: str | None, given: Mapping[str, str]) -> list[str]:
        # `void`: where NVIDIA's runtime is the default, it then neither needs a GPU nor checks the driver.
        ours = {"HOME": _SCRATCH, "PYTHONDONTWRITEBYTECODE": "1", "NVIDIA_VISIBLE_DEVICES": "void"}
        found = self.inspect(image)
        told = _run_config(found) if found else {}
        names = {entry.partition("=")[0] for entry in told.get("Env") or ()}
        if "PYTHONUSERBASE" not in names:
            home = self._home(image, user if user is not None else str(told.get("User") or ""), told)
            ours["PYTHONUSERBASE"] = f"{home.rstrip('/')}/.local"
        return [f"{key}={value}" for key, value in {**ours, **given}.items()]

    def _home(self, image: Digest, user: str, told: Mapping[str, Any]) -> str:
        """Tell what HOME would be: the image's own setting, else what its /etc/passwd says of the user."""
        for entry in told.get("Env") or ():
            if entry.startswith("HOME="):
                return str(entry).removeprefix("HOME=")
        key = (str(image), user)
        if key not in self._homes:
            try:
                with self.archive(image, "/etc/passwd") as stream:
                    passwd = (_first_entry(stream) or (None, b""))[1].decode("utf-8", "replace")
            except InputError:
                passwd = ""
            self._homes[key] = _home_of(user.partition(":")[0] or "0", passwd)
        return self._homes[key]

    @contextmanager
    def archive(self, image: Digest, path: str) -> Iterator[IO[bytes]]:
        """Stream the tar of one path of an image (a created, never started container, removed afterwards).

        Times are in whole seconds: the engine cuts the rest off. InputError where the image has no such path.
        """
        with (
            _speaking(f"read {path}"),
            self._container(image, {"Entrypoint": [_NOTHING]}) as name,
            self._archived(name, path) as stream,
        ):
            yield stream

    @contextmanager
    def _archived(self, container: str, path: str) -> Iterator[IO[bytes]]:
        # Not the SDK's get_archive: its generator keeps the connection when the reader stops early.
        url = self._client._url("/containers/{0}/archive", container)
        headers = {"Accept-Encoding": "identity"}
        with self._client.get(
            url, params={"path": path}, headers=headers, stream=True, timeout=_ANSWER_SECONDS
        ) as response:
            if response.status_code == 404:
                raise InputError(path, "the image has no such path")
            self._client._raise_for_status(response)
            yield cast(IO[bytes], response.raw)

    @contextmanager
    def _container(self, image: str, config: Mapping[str, Any], *, is_labelled: bool = True) -> Iterator[str]:
        # Named by us: it can be removed although an interrupt came before the engine's answer.
        name = f"overlay-{self._run}-{next(self._numbers)}"
        labels = {"Labels": {RUN_LABEL: self._run}} if is_labelled else {}
        tries = 3
        try:
            self._client.create_container_from_config({"Image": image, **labels, **config}, name)
            yield name
            tries = 1
        except docker.errors.ImageNotFound:
            raise InputError(image, "the engine has no such image", hint="docker images --digests") from None
        finally:
            self._discard(name, tries)

    def _discard(self, name: str, tries: int) -> None:
        """Remove a container; more tries where the engine may still be creating it for a request given up."""
        for left in reversed(range(tries)):
            try:
                self._client.remove_container(name, v=True, force=True)
            except docker.errors.NotFound:
                time.sleep(0.1 if left else 0)
            else:
                return

    # --- the layer

    def load(self, config: bytes, layer: Layer, base: LocalImage, deletions: Sequence[str]) -> tuple[LocalImage, str]:
        """Put base + layer into the engine, untagged; return the image and the way that worked (`load`, `commit`).

        `load` gives exactly the image that `config` names. `commit` stores the same files under another id, and only
        after they were read back and proved equal. Nothing is left behind by a way that did not work.
        """
        if self.inspect(base.id) is None:
            raise Unavailable(
                _WHERE, f"the base {base.id} is not in the engine any more", hint="run it again to pull it"
            )
        refusals = []
        for way in self._ways:
            try:
                if way == "load":
                    return self._load_thin(config, layer, base), way
                return self._commit(config, layer, base, deletions), way
            except _EngineSaid as said:
                refusals.append(f"{way}: {said.words}")
        hint = "docker info shows the store and the disk"
        raise Unavailable(_WHERE, "the engine does not take the layer", hint=hint, facts=refusals)

    def _load_thin(self, config: bytes, layer: Layer, base: LocalImage) -> LocalImage:
        expected = Digest.of(config)
        diff_ids = (*base.diff_ids, layer.diff_id)
        before = self.inspect(expected)
        archive = thin_archive(config, layer, base.diff_ids)
        said = []
        with _speaking("load"):
            for event in self._client.load_image(archive, quiet=True) or ():
                said.append(str(event.get("error") or event.get("stream") or "").strip())
        image = self.inspect(expected)
        if image is not None and image.id == expected and image.diff_ids == diff_ids:
            return image
        if before is None:
            for loaded in {str(expected), *re.findall(r"sha256:[0-9a-f]{64}", " ".join(said))} - {base.id}:
                self.remove(Digest(loaded))
        found = f"{image.id} with {len(image.diff_ids)} layers" if image else "nothing"
        words = "; ".join(filter(None, said))
        raise _EngineSaid("load", words or f"expected {expected} with {len(diff_ids)} layers, found {found}")

    def _commit(self, config: bytes, layer: Layer, base: LocalImage, deletions: Sequence[str]) -> LocalImage:
        run_config = json.loads(config)["config"]
        told = _run_config(base)
        # Commit bakes in what its container was made with, so that is the base's own; a placeholder only where the
        # base names no program, and then the empty lists below take it out again.
        program = {} if told.get("Cmd") or told.get("Entrypoint") else {"Entrypoint": [_NOTHING]}
        lists = {key: run_config.get(key) or [] for key in ("Cmd", "Entrypoint")}
        comment = json.loads(config)["history"][-1].get("created_by", "")
        with _speaking("commit"), self._container(base.id, program, is_labelled=False) as name:
            # Whiteouts go in as files of that name: what is made of the container's changes reads them as whiteouts.
            self._client.put_archive(name, "/", layer.tar)
            made = self._client.commit(name, message=comment, conf={**run_config, **lists})
        image = Digest(made["Id"])
        try:
            return self._proved(image, run_config, layer, base, deletions)
        except BaseException:
            with suppress(OverlayError):
                self.remove(image)
            raise

    def _proved(
        self, made: Digest, run_config: Mapping[str, Any], layer: Layer, base: LocalImage, deletions: Sequence[str]
    ) -> LocalImage:
        """Return a committed image once its layers, its config and every entry of the layer are proved."""
        image = self.inspect(made)
        if image is None or image.diff_ids[:-1] != base.diff_ids:
            raise _EngineSaid("commit", "the image it made is not the base and one layer")
        found = _run_config(image)
        faults = [
            f"config {key}: expected {value!r}, found {found.get(key)!r}"
            for key, value in run_config.items()
            if (value or None) != (found.get(key) or None)
        ]
        with (
            _speaking("read back"),
            self._container(made, {"Entrypoint": [_NOTHING]}) as name,
            tarfile.open(fileobj=io.BytesIO(layer.tar)) as tar,
        ):
            for entry in tar:
                file = tar.extractfile(entry)
                faults += self._differences(name, entry, file.read() if file else b"")
            faults += [f"{path}: is still there" for path in deletions if self._entry(name, path) is not None]
        if faults:
            raise _EngineSaid("commit", "what it stored differs: " + "; ".join(faults[:5]))
        return image

    def _differences(self, container: str, wanted: tarfile.TarInfo, data: bytes) -> list[str]:
        path = f"/{wanted.name}"
        if basename(path).startswith(WHITEOUT):
            hidden = f"{dirname(path)}/{basename(path).removeprefix(WHITEOUT)}"
            return [f"{hidden}: is still there"] if self._entry(container, hidden) is not None else []
        stored = self._entry(container, path)
        if stored is None:
            return [f"{path}: is not there"]
        found, content = stored
        compared = {
            "kind": (wanted.type, found.type),
            "mode": (oct(wanted.mode), oct(found.mode & 0o7777)),
            "owner": ((wanted.uid, wanted.gid), (found.uid, found.gid)),
            "time": (int(wanted.mtime), int(found.mtime)),
            "content": (Digest.of(data), Digest.of(content)),
        }
        return [f"{path}: {what} {a} became {b}" for what, (a, b) in compared.items() if a != b]

    def _entry(self, container: str, path: str) -> tuple[tarfile.TarInfo, bytes] | None:
        """Return one path's own tar entry and content; of a folder nothing more is read."""
        try:
            with self._archived(container, path) as stream:
                return _first_entry(stream)
        except InputError:
            return None


class _EngineSaid(Unavailable):
    """The engine answered, and the answer was no; `words` are its own."""

    def __init__(self, what: str, words: str) -> None:
        super().__init__(_WHERE, f"{what}: {words}", hint="docker info")
        self.words = words


@contextmanager
def _speaking(what: str) -> Iterator[None]:
    """Turn what the SDK and its transport raise into Unavailable, with the engine's own words."""
    try:
        yield
    except docker.errors.APIError as error:
        raise _EngineSaid(what, _words(error)) from None
    except (*_TRANSPORT_ERRORS, TimeoutError, ConnectionError) as error:
        facts = [without_credentials(str(error))[:300]]
        raise Unavailable(_WHERE, f"{what}: the engine stopped answering", hint="docker info", facts=facts) from None


def _words(error: docker.errors.APIError) -> str:
    explanation = error.explanation
    words = explanation.decode("utf-8", "replace") if isinstance(explanation, bytes) else str(explanation or error)
    return without_credentials(words.strip())


# --- images


def _local_image(told: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> LocalImage:
    platform = Platform(str(told["Os"]), str(told["Architecture"]), str(told.get("Variant") or ""))
    layers = (told.get("RootFS") or {}).get("Layers") or ()
    run_config = told.get("Config") or {}
    config = {
        "architecture": platform.architecture,
        "os": platform.os,
        "created": told.get("Created") or "",
        "author": told.get("Author") or "",
        "config": run_config,
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
        "history": _oci_history(history, len(layers)),
    }
    return LocalImage(
        id=Digest(told["Id"]),
        repo_digests=tuple(told.get("RepoDigests") or ()),
        repo_tags=tuple(told.get("RepoTags") or ()),
        platform=platform,
        diff_ids=tuple(Digest(layer) for layer in layers),
        config=config,
        labels=dict(run_config.get("Labels") or {}),
        size=int(told.get("Size") or 0),
    )


def _oci_history(told: Sequence[Mapping[str, Any]], layers: int) -> list[Mapping[str, Any]]:
    """Turn the engine's history, newest first, into the config's, oldest first.

    The engine does not tell which entries have a layer: those with a size do, and of the rest the newest, until every
    layer has its entry.
    """
    without_size = sum(1 for entry in told if not entry.get("Size"))
    if (missing := layers - (len(told) - without_size)) < 0:
        return []  # more layers than the image has: no history of this image
    entries: list[Mapping[str, Any]] = []
    for entry in told:
        has_layer = bool(entry.get("Size")) or missing > 0
        missing -= 1 if has_layer and not entry.get("Size") else 0
        time = datetime.fromtimestamp(int(entry.get("Created") or 0), UTC)
        entries.append(
            {
                "created": time.isoformat().replace("+00:00", "Z"),
                **({"created_by": entry["CreatedBy"]} if entry.get("CreatedBy") else {}),
                **({"comment": entry["Comment"]} if entry.get("Comment") else {}),
                **({} if has_layer else {"empty_layer": True}),
            }
        )
    return entries[::-1]


def _run_config(image: LocalImage) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], image.config.get("config") or {})


# --- containers


def _confinement(limits: Limits) -> dict[str, Any]:
    scratch_bytes = min(limits.memory_bytes // 2, 2 << 30)
    return {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "Tmpfs": {_SCRATCH: f"rw,nosuid,nodev,exec,mode=1777,size={scratch_bytes}"},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": _PROCESSES,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "LogConfig": {"Type": "none"},
    }


def _not_started(error: docker.errors.APIError) -> Completed | None:
    """Tell a missing program (None) from one that may not run (126) and from trouble of the engine (raised)."""
    words = _words(error)
    if re.search(r"executable file .*not found|exec: .*no such file or directory|exec /\S+: no such file", words):
        return None
    if "permission denied" in words:
        return Completed(126, "", words)
    if "exec format error" in words:
        hint = "give --platform of this machine, or set up binfmt"
        raise Unavailable(_WHERE, "this machine cannot run the image's programs", hint=hint, facts=[words]) from None
    raise error


def _home_of(user: str, passwd: str) -> str:
    for line in passwd.splitlines():
        name, *fields = line.split(":")
        if len(fields) == 6 and user in (name, fields[1]):
            return fields[4] or "/"
    return "/root" if user in ("0", "root") else "/"


def _first_entry(stream: IO[bytes]) -> tuple[tarfile.TarInfo, bytes] | None:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        entry = tar.next()
        if entry is None:
            return None
        file = tar.extractfile(entry) if entry.isreg() else None
        return entry, file.read() if file else b""
