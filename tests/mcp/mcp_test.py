#!/usr/bin/env python3
"""A client of the Model Context Protocol against `plimsoll mcp`: mcp_test.py PROGRAM

Nothing but Python's standard library. Each test starts a server of its own.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.path.abspath(sys.argv.pop(1))
SNAPSHOT = "tests/data/dialects/protocol4.pickle"
LOG = "tests/data/errors/torch_2_6_allowed.txt"
STEP = next(iter(sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/data/steps").glob("*.step.json.gz"))), None)
NEWEST = "2025-06-18"
# A line is refused beyond that.
LONGEST = 4 << 20


class Client:
    def __init__(self, *flags, cwd=ROOT):
        self.process = subprocess.Popen([PROGRAM, "mcp", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, cwd=cwd)
        self.next_id = 0

    def send(self, line):
        self.process.stdin.write(line if isinstance(line, bytes) else (line + "\n").encode())
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), "the server ended: " + self.process.stderr.read().decode()
        message = json.loads(line)
        for one in message if isinstance(message, list) else [message]:
            check_response(one)
        return message

    def ask(self, method, params=None, **more):
        self.next_id += 1
        message = {"jsonrpc": "2.0", "id": self.next_id, "method": method, **more}
        if params is not None:
            message["params"] = params
        self.send(json.dumps(message))
        answer = self.read()
        assert answer["id"] == self.next_id, answer
        return answer

    def result(self, method, params=None):
        answer = self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def code(self, method, params=None):
        answer = self.ask(method, params)
        assert "error" in answer, answer
        return answer["error"]["code"]

    def initialize(self, version=NEWEST):
        result = self.result("initialize", {"protocolVersion": version, "capabilities": {},
                                            "clientInfo": {"name": "test", "version": "1"}})
        self.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        return result

    def call(self, tool, arguments):
        return self.result("tools/call", {"name": tool, "arguments": arguments})

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(60)
        rest, told = self.process.stdout.read(), self.process.stderr.read()
        self.process.stdout.close(), self.process.stderr.close()
        assert code == 0 and rest == b"", (code, rest, told)
        return told.decode()


def check_response(message):
    """What JSON-RPC says of every response."""
    assert message["jsonrpc"] == "2.0" and "id" in message, message
    assert ("result" in message) != ("error" in message), message
    if "error" in message:
        assert isinstance(message["error"]["code"], int) and isinstance(message["error"]["message"], str), message
        assert "\n" not in message["error"]["message"], message


def check_schema(schema, value, path="$"):
    """The part of JSON Schema that the tools use."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    assert isinstance(value, kinds[schema["type"]]), (path, schema, type(value))
    for name in schema.get("required", []):
        assert name in value, (path, name)
    for name, part in schema.get("properties", {}).items():
        if name in value:
            check_schema(part, value[name], f"{path}.{name}")


def printed(*words):
    """What the program prints with --json for the same question."""
    run = subprocess.run([PROGRAM, *words, "-q"], cwd=ROOT, capture_output=True)
    return json.loads(run.stdout)


