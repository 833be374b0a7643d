#!/usr/bin/env python3
"""`plimsoll watch` against a stand-in for the driver: watch_test.py PROGRAM NVML OLD_NVML [TEST…]"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = NVML = OLD_NVML = ""
GIB = 1 << 30
GPU = "gpu %d %d %%d 97 GPU-6f1c2c5e-8a8f-3b0e-9a51-0c5d3b0a7f11 NVIDIA H200\n" % (140 * GIB, GIB)
TRAIN = """
import torch, time
from torch.optim import optimizer
torch.cuda.allocate(6 << 30)
optimizer.step()
print("ready", flush=True)
time.sleep(100000)
"""


# Against hanging alone: seconds that nothing takes, however busy the machine is.
LONG = 1000


def until(holds, seconds=LONG):
    """What `holds` gives, as soon as that is something."""
    end = time.time() + seconds
    while True:
        found = holds()
        if found or time.time() > end:
            return found
        time.sleep(0.05)


class WatchTest(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.work = work.name
        self.runs = os.path.join(self.work, "runs")
        self.figures = os.path.join(self.work, "nvml")
        self.tell(GPU % (42 * GIB))

    def tell(self, text):
        """What the driver says from now on."""
        with open(self.figures + ".part", "w") as file:
            file.write(text)
        os.replace(self.figures + ".part", self.figures)

    def environment(self, **more):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PLIMSOLL", "RANK", "CUDA_"))}
        own.update(PLIMSOLL_NVML=NVML, PLIMSOLL_RUNS=self.runs, FAKE_NVML=self.figures)
        own.update(PLIMSOLL_SYSFS=os.path.join(self.work, "sys"))
        own.update(PYTHONPATH=os.path.join(HERE, "..", "run", "fake_torch"), NO_COLOR="1", **more)
        return own

    def start(self, line, **more):
        started = subprocess.Popen(
            line,
            env=self.environment(**more),
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            start_new_session=True,
        )
        self.addCleanup(self.end, started)
        return started

    def end(self, started):
        """With whatever it started, which may have outlived it."""
        try:
            os.killpg(started.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        started.communicate()

    def watch(self, *words, **more):
        return subprocess.run(
            [PROGRAM, "watch", *words],
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=LONG,
        )

    def sample(self, **more):
        done = self.watch("--once", "--json", **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)["gpus"]

    # The driver.

    def test_no_driver(self):
        done = self.watch(PLIMSOLL_NVML="libnone.so.1")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no NVIDIA driver here: libnone.so.1 cannot be loaded", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        os.unlink(self.figures)
        self.assertIn("does not answer: Driver Not Loaded", self.watch().stderr)

    def test_an_old_driver(self):
        self.tell(GPU % (42 * GIB) + "process 50000001 %d\n" % GIB)
        (new,), (old,) = self.sample(), self.sample(PLIMSOLL_NVML=OLD_NVML)
        self.assertEqual((new["used"], new["driver"]), (42 * GIB, GIB))
        self.assertEqual((old["used"], old["driver"]), (43 * GIB, None))
        self.assertEqual(old["free"], new["free"])
        self.assertEqual(old["processes"], new["processes"])

    def test_more_processes_than_usual(self):
        rows = ["process %d %d\n" % (50000000 + i, GIB) for i in range(300)]
        self.tell(GPU % (42 * GIB) + "".join(rows))
        self.assertEqual(len(self.sample()[0]["processes"]), 300)

    # AMD's driver, by its files.

    def put(self, path, text):
        path = os.path.join(self.work, "sys", "class", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def amd(self, node, used, total=192 * GIB, name="AMD Instinct MI300X"):
        minor = 128 + node
        self.put("kfd/kfd/topology/nodes/%d/gpu_id" % node, "%d\n" % (30000 + node))
        self.put("kfd/kfd/topology/nodes/%d/properties" % node, "cpu_cores_count 0\ndrm_render_minor %d\n" % minor)
        for file, text in (("mem_info_vram_total", total), ("mem_info_vram_used", used), ("gpu_busy_percent", 41),
                           ("unique_id", "f0e1d2c3b4a59687"), ("product_name", name)):
            self.put("drm/renderD%d/device/%s" % (minor, file), "%s\n" % text)

    def test_amd(self):
        self.put("kfd/kfd/topology/nodes/0/gpu_id", "0\n")
        self.put("kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\ndrm_render_minor 0\n")
        self.amd(1, 50 * GIB)
        self.amd(2, 2 * GIB, name="")
        self.put("kfd/kfd/proc/50000001/vram_30001", "%d\n" % (48 * GIB))
        self.put("kfd/kfd/proc/50000001/vram_30002", "0\n")
        first, second = self.sample(PLIMSOLL_NVML="none")
        self.assertEqual((first["index"], first["name"]), (0, "AMD Instinct MI300X"))
        self.assertEqual((first["used"], first["free"], first["total"]), (50 * GIB, 142 * GIB, 192 * GIB))
        self.assertEqual((first["busy_percent"], first["uuid"]), (41, "f0e1d2c3b4a59687"))
        self.assertEqual([(p["pid"], p["used"]) for p in first["processes"]], [(50000001, 48 * GIB)])
        self.assertEqual((second["name"], second["processes"]), ("AMD GPU", []))

    def test_amd_beside_nvidia(self):
        self.amd(1, 50 * GIB)
        gpus = self.sample()
        self.assertEqual([(gpu["index"], gpu["used"]) for gpu in gpus], [(0, 42 * GIB), (1, 50 * GIB)])

    def test_amd_files_that_are_not_as_expected(self):
        self.amd(1, 50 * GIB)
        self.put("drm/renderD129/device/mem_info_vram_used", "-7\n")
        self.put("drm/renderD129/device/gpu_busy_percent", "9" * 30)
        self.put("kfd/kfd/topology/nodes/2/gpu_id", "x" * 100000)
        self.put("kfd/kfd/topology/nodes/3/gpu_id", "7\n")
        self.put("kfd/kfd/proc/99999999999/vram_30001", "5\n")
        (gpu,) = self.sample(PLIMSOLL_NVML="none")
        self.assertIn("mem_info_vram_used cannot be read", gpu["failure"])
        self.assertEqual((gpu["used"], gpu["busy_percent"], gpu["processes"]), (None, None, []))

    # Other machines.

    def serve(self, used):
        self.tell(GPU % used + "process 50000001 %d\n" % GIB)
        serving = self.start([PROGRAM, "watch", "--prometheus", "0", "--interval", "1000"])
        line = serving.stderr.readline()
        return line.split("http://")[1].strip()

    def test_several_machines(self):
        first, second = self.serve(42 * GIB), self.serve(100 * GIB)
        # The name of the machine alone is enough.
        done = self.watch("--once", "--json", "--from", "http://" + first, "--from", second.split("/")[0], PLIMSOLL_NVML="none")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        sample = json.loads(done.stdout)
        self.assertEqual(sample["gpus"], [])
        self.assertEqual([one["gpus"][0]["used"] for one in sample["machines"]], [42 * GIB, 100 * GIB])
        self.assertEqual([one["name"] for one in sample["machines"]], [first.split("/")[0], second.split("/")[0]])
        (process,) = sample["machines"][1]["gpus"][0]["processes"]
        self.assertEqual((process["pid"], process["used"]), (50000001, GIB))
        text = self.watch("--once", "--from", first, "--from", second).stdout
        self.assertIn("100.00 GiB of 140.00 GiB used", text)

    def test_a_machine_that_does_not_answer(self):
        first = self.serve(42 * GIB)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            name = "127.0.0.1:%d" % silent.getsockname()[1]
            done = self.watch("--once", "--json", "--from", first, "--from", name, "--from", "127.0.0.1:1")
        self.assertEqual(done.returncode, 2)
        found = json.loads(done.stdout)["machines"]
        self.assertEqual([one["failure"] for one in found],
                         ["", "cannot be reached: it does not answer in time", "cannot be reached: Connection refused"])
        self.assertEqual(found[0]["gpus"][0]["used"], 42 * GIB)

    def test_a_machine_that_answers_otherwise(self):
        import threading
        for answer, said in ((b"HTTP/1.1 404 Not Found\r\n\r\n", "the answer is 'HTTP/1.1 404 Not Found'"),
                             (b"SSH-2.0\r\n", "what answers there is no HTTP"),
                             (b"HTTP/1.0 200 OK\r\n\r\nnode_load1 3\n", "no figures of plimsoll watch are in the answer"),
                             (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (5 << 20), "longer than any")):
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                server.listen()

                def respond():
                    client, _ = server.accept()
                    with client:
                        client.recv(4096)
                        try:
                            client.sendall(answer)
                        except OSError:
                            pass

                thread = threading.Thread(target=respond)
                thread.start()
                done = self.watch("--once", "--from", "127.0.0.1:%d" % server.getsockname()[1])
                thread.join()
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, " ".join(done.stdout.split()))

    # Jobs under `plimsoll run`.

    def start_job(self, *flags):
        script = os.path.join(self.work, "train.py")
        with open(script, "w") as file:
            file.write(TRAIN)
        folder = os.path.join(self.work, "job")
        line = [PROGRAM, "run", "-o", folder, *flags, "--", sys.executable, script]
        job = self.start(line, RANK="3")
        self.assertEqual(job.stdout.readline(), "ready\n")
        self.assertTrue(until(lambda: self.status_files(folder)))
        return folder, job

    def status_files(self, folder):
        hook = os.path.join(folder, "hook")
        return [os.path.join(hook, name) for name in os.listdir(hook) if name.endswith(".status")]

    def test_a_job_reports(self):
        folder, job = self.start_job("--budget", "10GiB")
        (process,) = self.sample()[0]["processes"]
        self.assertEqual((process["rank"], process["used"]), (3, None))
        self.assertEqual(process["program"].split()[1], "train.py")
        reported = process["reported"]
        self.assertEqual((reported["allocated"], reported["reserved"]), (6 * GIB, 6 * GIB))
        self.assertEqual((reported["optimizer_steps"], reported["budget"]), (1, 10 * GIB))
        self.assertGreater(reported["host_resident"], 1 << 20)
        self.assertEqual((reported["host_processes"], reported["pinned"]), (1, 0))
        # The driver knows the same process.
        self.tell(GPU % (42 * GIB) + "process %d %d\n" % (process["pid"], 7 * GIB))
        (process,) = self.sample()[0]["processes"]
        self.assertEqual((process["used"], process["reported"]["reserved"]), (7 * GIB, 6 * GIB))
        text = self.watch("--once").stdout
        self.assertIn("budget 10.00 GiB", text)
        self.assertRegex(text, r"host: \d+\.\d\d MiB resident")
        self.assertRegex(text, r"%d +3 +7.00 GiB +6.00 GiB +6.00 GiB" % process["pid"])
        self.assertEqual(os.stat(self.runs).st_mode & 0o777, 0o700)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=LONG)
        self.assertEqual(os.listdir(self.runs), [])
        self.assertNotIn("hook", os.listdir(folder))

    def test_what_others_put_there_is_not_read(self):
        folder, _ = self.start_job()
        (status,) = self.status_files(folder)
        with open(status) as file:
            text = file.read()
        # The rank goes on writing its own; these stand beside it.
        os.mkfifo(status.replace(".status", ".pipe.status"))
        os.symlink(status, status.replace(".status", ".link.status"))
        for name, content in (("a", "{"), ("b", text + "x"), ("c", "9" * 100000), ("d", "[" * 60000)):
            with open(status.replace(".status", name + ".status"), "w") as file:
                file.write(content)
        os.symlink("/etc", os.path.join(self.runs, "1"))
        os.symlink(folder, os.path.join(self.runs, "../runs/nonsense"))
        self.assertEqual(len(self.sample()[0]["processes"]), 1)
        for open_to_all in (self.runs, folder):
            os.chmod(open_to_all, 0o777)
            self.assertEqual(self.sample()[0]["processes"], [])
            os.chmod(open_to_all, 0o700)
        self.assertEqual(len(self.sample()[0]["processes"]), 1)

    def test_a_run_that_was_killed_is_forgotten(self):
        _, job = self.start_job()
        (process,) = self.sample()[0]["processes"]
        job.kill()
        job.wait()
        os.kill(process["pid"], signal.SIGKILL)
        self.assertEqual(self.sample()[0]["processes"], [])
        self.assertEqual(os.listdir(self.runs), [])

    # One sample after another.

    def test_json_lines(self):
        watching = self.start([PROGRAM, "watch", "--json", "--interval", "0.1"])
        self.assertEqual(json.loads(watching.stdout.readline())["gpus"][0]["used"], 42 * GIB)
        self.tell(GPU % (43 * GIB))
        used = lambda: json.loads(watching.stdout.readline())["gpus"][0]["used"] == 43 * GIB
        self.assertTrue(until(used))
        watching.send_signal(signal.SIGINT)
        self.assertEqual(watching.wait(LONG), 0)

    def test_blocks_where_there_is_no_terminal(self):
        watching = self.start([PROGRAM, "watch", "--interval", "0.1"])
        lines = [watching.stdout.readline() for _ in range(10)]
        self.assertGreater(sum("42.00 GiB of 140.00 GiB used" in line for line in lines), 1)
        self.assertNotIn("\x1b", "".join(lines))
        watching.send_signal(signal.SIGTERM)
        self.assertEqual(watching.wait(LONG), -signal.SIGTERM)

    # The screen.

    def tmux(self, *words):
        line = ["tmux", "-L", "watch", "-f", "/dev/null", *words]
        done = subprocess.run(
            line,
            env=self.environment(TMUX_TMPDIR=self.work, TERM="screen", LC_ALL="C.UTF-8"),
            stdout=subprocess.PIPE,
            universal_newlines=True,
            check=True,
        )
        return done.stdout

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", "0")

    def test_the_screen(self):
        if not shutil.which("tmux"):
            self.skipTest("tmux is not installed: the screen is not read")
        self.tmux("new-session", "-d", "-x", "100", "-y", "30", "sh")
        self.addCleanup(self.tmux, "kill-server")
        self.tmux("send-keys", "-t", "0", "clear; %s watch --interval 0.1" % PROGRAM, "Enter")
        self.assertTrue(until(lambda: "42.00 GiB of 140.00 GiB used" in self.screen()), self.screen())
        self.assertEqual(self.tmux("display", "-p", "#{cursor_flag}"), "0\n")
        self.tell(GPU % (43 * GIB) + "process 50000001 %d\n" % GIB)
        self.assertTrue(until(lambda: "50000001" in self.screen()))
        # In place: the new figures are there, the old ones are gone.
        self.assertEqual(self.screen().count("GPU 0  NVIDIA H200"), 1, self.screen())
        self.assertNotIn("42.00 GiB", self.screen())
        self.tmux("resize-window", "-t", "0", "-x", "50", "-y", "12")
        self.tell(GPU % (44 * GIB))
        self.assertTrue(until(lambda: "44.00 GiB" in self.screen()))
        time.sleep(0.3)
        self.assertEqual(self.screen().count("GPU 0  NVIDIA H200"), 1, self.screen())
        # More than fits.
        self.tell((GPU % (45 * GIB)) * 9)
        self.assertTrue(until(lambda: "more lines" in self.screen()))
        time.sleep(0.3)
        self.assertEqual(self.screen().count("GPU 0  NVIDIA H200"), 1, self.screen())
        # Stopped and continued.
        self.tmux("send-keys", "-t", "0", "C-z")
        cursor = lambda: self.tmux("display", "-p", "#{cursor_flag}")
        self.assertTrue(until(lambda: cursor() == "1\n"))
        self.tell(GPU % (46 * GIB))
        self.tmux("send-keys", "-t", "0", "fg", "Enter")
        self.assertTrue(until(lambda: "46.00 GiB" in self.screen() and cursor() == "0\n"), self.screen())
        self.tmux("send-keys", "-t", "0", "C-c")
        self.assertTrue(until(lambda: cursor() == "1\n"))
        self.tmux("send-keys", "-t", "0", "echo code $?", "Enter")
        self.assertTrue(until(lambda: "code 0" in self.screen()), self.screen())

    # The endpoint.

    def start_endpoint(self):
        watching = self.start([PROGRAM, "watch", "--prometheus", "0", "--interval", "0.1"])
        address = watching.stderr.readline()
        self.assertRegex(address, r"^plimsoll: metrics at http://127.0.0.1:\d+/metrics\n$")
        return watching, int(address.split(":")[3].split("/")[0])

    def ask(self, port, request):
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            try:
                connection.sendall(request)
                answer = b""
                while True:
                    part = connection.recv(65536)
                    if not part:
                        return answer.decode()
                    answer += part
            except ConnectionError:
                return ""

    def test_endpoint(self):
        self.tell(GPU % (42 * GIB) + "process 50000001 %d\n" % GIB)
        watching, port = self.start_endpoint()
        get = "exec 3<>/dev/tcp/127.0.0.1/%d; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3" % port
        answer = subprocess.run(["bash", "-c", get], stdout=subprocess.PIPE, universal_newlines=True).stdout
        self.assertTrue(answer.startswith("HTTP/1.1 200 OK"), answer)
        uuid = "GPU-6f1c2c5e-8a8f-3b0e-9a51-0c5d3b0a7f11"
        labels = 'gpu="0",uuid="%s"' % uuid
        self.assertIn('memory_used_bytes{%s,name="NVIDIA H200"} %d\n' % (labels, 42 * GIB), answer)
        self.assertIn('{%s,pid="50000001",rank="",program=""} %d\n' % (labels, GIB), answer)
        for line in answer.replace("\r", "").split("\n\n", 1)[1].splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) \w+ .+|\w+\{(\w+=\"[^\"]*\",?)+\} [0-9.e+-]+)$")
        self.assertTrue(self.ask(port, b"GET / HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404"))
        self.tell(GPU % (43 * GIB))
        ask = lambda: " %d\n" % (43 * GIB) in self.ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        self.assertTrue(until(ask))
        watching.send_signal(signal.SIGINT)
        self.assertEqual((watching.wait(LONG), watching.stdout.read()), (0, ""))

    def test_endpoint_is_patient_but_not_forever(self):
        _, port = self.start_endpoint()
        silent = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(silent.close)
        # One that is gone before its answer comes.
        for _ in range(20):
            gone = socket.create_connection(("127.0.0.1", port))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            gone.close()
        # Endless requests are cut off, and whoever says nothing is left after two seconds.
        self.assertEqual(self.ask(port, b"GET /" + b"a" * 200000), "")
        self.assertIn("200 OK", self.ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"))

    def test_endpoint_is_of_this_machine_alone(self):
        _, port = self.start_endpoint()
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file if ":%04X " % port in line]
        self.assertEqual({row[1].split(":")[0] for row in rows if row[3] == "0A"}, {"0100007F"})
        done = self.watch("--prometheus", str(port))
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot be listened on: Address already in use", done.stderr)


if __name__ == "__main__":
    # A shell's background ignores it, and so would what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    PROGRAM, NVML, OLD_NVML = map(os.path.abspath, (sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main()
