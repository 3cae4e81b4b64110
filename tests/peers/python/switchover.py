"""Two members of Patroni with real PostgreSQL, over the server at KINDRED_ADDRESS: one hands the lead over to the other.

KINDRED_POSTGRESQL is the folder of PostgreSQL's programs. Data goes to the current folder. What Patroni says goes to
one.log and two.log there.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg2

LIMIT_SECONDS = 60


class Member:
    def __init__(self, name):
        self.name = name
        self.api, self.port = free_port(), free_port()
        self.folder = Path.cwd() / name
        self.folder.mkdir()
        self.folder.joinpath("config.json").write_text(json.dumps(self.config()))
        self.log = open(f"{name}.log", "wb")
        # The configuration is JSON, which is YAML as well.
        command = [sys.executable, "-m", "patroni", str(self.folder / "config.json")]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def config(self):
        user = {"username": "postgres", "password": "secret"}
        return {
            "scope": f"switchover-{os.getpid()}",
            "name": self.name,
            "etcd3": {"host": os.environ["KINDRED_ADDRESS"]},
            "restapi": {"listen": f"127.0.0.1:{self.api}"},
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 1, "retry_timeout": 5},
                "initdb": ["no-sync", {"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "bin_dir": os.environ["KINDRED_POSTGRESQL"],
                "data_dir": str(self.folder / "data"),
                "pgpass": str(self.folder / "pgpass"),
                "authentication": {"superuser": user, "replication": user},
                "parameters": {"unix_socket_directories": "", "fsync": "off"},
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
        }

    def asked(self, path, body=None):
        """The status of an answer of Patroni's API, or 0 if there is none."""
        url = f"http://127.0.0.1:{self.api}/{path}"
        request = urllib.request.Request(url, body and json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, what):
        end = time.monotonic() + LIMIT_SECONDS
        while self.asked(what) != 200:
            assert self.process.poll() is None, f"{self.name} has ended"
            assert time.monotonic() < end, f"{self.name} is not {what}"
            time.sleep(0.1)
        print(self.name, "is", what, flush=True)

    def wait_until_writable(self):
        """Waits for PostgreSQL, which is promoted after Patroni already says that it leads."""
        end = time.monotonic() + LIMIT_SECONDS
        while self.run("SELECT pg_is_in_recovery()") != [False]:
            assert time.monotonic() < end, f"{self.name} is still in recovery"
            time.sleep(0.1)

    def run(self, statement):
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
        connection.close()
        return [value for (value,) in rows]

    def wait_for_rows(self, *expected):
        end = time.monotonic() + LIMIT_SECONDS
        while (found := self.rows()) != list(expected):
            assert time.monotonic() < end, f"{self.name} has {found}"
            time.sleep(0.1)
        print(self.name, "has", expected, flush=True)

    def rows(self):
        try:
            return self.run("SELECT value FROM rows ORDER BY value")
        except psycopg2.errors.UndefinedTable:
            return []

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    members = [Member("one")]
    try:
        one = members[0]
        one.wait("leader")
        two = Member("two")
        members.append(two)
        two.wait("replica")
        one.wait_until_writable()
        one.run("CREATE TABLE rows AS SELECT 'a' AS value")
        two.wait_for_rows("a")
        assert one.asked("switchover", {"leader": "one", "candidate": "two"}) == 200
        two.wait("leader")
        two.wait_until_writable()
        two.run("INSERT INTO rows VALUES ('b')")
        one.wait("replica")
        one.wait_for_rows("a", "b")
    finally:
        for member in reversed(members):
            member.stop()


main()