class Protocol(unittest.TestCase):
    def setUp(self):
        self.client = Client()
        self.ended = False

    def tearDown(self):
        if not self.ended:
            self.client.end()

    def test_versions_are_negotiated(self):
        for asked, given in ((NEWEST, NEWEST), ("2025-03-26", "2025-03-26"), ("2024-11-05", "2024-11-05"),
                             ("1999-01-01", NEWEST), ("", NEWEST)):
            client = Client()
            result = client.initialize(asked)
            self.assertEqual(result["protocolVersion"], given)
            self.assertIn("tools", result["capabilities"])
            self.assertEqual(result["serverInfo"]["name"], "plimsoll")
            self.assertRegex(result["serverInfo"]["version"], r"^\d+\.\d+")
            client.end()

    def test_nothing_but_ping_comes_before_initialize(self):
        self.assertEqual(self.client.result("ping"), {})
        self.assertEqual(self.client.code("tools/list"), -32600)
        self.assertEqual(self.client.code("initialize", {}), -32602)
        self.client.initialize()
        self.assertEqual(self.client.code("initialize", {"protocolVersion": NEWEST}), -32600)
        self.assertEqual(self.client.result("ping"), {})

    def test_notifications_are_never_answered(self):
        self.client.initialize()
        for method in ("notifications/cancelled", "notifications/initialized", "no/such/thing", "tools/list"):
            self.client.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}}))
        self.client.send(json.dumps({"jsonrpc": "2.0", "id": 99, "result": {}}))  # an answer, to nothing
        self.client.send("")
        self.assertEqual(self.client.result("ping"), {})

    def test_ids_come_back_as_they_are(self):
        for one in ("a", "\u20ac", 0, -1, 2**53):
            self.client.send(json.dumps({"jsonrpc": "2.0", "id": one, "method": "ping"}))
            self.assertEqual(self.client.read()["id"], one)

    def test_wrong_messages_have_their_codes(self):
        self.client.initialize()
        for line, code in (("{", -32700), ("nonsense", -32700), ("[" * 5000, -32700), ("\xff\xfe", -32700),
                           ("1", -32600), ("null", -32600), ('"x"', -32600), ("{}", -32600), ("[]", -32600),
                           ('{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600), ('{"jsonrpc":"2.0","id":1}', -32600),
                           ('{"jsonrpc":"2.0","id":1,"method":7}', -32600), ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
                           ('{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600), ('{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
                           ('{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602),
                           ('{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601)):
            self.client.send(line.encode("latin-1") + b"\n")
            self.assertEqual(self.client.read()["error"]["code"], code, line[:60])
        self.assertEqual(self.client.result("ping"), {})

    def test_lists_of_messages_are_for_the_version_that_has_them(self):
        batch = json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "notifications/x"},
                            {"jsonrpc": "2.0", "id": 2, "method": "nothing"}])
        client = Client()
        client.initialize("2025-03-26")
        client.send(batch)
        answers = client.read()
        self.assertEqual([a["id"] for a in answers], [1, 2])
        self.assertEqual(answers[1]["error"]["code"], -32601)
        client.end()
        self.client.initialize()
        self.client.send(batch)
        self.assertEqual(self.client.read()["error"]["code"], -32600)

    def test_a_message_has_a_largest_size(self):
        self.client.initialize()
        self.client.send(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (LONGEST + 10) + b'"}\n')
        self.assertEqual(self.client.read()["error"]["code"], -32700)
        # Just below it: an unknown method, whose name is not repeated at length.
        self.client.send(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (LONGEST - 100) + b'"}\n')
        answer = self.client.read()
        self.assertEqual(answer["error"]["code"], -32601)
        self.assertLess(len(answer["error"]["message"]), 200)
        self.assertEqual(self.client.result("ping"), {})

    def test_a_last_line_without_its_end_counts(self):
        self.client.send(b'{"jsonrpc":"2.0","id":5,"method":"ping"}')
        self.client.process.stdin.close()
        self.assertEqual(json.loads(self.client.process.stdout.readline())["id"], 5)
        self.assertEqual(self.client.process.wait(60), 0)
        self.client.process.stdout.close(), self.client.process.stderr.close()
        self.ended = True


class Tools(unittest.TestCase):
    def setUp(self):
        self.client = Client()
        self.client.initialize()
        self.tools = {tool["name"]: tool for tool in self.client.result("tools/list")["tools"]}

    def tearDown(self):
        self.assertEqual(self.client.end(), "")

    def check(self, tool, arguments, words):
        """The tool's document is the one of --json, typed and as text."""
        check_schema(self.tools[tool]["inputSchema"], arguments)
        result = self.client.call(tool, arguments)
        self.assertFalse(result["isError"], result)
        check_schema(self.tools[tool]["outputSchema"], result["structuredContent"])
        if words:
            self.assertEqual(result["structuredContent"], printed(*words))
        self.assertEqual(json.loads(result["content"][-1]["text"]), result["structuredContent"])
        self.assertTrue(result["_meta"]["plimsoll/command"].startswith("plimsoll "))
        return result

    def test_the_list(self):
        self.assertEqual(set(self.tools), {"explain", "explain_log", "predict", "plan", "diff", "identify", "gpus"})
        for tool in self.tools.values():
            self.assertTrue(tool["annotations"]["readOnlyHint"])
            self.assertEqual(tool["inputSchema"]["type"], "object")
            self.assertNotIn("script", tool["inputSchema"]["properties"])
            self.assertTrue(tool["description"])
        self.assertEqual(self.client.code("tools/list", {"cursor": "2"}), -32602)

    def test_explain(self):
        result = self.check("explain", {"files": [SNAPSHOT]}, ["explain", "--json", SNAPSHOT])
        self.assertEqual(result["content"][0]["text"], result["structuredContent"]["verdict"])
        self.check("explain", {"files": [SNAPSHOT], "at": 1, "group": "train"},
                   ["explain", "--json", SNAPSHOT, "--at=1", "--group=train"])

    def test_explain_log(self):
        self.check("explain_log", {"file": LOG}, ["explain", "--json", LOG])
        text = (ROOT / LOG).read_text()
        result = self.check("explain_log", {"text": text}, None)
        self.assertEqual(result["structuredContent"]["verdict"], printed("explain", "--json", LOG)["verdict"])
        self.assertNotIn("/proc/self/fd", json.dumps(result))
        for arguments in ({}, {"file": LOG, "text": text}, {"text": ""}, {"text": "all is well\n" * 100}):
            self.assertTrue(self.client.call("explain_log", arguments)["isError"], arguments)

    def test_predict_and_plan(self):
        if STEP is None:
            self.skipTest("no captured step is there")
        self.check("predict", {"files": [STEP], "batch": 4, "gpu": "H200"},
                   ["predict", "--json", STEP, "--batch=4", "--gpu=H200"])
        no = self.check("predict", {"files": [STEP], "batch": 100000, "gpu": "1GiB"},
                        ["predict", "--json", STEP, "--batch=100000", "--gpu=1GiB"])
        self.assertEqual(no["_meta"]["plimsoll/exit_code"], 1)
        self.assertIn("not fit", no["content"][0]["text"])
        self.assertTrue(self.client.call("predict", {"files": [STEP], "gpu": "no such card"})["isError"])
        self.check("plan", {"files": [STEP], "gpu": "H200", "keep_numerics": True, "global_batch": 8},
                   ["plan", "--json", STEP, "--gpu=H200", "--keep-numerics", "--global-batch=8"])

    def test_diff_identify_and_gpus(self):
        graph = "tests/data/dialects/graph_pools.pickle"
        self.check("diff", {"before": SNAPSHOT, "after": graph}, ["diff", "--json", SNAPSHOT, graph])
        kind = self.check("identify", {"file": SNAPSHOT}, None)["structuredContent"]
        self.assertEqual(kind["schema"], "plimsoll.file/1")
        self.assertTrue(kind["uses"])
        self.check("gpus", {"names": ["4090"]}, ["gpus", "--json", "4090"])

    def test_wrong_arguments_are_errors_of_the_protocol(self):
        for params in ({}, {"name": 7}, {"name": "rm"}, {"name": "x" * 100000}, {"name": "explain"},
                       {"name": "explain", "arguments": []}, {"name": "explain", "arguments": {"files": SNAPSHOT}},
                       {"name": "explain", "arguments": {"files": []}}, {"name": "explain", "arguments": {"files": [1]}},
                       {"name": "explain", "arguments": {"files": [SNAPSHOT], "at": -1}},
                       {"name": "explain", "arguments": {"files": [SNAPSHOT], "at": "1"}},
                       {"name": "explain", "arguments": {"files": [SNAPSHOT], "html": "x.html"}},
                       {"name": "explain", "arguments": {"files": ["x"] * 5000}},
                       {"name": "predict", "arguments": {"script": ["python", "x.py"]}},
                       {"name": "predict", "arguments": {"files": ["a"], "max_batch": "yes"}},
                       {"name": "diff", "arguments": {"before": SNAPSHOT}}):
            self.assertEqual(self.client.code("tools/call", params), -32602, str(params)[:80])

    def test_files_that_cannot_be_used_are_results_that_say_so(self):
        with tempfile.TemporaryDirectory() as folder:
            hostile = pathlib.Path(folder, "hostile")
            empty = pathlib.Path(folder, "empty")
            deep = pathlib.Path(folder, "deep.json")
            empty.write_bytes(b"")
            hostile.write_bytes((ROOT / "fuzz/corpus/snapshot_pickle/hostile-global").read_bytes())
            deep.write_text('{"segments":' + "[" * 100000)
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            for path in (fifo, "/dev/zero", "/dev/stdin", "/proc/self/fd/3", "/dev/fd/3", "no/such/file", str(empty), str(hostile), str(deep), folder, "/dev/null", "", "-", "--run", "-q",
                         "a\0b", "x" * 10000):
                result = self.client.call("explain", {"files": [path]})
                self.assertTrue(result["isError"], path[:40])
                self.assertNotIn("structuredContent", result)
                self.assertEqual(len(result["content"][0]["text"].splitlines()), 1, result["content"])
        self.assertFalse(self.client.call("explain", {"files": [SNAPSHOT]})["isError"])

    def test_a_card_is_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "H100"))
            client = Client(cwd=folder)
            client.initialize()
            self.assertFalse(client.call("gpus", {"names": ["H100"]})["isError"])
            for name in ("-q", "", "a\0b"):
                self.assertTrue(client.call("gpus", {"names": [name]})["isError"], name)
            client.end()

    def test_a_client_that_is_gone_ends_the_server_and_no_signal_does(self):
        client = Client()
        client.process.stdout.close()
        client.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        self.assertEqual(client.process.wait(60), 0)
        client.process.stdin.close(), client.process.stderr.close()

    def test_no_argument_becomes_a_flag(self):
        for arguments in ({"files": ["--run", "--", "touch", "/tmp/plimsoll_mcp"]}, {"files": [SNAPSHOT], "gpu": "--run"},
                          {"files": [SNAPSHOT], "gpu": "H200 --html=/tmp/plimsoll_mcp"}):
            self.assertTrue(self.client.call("predict", arguments)["isError"], arguments)
        self.assertFalse(os.path.exists("/tmp/plimsoll_mcp"))


class Older(unittest.TestCase):
    def test_before_results_had_a_structure_they_were_texts(self):
        client = Client()
        client.initialize("2024-11-05")
        result = client.call("explain", {"files": [SNAPSHOT]})
        self.assertNotIn("structuredContent", result)
        self.assertEqual(json.loads(result["content"][-1]["text"])["schema"], "plimsoll.explain/1")
        client.end()

    def test_scripts_are_run_where_that_is_allowed(self):
        client = Client("--allow-run")
        client.initialize()
        tools = {tool["name"]: tool for tool in client.result("tools/list")["tools"]}
        for name, tool in tools.items():
            runs = name in ("predict", "plan")
            self.assertEqual("script" in tool["inputSchema"]["properties"], runs)
            self.assertEqual(tool["annotations"]["readOnlyHint"], not runs)
        result = client.call("predict", {"script": ["no-such-python", "train.py"]})
        self.assertTrue(result["isError"])
        client.end()


if __name__ == "__main__":
    unittest.main()
