"""Changes and reviews while the host is replaced, and what the audit log says of them.

traffic.py change FILE: changes the port of the MyApp beat four times a second until the file exists, and prints the last one.
traffic.py review FILE: creates valid and invalid MySQLClusters as dry runs, ten a second, until the file exists, and prints the
    counts; fails when the API server gave any of them another answer than the plugin does.
traffic.py judge LOG SINCE: what the host wrote for these changes, as JSON.
"""

import datetime
import http.client
import json
import os
import ssl
import statistics
import sys
import time

import yaml

MYAPPS = "/apis/example.com/v1/namespaces/default/myapps"
CLUSTERS = "/apis/database.example.com/v2/namespaces/default/mysqlclusters"
HOST = "system:serviceaccount:operator-host:operator-host"


def connect():
    with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    context.load_cert_chain(user["client-certificate"], user["client-key"])
    return http.client.HTTPSConnection(cluster["server"].removeprefix("https://"), context=context, timeout=30)


def send(connection, method, path, content_type, body):
    connection.request(method, path, json.dumps(body), {"Content-Type": content_type})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def ticks(end, a_second):
    """Yields the number of each tick, at its time, until the file exists."""
    start, tick = time.monotonic(), 0
    while tick == 0 or not os.path.exists(end):
        time.sleep(max(0, start + tick / a_second - time.monotonic()))
        yield tick
        tick += 1


def change(end):
    connection = connect()
    for tick in ticks(end, 4):
        port = 1001 + tick
        patch = {"spec": {"port": port}}
        status, answer = send(connection, "PATCH", MYAPPS + "/beat", "application/merge-patch+json", patch)
        if status != 200:
            sys.exit(f"change {tick}: {status} {answer}")
    print(port)


def review(end):
    connection = connect()
    durations, wrong = [], []
    for tick in ticks(end, 10):
        valid = tick % 2 == 1
        # The schema admits the second, and the plugin does not.
        size = "1Gi" if valid else "0Gi"
        body = {
            "apiVersion": "database.example.com/v2",
            "kind": "MySQLCluster",
            "metadata": {"name": "reviewed"},
            "spec": {"version": "8.4", "storage": {"size": size}},
        }
        started = time.monotonic()
        status, answer = send(connection, "POST", CLUSTERS + "?dryRun=All", "application/json", body)
        durations.append(time.monotonic() - started)
        denied = status != 201 and "denied the request" in answer.get("message", "")
        if (status != 201) if valid else not denied:
            wrong.append(f"{time.strftime('%T')} {status} {answer.get('message', '')}")
    print(
        f"{len(durations)} reviews, {len(wrong)} without the plugin's answer, median {statistics.median(durations) * 1000:.0f} ms, "
        f"at most {max(durations) * 1000:.0f} ms"
    )
    if wrong:
        sys.exit("\n".join(wrong[:10]))


def at(event, field="requestReceivedTimestamp"):
    return datetime.datetime.fromisoformat(event[field].rstrip("Z")[:26])


def judge(log, since):
    changed, writes = {}, []
    with open(log, encoding="utf-8") as file:
        for event in map(json.loads, file):
            what = event.get("objectRef", {})
            if event["requestReceivedTimestamp"] < since or what.get("name") != "beat" or event["verb"] != "patch":
                continue
            if event["responseStatus"]["code"] not in (200, 201) or what.get("subresource"):
                continue
            spec = event.get("requestObject", {}).get("spec", {})
            if what["resource"] == "myapps" and event["user"]["username"] != HOST:
                changed[spec["port"]] = at(event)
            elif event["user"]["username"] == HOST and what["resource"] == "services":
                writes.append((at(event), writer(event), "services", spec["ports"][0]["port"]))
            elif event["user"]["username"] == HOST and what["resource"] == "deployments":
                port = spec["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
                writes.append((at(event), writer(event), "deployments", port))
    writes.sort()
    order = list(dict.fromkeys(name for _, name, _, _ in writes))
    highest, seen, older, repeated, late, latest = {}, set(), 0, 0, 0, 0
    for _, name, resource, port in writes:
        older += port < highest.get(resource, 0)
        repeated += (resource, port) in seen
        late += order.index(name) < latest
        latest = max(latest, order.index(name))
        highest[resource] = max(port, highest.get(resource, 0))
        seen.add((resource, port))
    delays = [(when - changed[port]).total_seconds() * 1000 for when, _, _, port in writes if port in changed]
    gaps = [(after[0] - before[0]).total_seconds() * 1000 for before, after in zip(writes, writes[1:])]
    print(
        json.dumps(
            {
                "changes": len(changed),
                "writes": len(writes),
                "writers": len(order),
                "writes_after_a_successor": late,
                "older_writes": older,
                "repeated_writes": repeated,
                "median_ms": round(statistics.median(delays)) if delays else None,
                "longest_ms": round(max(delays, default=0)),
                "longest_gap_ms": round(max(gaps, default=0)),
            }
        )
    )


def writer(event):
    """The pod, which a token that is bound to it names."""
    return event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]


if sys.argv[1] == "judge":
    judge(sys.argv[2], sys.argv[3])
else:
    {"change": change, "review": review}[sys.argv[1]](sys.argv[2])
