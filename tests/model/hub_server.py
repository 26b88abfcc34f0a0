"""A small Hugging Face Hub on 127.0.0.1: repositories, commits, regular and LFS files."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPOS: dict[str, dict[str, list[str]]] = {}  # repository → branch → commits, the newest last
COMMITS: dict[str, dict[str, tuple[bytes, bool]]] = {}  # commit → path → content and whether it is in LFS
STORE: dict[str, bytes] = {}
LFS = ("*.safetensors", "*.parquet")


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: object, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def note(self) -> None:
        sys.stdout.write(f"{self.command} {self.path}\n")
        sys.stdout.flush()

    def missing(self, code: str) -> None:
        self.answer(404, b"", X_Error_Code=code, X_Error_Message=code)

    def commit(self, repo: str, revision: str) -> str | None:
        branches = REPOS[repo]
        if revision in branches:
            return branches[revision][-1]
        return revision if any(revision in commits for commits in branches.values()) else None

    def do_GET(self) -> None:
        self.note()
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?(?:/.*)?", path):
            repo, kind, revision = found[1], found[2], found[3] or "main"
            if repo not in REPOS:
                return self.missing("RepoNotFound")
            commit = self.commit(repo, revision)
            if commit is None:
                return self.missing("RevisionNotFound")
            files = COMMITS[commit]
            if kind == "tree":
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, (data, _) in files.items()
                ]
                return self.json(tree)
            siblings = [{"rfilename": name} for name in files]
            return self.json({"id": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []})
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if found[1] not in REPOS:
                return self.missing("RepoNotFound")
            commit = self.commit(found[1], found[2])
            if commit is None:
                return self.missing("RevisionNotFound")
            if found[3] not in COMMITS[commit]:
                return self.missing("EntryNotFound")
            data, lfs = COMMITS[commit][found[3]]
            tag = hashlib.sha256(data).hexdigest() if lfs else hashlib.sha1(data).hexdigest()
            headers = {"ETag": f'"{tag}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
            if lfs:
                headers |= {"X_Linked_Etag": f'"{tag}"', "X_Linked_Size": str(len(data))}
            if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(span[1]), int(span[2] or len(data) - 1)
                headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
                return self.answer(206, data[first : last + 1], **headers)
            return self.answer(200, data, **headers)
        return self.missing("EntryNotFound")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.body()
        name = hashlib.sha256(data).hexdigest()
        assert self.path.endswith(name)
        STORE[name] = data
        self.answer(200)

    def do_POST(self) -> None:
        self.note()
        path, sent = unquote(urlsplit(self.path).path), self.body()
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self.json({"error": "log in"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(sent)
            repo = f"{asked.get('organization') or 'user'}/{asked['name']}"
            if repo in REPOS:
                return self.json({"error": "exists", "url": self.path}, 409)
            COMMITS["0" * 40] = {}
            REPOS[repo] = {"main": ["0" * 40]}
            return self.json({"url": f"http://{self.headers['Host']}/{repo}", "name": repo})
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/.+", path):
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if any(fnmatch.fnmatch(each["path"], p) for p in LFS) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(sent)["files"]
            ]
            return self.json({"files": files})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {
                    **each,
                    "actions": {"upload": {"href": f"http://{self.headers['Host']}/store/{each['oid']}"}},
                }
                for each in json.loads(sent)["objects"]
            ]
            return self.json({"transfer": "basic", "objects": objects})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            REPOS[found[1]].setdefault(found[2], list(REPOS[found[1]]["main"]))
            return self.json({})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            commits = REPOS[found[1]][found[2]]
            files = dict(COMMITS[commits[-1]])
            for line in sent.splitlines():
                each = json.loads(line)
                value = each["value"]
                if each["key"] == "file":
                    files[value["path"]] = (base64.b64decode(value["content"]), False)
                elif each["key"] == "lfsFile":
                    files[value["path"]] = (STORE[value["oid"]], True)
                elif each["key"] == "deletedFile":
                    del files[value["path"]]
            name = hashlib.sha1(sent).hexdigest()
            COMMITS[name] = files
            commits.append(name)
            where = f"http://{self.headers['Host']}/{found[1]}/commit/{name}"
            return self.json({"commitUrl": where, "commitOid": name, "hookOutput": ""})
        return self.json({"error": path}, 404)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    sys.stderr.write(f"{server.server_port}\n")
    sys.stderr.flush()
    server.serve_forever()
