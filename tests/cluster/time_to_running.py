#!/usr/bin/env python3
"""Times pods from their POST until the API says that they run: one at a time, and 30 at once.

    time_to_running.py LABEL ANNOTATIONS [METRICS-COMMAND]

The environment has API (host:port), CA (a file) and TOKEN. METRICS-COMMAND prints Fairlead's metrics: the network's share is the time
of its ADDs, from the request's arrival to its answer, over the time until the pods run. What is printed is one JSON object."""

import http.client
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import threading
import time

PODS = "/api/v1/namespaces/default/pods"
ONE_AT_A_TIME, AT_ONCE, LIMIT = 20, 30, 180


def connection():
    host, port = os.environ["API"].rsplit(":", 1)
    context = ssl.create_default_context(cafile=os.environ["CA"])
    return http.client.HTTPSConnection(host, int(port), context=context, timeout=LIMIT)


def call(to, method, path, body=None):
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}", "Content-Type": "application/json"}
    to.request(method, path, json.dumps(body) if body else None, headers)
    answer = to.getresponse()
    if answer.status >= 300:
        raise SystemExit(f"{method} {path}: {answer.status} {answer.read().decode()}")
    return answer


def pod(name, annotations):
    main = {"name": "main", "image": "localhost/work:1", "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
        },
    }


class Watch(threading.Thread):
    """Notes when each pod runs, and when it is gone."""

    def __init__(self):
        super().__init__(daemon=True)
        self.changed = threading.Condition()
        self.running, self.gone = {}, set()
        at = json.load(call(connection(), "GET", PODS))["metadata"]["resourceVersion"]
        self.answer = call(connection(), "GET", f"{PODS}?watch=1&timeoutSeconds=3600&resourceVersion={at}")

    def run(self):
        for line in self.answer:
            event, now = json.loads(line), time.monotonic()
            if event["object"]["kind"] != "Pod":
                raise SystemExit(f"the watch ends: {line.decode()}")
            name = event["object"]["metadata"]["name"]
            with self.changed:
                if event["type"] == "DELETED":
                    self.gone.add(name)
                elif event["object"].get("status", {}).get("phase") == "Running":
                    self.running.setdefault(name, now)
                self.changed.notify_all()

    def wait(self, condition, what):
        with self.changed:
            if not self.changed.wait_for(condition, LIMIT):
                raise SystemExit(f"{what}: not so within {LIMIT} s")


def adds(command):
    """How many ADDs were answered, and their time in all."""
    if not command:
        return 0, 0.0
    text = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    # containerd has one of "lo" made for every pod, too.
    of_pods = [line for line in text.splitlines() if 'command="ADD"' in line and 'type="loopback"' not in line]

    def total(suffix):
        values = (re.match(rf"fairlead_call_duration_seconds_{suffix}{{.*}} (\S+)", line) for line in of_pods)
        return sum(float(found.group(1)) for found in values if found)

    return int(total("count")), total("sum")


def main():
    label, annotations = sys.argv[1], json.loads(sys.argv[2])
    command = sys.argv[3] if len(sys.argv) > 3 else ""
    api, watch = connection(), Watch()
    watch.start()

    def made(names):
        begun = {}
        for name in names:
            begun[name] = time.monotonic()
            call(api, "POST", PODS, pod(name, annotations)).read()
        watch.wait(lambda: all(name in watch.running for name in names), f"{label}: pods run")
        return [watch.running[name] - begun[name] for name in names], begun

    def deleted(names):
        for name in names:
            call(api, "DELETE", f"{PODS}/{name}").read()
        watch.wait(lambda: all(name in watch.gone for name in names), f"{label}: pods are gone")

    made(["warm"])
    deleted(["warm"])
    before = adds(command)
    times = []
    for n in range(ONE_AT_A_TIME):
        # Kubelet looks at its containers once a second, and a pod is gone, as it runs, when it has looked: without a pause all begin at the
        # same moment of that second, and a few milliseconds more or less cost one look more or none.
        time.sleep(n / ONE_AT_A_TIME)
        took, _ = made([f"one-{n}"])
        times += took
        deleted([f"one-{n}"])
    after = adds(command)
    names = [f"all-{n}" for n in range(AT_ONCE)]
    at_once, begun = made(names)
    deleted(names)
    result = {
        "label": label,
        "one_p50_ms": round(statistics.median(times) * 1000, 1),
        "one_min_ms": round(min(times) * 1000, 1),
        "one_max_ms": round(max(times) * 1000, 1),
        "all_30_running_s": round(max(watch.running[name] for name in names) - min(begun.values()), 2),
        "at_once_p50_s": round(statistics.median(at_once), 2),
    }
    if after[0] > before[0]:
        add = (after[1] - before[1]) / (after[0] - before[0])
        result["add_mean_ms"] = round(add * 1000, 2)
        result["share_percent"] = round(100 * add / statistics.mean(times), 2)
    print(json.dumps(result))


main()
