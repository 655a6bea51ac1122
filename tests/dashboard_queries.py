#!/usr/bin/env python3
"""Asks a Prometheus every query of a Grafana dashboard, and says which of them have no data; exit status 1 then.

    dashboard_queries.py DASHBOARD.json URL

A query that has only NaN has no data. Data may take a while to come: each is asked until it has some, for 60 s in all."""

import json
import math
import sys
import time
import urllib.parse
import urllib.request

PATIENCE = 60
# What Grafana puts in for its variables.
VARIABLES = {"$instance": ".*", "$__rate_interval": "15s"}


def queries(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def has_data(url, query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    if "$" in query:
        raise ValueError(f"a variable that is not known: {query}")
    where = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(where, timeout=10) as answer:
        results = json.load(answer)["data"]["result"]
    return any(not math.isnan(float(result["value"][1])) for result in results)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        dashboard = json.load(file)
    open_queries = list(queries(dashboard))
    total = len(open_queries)
    end = time.monotonic() + PATIENCE
    while True:
        open_queries = [(title, query) for title, query in open_queries if not has_data(sys.argv[2], query)]
        if not open_queries or time.monotonic() > end:
            break
        time.sleep(1)
    for title, query in open_queries:
        print(f"no data: {title}: {query}")
    print(f"{total - len(open_queries)} of {total} queries have data")
    sys.exit(bool(open_queries) or not total)


if __name__ == "__main__":
    main()
