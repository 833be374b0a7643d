#!/usr/bin/env python3
"""`plimsoll hook` in an environment of its own, against a stand-in for torch: what is recorded of
processes that nobody started through Plimsoll. hook_test.py PROGRAM [TEST…]

Ray, torchrun and a notebook are tried where a Python has them: this one, or one of those that
PLIMSOLL_CLUSTER_PYTHON names, with colons between them. Else they are skipped, aloud."""

import glob
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "clusters")
FAKE = os.path.join(HERE, "fake_torch")
PROGRAM = ""
# Against hanging alone.
LONG = 1000
TRAIN = """
    import torch
    from torch.optim import optimizer
    torch.cuda.allocate(2 << 30)
    optimizer.step()
"""
RUN_OUT = TRAIN + "    kept = []\n    for _ in range(3): kept.append(torch.cuda.allocate(6 << 30))\n"
PYTHONS = [one for one in os.environ.get("PLIMSOLL_CLUSTER_PYTHON", "").split(":") if one]


def python_with(modules):
    for python in PYTHONS + [sys.executable]:
        if subprocess.run([python, "-c", "import " + modules], capture_output=True).returncode == 0:
            return python
    raise unittest.SkipTest("no Python has %s (PLIMSOLL_CLUSTER_PYTHON)" % modules)


class HookTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        venv = os.path.join(cls.shared.name, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        cls.python = os.path.join(venv, "bin", "python")
        cls.hook("install")
        (cls.site,) = glob.glob(os.path.join(venv, "lib", "python*", "site-packages"))

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    @classmethod
    def hook(cls, action, python=None):
        line = [PROGRAM, "hook", action, "--python", python or cls.python]
        return subprocess.run(line, capture_output=True, universal_newlines=True, timeout=LONG)

    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.folder = os.path.join(self.work.name, "shared", "run-7")

    def environment(self, **more):
        own = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PLIMSOLL", "RANK", "SLURM", "PYTHON", "TORCHELASTIC"))
        }
        own.update(PYTHONPATH=FAKE, NO_COLOR="1", PLIMSOLL_RUN=self.folder)
        own.update(PLIMSOLL_RUNS=os.path.join(self.work.name, "register"))
        return dict(own, **more)

    def script(self, text, name="train.py"):
        path = os.path.join(self.work.name, name)
        pathlib.Path(path).write_text(textwrap.dedent(text))
        return path

    def run_job(self, text, flags=(), **more):
        return subprocess.run(
            [self.python, *flags, self.script(text)],
            env=self.environment(**more),
            capture_output=True,
            universal_newlines=True,
            timeout=LONG,
        )

    def processes(self):
        found = []
        for path in sorted(glob.glob(os.path.join(self.folder, "*.json"))):
            found.append(json.loads(pathlib.Path(path).read_text()))
        return found

    def explain(self, *flags):
        done = subprocess.run(
            [PROGRAM, "explain", self.folder, *flags],
            capture_output=True,
            universal_newlines=True,
            env=dict(os.environ, NO_COLOR="1", COLUMNS="200"),
            timeout=LONG,
        )
        return done

    # Installing.

    def test_install_status_remove(self):
        venv = os.path.join(self.work.name, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        python = os.path.join(venv, "bin", "python")
        self.assertEqual(self.hook("status", python).returncode, 1)
        self.assertIn("installed for", self.hook("install", python).stdout)
        self.assertEqual(self.hook("install", python).returncode, 0, "it may be installed again")
        self.assertEqual(self.hook("status", python).returncode, 0)
        (recorder,) = glob.glob(venv + "/lib/*/site-packages/plimsoll_hook/plimsoll_recorder.py")
        pathlib.Path(recorder).write_text("old")
        self.assertIn("another version", self.hook("status", python).stdout)
        self.assertIn("removed", self.hook("remove", python).stdout)
        self.assertEqual(glob.glob(venv + "/lib/*/site-packages/plimsoll*"), [])
        self.assertIn("was not installed", self.hook("remove", python).stdout)

    def test_a_reader_that_goes_away(self):
        line = "%s hook install --python %s | true" % (PROGRAM, self.python)
        done = subprocess.run(["sh", "-c", line], capture_output=True, universal_newlines=True)
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.hook("status").returncode, 0)

    def test_what_cannot_be_done_is_one_line(self):
        done = self.hook("install", "/nowhere/python")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        for program in ("/bin/true", "/bin/false"):
            for action in ("install", "status", "remove"):
                done = self.hook(action, program)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertIn("'%s' is no Python that runs" % program, done.stderr)
        done = self.hook("instal")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("install", done.stderr)

    def test_nothing_stays_of_an_installation_that_a_full_disk_cut_off(self):
        folder = os.path.join(self.work.name, "site")
        os.mkdir(folder)
        script = """
    import errno, os, sys
    sys.path.insert(0, %r)
    import plimsoll_install
    def replace(*_): raise OSError(errno.ENOSPC, "No space left on device")
    os.replace = replace
    try: plimsoll_install.install(%r)
    except plimsoll_install._Refusal as refusal: print(refusal)
""" % (os.path.join(HERE, "..", "..", "python", "plimsoll", "recording", "hook"), folder)
        done = self.run_job(script, ["-B"])
        self.assertIn("No space left on device", done.stdout)
        self.assertEqual([name for name in os.listdir(folder) if name.endswith(".part")], [])

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_an_environment_that_cannot_be_written(self):
        os.chmod(self.site, 0o500)
        try:
            done = self.hook("install")
        finally:
            os.chmod(self.site, 0o700)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)

    # Off.

    MODULES = "import sys; print(sorted(sys.modules), len(sys.meta_path))"

    def modules(self, *flags, **more):
        line = [self.python, *flags, "-c", self.MODULES]
        env = self.environment(**more)
        env = {name: value for name, value in env.items() if value}
        return subprocess.run(line, env=env, capture_output=True, universal_newlines=True).stdout

    def test_without_the_variable_nothing_is_imported(self):
        off = self.modules(PLIMSOLL_RUN="")
        self.assertNotIn("plimsoll", off)
        line = os.path.join(self.site, "plimsoll_hook.pth")
        os.rename(line, line + ".away")
        try:
            self.assertEqual(self.modules(PLIMSOLL_RUN=""), off)
        finally:
            os.rename(line + ".away", line)
        self.assertIn("plimsoll_hook", self.modules())

    def test_an_isolated_python_is_left_alone(self):
        self.assertNotIn("plimsoll_begin", self.modules("-I"))
        self.assertNotIn("plimsoll_begin", self.modules("-E"))

    # On.

    def test_a_process_that_runs_out(self):
        job = self.run_job("print('own words')\n" + textwrap.dedent(RUN_OUT))
        self.assertEqual((job.returncode, job.stdout), (1, "own words\n"))
        self.assertNotIn("plimsoll", job.stderr)
        (process,) = self.processes()
        self.assertEqual(process["ended"]["type"], "OutOfMemoryError")
        self.assertEqual(process["program"], "train.py")
        stem = "pid%d.%s" % (process["pid"], socket.gethostname().split(".")[0])
        self.assertTrue(os.path.exists(os.path.join(self.folder, stem + ".pickle")))
        self.assertEqual(os.stat(self.folder).st_mode & 0o777, 0o700)
        told = self.explain()
        self.assertIn("could not be allocated", told.stdout)
        self.assertIn("held by kept[*]", told.stdout + told.stderr)

    def test_a_process_without_cuda_leaves_nothing(self):
        self.assertEqual(self.run_job("import torch").returncode, 0)
        self.assertEqual(self.run_job("print(1)").returncode, 0)
        self.assertFalse(os.path.exists(self.folder))

    def test_exit_codes_are_kept(self):
        self.assertEqual(self.run_job(TRAIN + "    import sys; sys.exit(7)\n").returncode, 7)
        self.assertEqual(self.run_job(TRAIN + "    import os; os._exit(9)\n").returncode, 9)
        kill = TRAIN + "    import os, signal; os.kill(os.getpid(), signal.%s)\n    import time; time.sleep(60)\n"
        self.assertEqual(self.run_job(kill % "SIGTERM").returncode, -signal.SIGTERM)
        survived = """
    try: torch.cuda.allocate(20 << 30)
    except torch.OutOfMemoryError: pass
"""
        self.assertEqual(self.run_job(TRAIN + survived + kill[len(TRAIN):] % "SIGKILL").returncode, -signal.SIGKILL)
        ends = [p["ended"] and p["ended"]["how"] for p in self.processes()]
        self.assertEqual(sorted(map(str, ends)), ["None", "exit", "exit", "signal"])
        killed = [p for p in self.processes() if p["ended"] is None]
        self.assertEqual(killed[0]["snapshots"][0]["at"], "out of memory")

    def test_a_folder_that_cannot_be_made_is_one_line(self):
        job = self.run_job(TRAIN + "    print('done')\n", PLIMSOLL_RUN="/proc/nowhere/run")
        self.assertEqual((job.returncode, job.stdout), (0, "done\n"))
        self.assertEqual(job.stderr.count("\n"), 1, job.stderr)
        self.assertIn("plimsoll: nothing is recorded", job.stderr)

    PREPARE = """
    import os, socket, sys
    run, victim = os.environ["PLIMSOLL_RUN"], os.path.join(os.path.dirname(os.environ["PLIMSOLL_RUN"]), "victim")
    os.makedirs(run)
    with open(victim, "w") as file: file.write("precious")
    def put(name):
        {put}
"""

    def test_links_and_fifos_in_the_folder(self):
        """As another user of the group may have put them there."""
        names = """
    put("log.txt")
    stem = "pid%d.%s" % (os.getpid(), socket.gethostname().split(".")[0])
    for name in (stem + ".json", stem + ".pickle"):
        for i in range(30): put("%s.%d-%d.part" % (name, os.getpid(), i))
    put(stem + ".pickle")
    import torch
    torch.cuda.memory._snapshot, snapshot = None, torch.cuda.memory._snapshot
    try: torch.cuda.allocate(20 << 30)  # it fails, which is a line in the log
    except torch.OutOfMemoryError: pass
    torch.cuda.memory._snapshot = snapshot
    sys.exit(6)
"""
        for put in ("os.symlink(victim, os.path.join(run, name))", "os.link(victim, os.path.join(run, name))",
                    "os.mkfifo(os.path.join(run, name))"):
            with self.subTest(put):
                self.folder = os.path.join(self.work.name, put[3:7], "run")
                job = self.run_job(self.PREPARE.replace("{put}", put) + names)
                self.assertEqual((job.returncode, job.stderr), (6, ""))
                victim = pathlib.Path(self.folder).parent / "victim"
                self.assertEqual(victim.read_text(), "precious")
                (process,) = self.processes()
                self.assertEqual((process["ooms"], len(process["snapshots"])), (1, 1))
                self.assertTrue(os.path.isfile(os.path.join(self.folder, process["snapshots"][0]["file"])))

    def refuses(self, *names):
        job = self.run_job(TRAIN + "    print('done')\n    raise SystemExit(6)\n")
        self.assertEqual((job.returncode, job.stdout), (6, "done\n"))
        self.assertEqual(job.stderr.count("\n"), 1, job.stderr)
        self.assertRegex(job.stderr, "^plimsoll: nothing is recorded: ")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))

    def test_a_folder_of_others_is_refused(self):
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o777)
        self.refuses()
        if os.geteuid() != 0:
            self.skipTest("only root can give a folder away")
        os.chmod(self.folder, 0o700)
        os.chown(self.folder, 12345, 12345)
        self.refuses()
        os.chown(self.folder, 0, 0)
        os.rename(self.folder, self.folder + ".real")
        os.symlink(self.folder + ".real", self.folder)
        os.chown(self.folder, 12345, 12345, follow_symlinks=False)
        self.refuses()

    def test_folders_that_are_taken(self):
        os.makedirs(self.folder)
        for mode in (0o775, 0o1777):
            os.chmod(self.folder, mode)
            self.assertEqual(self.run_job(TRAIN).stderr, "")
        os.rename(self.folder, self.folder + ".real")
        os.symlink(self.folder + ".real", self.folder)
        self.assertEqual(self.run_job(TRAIN).stderr, "")
        self.assertEqual(len(glob.glob(self.folder + "/*.pickle")), 3)

    def test_nothing_stays_of_what_a_full_disk_cut_off(self):
        full = """
    import errno, os, torch
    from torch.optim import optimizer
    fdopen = os.fdopen
    class Full:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *_): self.file.close()
        def write(self, data): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    torch.cuda.init()
    os.fdopen = lambda *given: Full(fdopen(*given))
    torch.cuda.allocate(2 << 30)
    raise SystemExit(6)
"""
        job = self.run_job(full)
        self.assertEqual((job.returncode, job.stderr), (6, ""))
        self.assertEqual(glob.glob(self.folder + "/*.part"), [])
        self.assertIn("No space left", pathlib.Path(self.folder, "log.txt").read_text())

    def test_the_run_s_own_hook_comes_first(self):
        """Where a process replaces PYTHONPATH, `plimsoll run` sees it all the same."""
        folder = os.path.join(self.work.name, "run")
        child = self.script(TRAIN, "child.py")
        parent = self.script(
            "import os, subprocess, sys\nos.environ['PYTHONPATH'] = %r\n"
            "sys.exit(subprocess.call([sys.executable, %r]))" % (FAKE, child),
            "parent.py",
        )
        env = self.environment()
        del env["PLIMSOLL_RUN"]
        line = [PROGRAM, "run", "-o", folder, "--", self.python, parent]
        done = subprocess.run(line, env=env, capture_output=True, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(glob.glob(folder + "/*.pickle")), 1, done.stderr)

    # Many processes, many machines.

    def test_ranks_of_two_hosts_in_one_folder(self):
        """Two torchruns in two host-name spaces, or with two names where those are not allowed."""
        ranks = []
        own_names = subprocess.run(["unshare", "-u", "true"], capture_output=True).returncode == 0
        named = self.script(
            "import os, socket\nsocket.gethostname = lambda: os.environ['FAKE_HOST']\n"
            + textwrap.dedent(RUN_OUT)
        )
        plain = self.script(RUN_OUT, "plain.py")
        for rank in range(4):
            host = "node%d" % (rank // 2)
            env = self.environment(
                RANK=str(rank), LOCAL_RANK=str(rank % 2), TORCHELASTIC_RUN_ID="job", FAKE_HOST=host
            )
            line = [self.python, named]
            if own_names:
                line = ["unshare", "-u", "sh", "-c", 'hostname "$0" && exec "$@"', host, self.python, plain]
            ranks.append(subprocess.Popen(line, env=env, stderr=subprocess.PIPE))
        for rank in ranks:
            rank.communicate(timeout=LONG)
            self.assertEqual(rank.returncode, 1)
        found = {(p["rank"], p["host"], p["job"]) for p in self.processes()}
        self.assertEqual(found, {(rank, "node%d" % (rank // 2), "job") for rank in range(4)})
        told = self.explain()
        self.assertIn("All 4 ranks ran out of memory", told.stdout.replace("\n", " "))
        for rank in range(4):
            self.assertRegex(told.stdout, r"rank%d\.pid\d+\.node%d\.pickle" % (rank, rank // 2))

    def test_processes_of_one_number_on_two_hosts(self):
        """Containers count from 1: both are process 1 of rank 0, and neither loses its file."""
        os.makedirs(self.folder)
        pathlib.Path(self.folder, "taken").touch()
        same = "import os, socket\nos.getpid = lambda: 1\nsocket.gethostname = lambda: 'pod'\n"
        for _ in range(2):
            self.assertEqual(self.run_job(same + textwrap.dedent(TRAIN)).returncode, 0)
        self.assertEqual(len(self.processes()), 2)

    def test_watch_is_told(self):
        ready = TRAIN + "    import time; print('ready', flush=True)\n    while True: time.sleep(0.05)\n"
        path = self.script(ready)
        process = subprocess.Popen(
            [self.python, path], env=self.environment(), stdout=subprocess.PIPE, universal_newlines=True
        )
        try:
            process.stdout.readline()
            status = os.path.join(self.folder, "status", "*.status")
            until = time.monotonic() + LONG
            while not glob.glob(status) and time.monotonic() < until:
                time.sleep(0.05)
            entry = os.path.join(self.work.name, "register", str(process.pid))
            self.assertEqual(os.readlink(entry), os.path.join(self.folder, "status"))
        finally:
            process.terminate()
            process.communicate(timeout=LONG)

    # What starts processes by itself.

    def install_for(self, python):
        before = self.hook("status", python).returncode
        self.assertEqual(self.hook("install", python).returncode, 0)
        if before != 0:
            self.addCleanup(self.hook, "remove", python)

    def test_two_workers_of_ray(self):
        python = python_with("ray")
        self.install_for(python)
        driver = self.script(
            """
            import os, ray
            # Not of the driver's environment: of the workers' alone.
            folder = os.environ.pop("PLIMSOLL_RUN")
            ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
            environment = {"env_vars": {"PLIMSOLL_RUN": folder, "PYTHONPATH": %r}}

            @ray.remote(num_cpus=1, runtime_env=environment)
            class Trainer:
                def step(self, more):
                    import torch
                    self.kept = []
                    for _ in range(2 + more): self.kept.append(torch.cuda.allocate(6 << 30))

            workers = [Trainer.remote() for _ in range(2)]
            for more, worker in enumerate(workers):
                try:
                    ray.get(worker.step.remote(more))
                except ray.exceptions.RayError as error:
                    print(error)
            ray.shutdown()
            raise SystemExit(5)
            """
            % FAKE
        )
        done = subprocess.run(
            [python, driver],
            env=self.environment(PYTHONPATH="", RAY_DEDUP_LOGS="0"),
            capture_output=True,
            universal_newlines=True,
            timeout=LONG,
        )
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("OutOfMemoryError", done.stdout)
        found = self.processes()
        self.assertEqual(len(found), 2, done.stderr)
        self.assertEqual(sorted(p["ooms"] for p in found), [0, 1])
        self.assertTrue(all(p["program"].startswith("ray::") for p in found), found)
        told = self.explain()
        self.assertIn("could not be allocated", told.stdout)
        self.assertIn("held by", told.stdout)
        # The other may be killed before it has written what it held.
        if len(glob.glob(os.path.join(self.folder, "*.pickle"))) == 2:
            self.assertIn("1 more process recorded there: pid", told.stderr)

    def test_torchrun_over_two_hosts(self):
        """Two launchers that meet, each with a host name of its own where that is allowed."""
        python = python_with("torch.distributed.run")
        own_names = subprocess.run(["unshare", "-u", "true"], capture_output=True).returncode == 0
        # One rank of each runs out, once all have begun: torchrun ends the others.
        train = self.script(
            """
            import glob, os, time, torch
            kept = [torch.cuda.allocate(2 << 30)]
            while len(glob.glob(os.environ["PLIMSOLL_RUN"] + "/*.json")) < 4: time.sleep(0.05)
            while int(os.environ["RANK"]) % 2 == 0: time.sleep(0.05)
            for _ in range(3): kept.append(torch.cuda.allocate(6 << 30))
            """
        )
        # The launcher is torch's own; what it starts has the stand-in.
        worker = 'PYTHONPATH=%s exec %s %s' % (FAKE, self.python, train)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        launchers = []
        for node in range(2):
            line = [python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
            line += ["--node-rank=%d" % node, "--master-addr=127.0.0.1", "--master-port=%d" % port]
            line += ["--rdzv-id=job-7", "--no-python", "sh", "-c", worker]
            if own_names:
                name = 'hostname "$0" && exec "$@"'
                line = ["unshare", "-u", "sh", "-c", name, "node%d" % node, *line]
            launchers.append(
                subprocess.Popen(
                    line, env=self.environment(PYTHONPATH=""), stderr=subprocess.PIPE
                )
            )
        errors = [launcher.communicate(timeout=LONG)[1] for launcher in launchers]
        self.assertEqual([launcher.returncode for launcher in launchers], [1, 1], errors)
        found = self.processes()
        ends = [p["ended"].get("signal", p["ended"].get("type")) for p in found]
        self.assertEqual(ends, ["SIGTERM", "OutOfMemoryError"] * 2)
        self.assertEqual([p["rank"] for p in found], [0, 1, 2, 3], errors)
        self.assertEqual({p["job"] for p in found}, {"job-7"})
        if own_names:
            self.assertEqual([p["host"] for p in found], ["node0", "node0", "node1", "node1"])
        self.assertIn("2 of 4 ranks ran out of memory", self.explain().stdout)

    def test_the_batch_script_of_slurm(self):
        """Against a stand-in for srun: four tasks with Slurm's variables."""
        here = os.path.join(self.work.name, "bin")
        os.makedirs(here)
        os.symlink(PROGRAM, os.path.join(here, "plimsoll"))
        self.script(RUN_OUT.replace("range(3)", "range(2 + (os.environ['SLURM_PROCID'] == '2'))").replace(
            "import torch", "import os, torch", 1))
        srun = os.path.join(here, "srun")
        pathlib.Path(srun).write_text(
            "#!/bin/sh\nfor i in 0 1 2 3; do SLURM_PROCID=$i SLURM_STEP_ID=0 \"$@\" & pids=\"$pids $!\"; done\n"
            "code=0; for p in $pids; do wait $p || code=$?; done; exit $code\n"
        )
        os.chmod(srun, 0o755)
        env = self.environment(
            PATH=here + ":" + os.path.dirname(self.python) + ":" + os.environ["PATH"],
            SLURM_JOB_ID="7",
            SLURM_SUBMIT_DIR=self.work.name,
        )
        done = subprocess.run(
            ["bash", os.path.join(EXAMPLES, "train.sbatch")],
            env=env,
            cwd=self.work.name,
            capture_output=True,
            universal_newlines=True,
            timeout=LONG,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.folder = os.path.join(self.work.name, "plimsoll-7")
        self.assertEqual([(p["rank"], p["job"]) for p in self.processes()], [(i, "7.0") for i in range(4)])
        told = pathlib.Path(self.folder, "explanation.txt").read_text()
        self.assertIn("1 of 4 ranks ran out of memory: rank 2", told)

    def test_the_manifest_of_kubernetes(self):
        try:
            import yaml
        except ImportError:
            raise unittest.SkipTest("this Python has no yaml: the manifest is not parsed") from None
        service, job = yaml.safe_load_all(pathlib.Path(EXAMPLES, "job.yaml").read_text())
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        variables = {one["name"]: one for one in container["env"]}
        (mount,) = container["volumeMounts"]
        self.assertTrue(variables["PLIMSOLL_RUN"]["value"].startswith(mount["mountPath"] + "/"))
        self.assertEqual([volume["name"] for volume in pod["volumes"]], [mount["name"]])
        self.assertLess(list(variables).index("JOB"), list(variables).index("PLIMSOLL_RUN"))
        self.assertEqual(job["spec"]["completionMode"], "Indexed")
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"]["job-name"], job["metadata"]["name"])

    def test_documents_show_the_examples(self):
        for page, name in (("kubernetes", "job.yaml"), ("kubernetes", "Containerfile"), ("slurm", "train.sbatch")):
            text = pathlib.Path(HERE, "..", "..", "docs", "clusters", page + ".md").read_text()
            self.assertIn("\n" + pathlib.Path(EXAMPLES, name).read_text() + "```", text)

    def test_a_notebook(self):
        python = python_with("nbconvert, ipykernel, nbformat")
        self.install_for(python)
        cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
                 for text in ("import torch", "kept = [torch.cuda.allocate(6 << 30) for _ in range(3)]")]
        kernel = {"name": "python3", "display_name": "Python 3"}
        book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        path = os.path.join(self.work.name, "notebook.ipynb")
        pathlib.Path(path).write_text(json.dumps(book))
        done = subprocess.run(
            [python, "-m", "nbconvert", "--to", "notebook", "--execute", path],
            env=self.environment(),
            capture_output=True,
            universal_newlines=True,
            timeout=LONG,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("OutOfMemoryError", done.stderr)
        (process,) = self.processes()
        self.assertEqual(process["ooms"], 1)
        self.assertIn("could not be allocated", self.explain().stdout)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
