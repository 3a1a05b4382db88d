"""A training script that first says who it is and what it may do, in one line of JSON."""

import json
import os
import runpy
import sys


def tried(what):
    try:
        what()
        return "done"
    except OSError as error:
        return error.strerror


def write(path):
    with open(path, "w") as file:
        file.write("mine\n")


def read(path):
    with open(path) as file:
        file.read()


home = os.environ.get("HOME", "")
if os.environ.get("OPTIMUS_ROLE") == "worker":
    with open("/proc/self/oom_score_adj") as file:
        spared = file.read().strip()
    print("rights " + json.dumps({
        "uid": os.getuid(), "gid": os.getgid(), "groups": sorted(os.getgroups()),
        "home": home, "user": os.environ.get("USER"), "logname": os.environ.get("LOGNAME"),
        "own": tried(lambda: write(os.path.join(os.environ["RIGHTS"], "own", "written"))),
        "team": tried(lambda: read(os.path.join(os.environ["RIGHTS"], "team.txt"))),
        "other": tried(lambda: read(os.path.join(os.environ["RIGHTS"], "other", "secret"))),
        "oom_score_adj": spared,
    }), flush=True)
script = os.environ["RIGHTS_SCRIPT"]
sys.path.insert(0, os.path.dirname(script))
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
