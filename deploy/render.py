#!/usr/bin/env python3
"""Makes the Helm chart (deploy/helm/fairlead) of the same manifests that kustomize takes, so that neither lacks what the
other has; and two manifests that repeat another file: the configuration with metrics on a port, and the rules as an object.

    render.py            writes them
    render.py --check    says what of them is not as it would be written; exit status 1 then
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE / "base"
CHART = HERE / "helm" / "fairlead"
NOTE = "# Made by deploy/render.py of deploy/base: change that, and run `make deploy-render`.\n"
# What components mount, and the chart's value that stands for each.
COMPONENTS = [("sriov/sriov.yaml", "sriov"), ("vhost-user/pods-volumes.yaml", "vhostUser")]
# What the overlay metrics adds to the configuration.
METRICS = """# Who reads shows a token of an account that may: the ClusterRole fairlead-metrics-reader.
metrics:
  listen: "0.0.0.0:9808"
  tokenReview: true
"""

# What of the manifests a chart's user sets: the file, its text, which must be in it, and what stands there in the chart.
SETTABLE = [
    ("daemonset.yaml", "ghcr.io/fairlead/fairlead:0.1.0", "{{ .Values.image }}"),
    ("daemonset.yaml", "imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.imagePullPolicy }}"),
    ("vswitch.yaml", "ghcr.io/fairlead/fairlead:0.1.0", "{{ .Values.image }}"),
    ("vswitch.yaml", "imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.imagePullPolicy }}"),
    ("vswitch.yaml", "{kubernetes.io/os: linux}", "{{ toJson .Values.nodeSelector }}"),
    ("daemonset.yaml", "{cpu: 50m, memory: 64Mi}", "{{ toJson .Values.resources.requests }}"),
    ("daemonset.yaml", "{memory: 2Gi}", "{{ toJson .Values.resources.limits }}"),
    ("daemonset.yaml", "{kubernetes.io/os: linux}", "{{ toJson .Values.nodeSelector }}"),
    ("own-pods-only.yaml", "serviceaccount:fairlead:fairlead", "serviceaccount:{{ .Release.Namespace }}:fairlead"),
]


def settable(name, text):
    for file, there, instead in SETTABLE:
        if file == name:
            if text.count(there) != 1:
                sys.exit(f"render.py: {name} has {there!r} {text.count(there)} times, not once")
            text = text.replace(there, instead)
    return re.sub(r"\bnamespace: fairlead\b", "namespace: {{ .Release.Namespace }}", text)


def configuration(text):
    """The ConfigMap before its configuration, and the configuration itself."""
    before, inside = text.split("  config.yaml: |\n")
    return before, "".join(line[4:] if line.startswith("    ") else line for line in inside.splitlines(keepends=True))


def with_mounts(daemonset, patch, value):
    """The DaemonSet with what a component's patch mounts, where the chart's user wants that."""
    patch = (HERE / "components" / patch).read_text()
    mounts = re.search(r"          volumeMounts:\n(.*?)      volumes:\n(.*)", patch, re.S)
    lists = re.search(r"(          volumeMounts:\n)(.*?)(      volumes:\n)(.*)", daemonset, re.S)
    if not (mounts and lists):
        sys.exit(f"render.py: the DaemonSet or the component for {value} has no volumeMounts followed by volumes")

    def wanted(lines):
        return f"{{{{- if .Values.{value} }}}}\n" + lines.rstrip("\n") + "\n{{- end }}\n"

    before = daemonset[: lists.start()]
    return (
        before + lists[1] + lists[2] + wanted(mounts[1]) + lists[3] + lists[4].rstrip("\n") + "\n" + wanted(mounts[2])
    )


def with_metrics(daemonset):
    """The DaemonSet with the port that the overlay metrics adds, where the configuration has one."""
    patch = (HERE / "components" / "metrics" / "port.yaml").read_text()
    port = re.search(r"          ports:\n.*", patch, re.S)
    before = "          resources:\n"
    if not port or daemonset.count(before) != 1:
        sys.exit("render.py: the overlay metrics has no ports, or the DaemonSet no resources")
    wanted = "{{- if .Values.config.metrics }}\n" + port[0].rstrip("\n") + "\n{{- end }}\n"
    return daemonset.replace(before, wanted + before)


def indented(text):
    return "".join("    " + line if line.strip() else line for line in text.splitlines(keepends=True))


def repeated():
    """The manifests that repeat what another file says."""
    before, inside = configuration((BASE / "config.yaml").read_text())
    rules = (HERE / "monitoring" / "fairlead.rules.yaml").read_text()
    groups = "".join(line for line in rules.splitlines(keepends=True) if not line.startswith("#"))
    return {
        HERE / "components" / "metrics" / "config.yaml": NOTE + before + "  config.yaml: |\n" + indented(inside + METRICS),
        HERE / "monitoring" / "prometheusrule.yaml": NOTE.replace("deploy/base", "fairlead.rules.yaml")
        + "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: fairlead\n  namespace: fairlead\n"
        + "spec:\n"
        + "".join("  " + line for line in groups.splitlines(keepends=True)),
    }


def chart():
    """Every file of the chart with its content."""
    files = {"crds/nad-crd.yaml": NOTE + (BASE / "nad-crd.yaml").read_text()}
    for name in ("rbac.yaml", "own-pods-only.yaml", "daemonset.yaml"):
        text = settable(name, (BASE / name).read_text())
        if name == "daemonset.yaml":
            for patch, value in COMPONENTS:
                text = with_mounts(text, patch, value)
            text = with_metrics(text)
        files["templates/" + name] = NOTE + text
    vswitch = settable("vswitch.yaml", (HERE / "components" / "vhost-user" / "vswitch.yaml").read_text())
    files["templates/vswitch.yaml"] = (
        NOTE.replace("deploy/base", "components/vhost-user")
        + "{{- if .Values.vhostUser }}\n"
        + vswitch.rstrip("\n")
        + "\n{{- end }}\n"
    )
    review = settable("rbac.yaml", (HERE / "components" / "metrics" / "rbac.yaml").read_text())
    files["templates/token-review.yaml"] = (
        NOTE.replace("deploy/base", "components/metrics")
        + "{{- if (.Values.config.metrics).tokenReview }}\n"
        + review.rstrip("\n")
        + "\n{{- end }}\n"
    )
    before, inside = configuration((BASE / "config.yaml").read_text())
    before = settable("config.yaml", before)
    files["templates/config.yaml"] = NOTE + before + "  config.yaml: |\n{{ toYaml .Values.config | indent 4 }}\n"
    values = "".join("  " + line if line.strip() else line for line in inside.splitlines(keepends=True))
    files["values.yaml"] = (
        NOTE
        + "image: ghcr.io/fairlead/fairlead:0.1.0\nimagePullPolicy: IfNotPresent\n"
        + "nodeSelector: {kubernetes.io/os: linux}\n"
        + "resources:\n  requests: {cpu: 50m, memory: 64Mi}\n  limits: {memory: 2Gi}\n"
        + "# What the overlay sriov of the manifests adds: sysfs writable, kubelet's sockets.\nsriov: false\n"
        + "# What the overlay vhost-user adds: the switch, and the pods' volumes for their sockets.\nvhostUser: false\n"
        + "# The daemon's configuration (docs/configuration.md).\nconfig:\n"
        + values
    )
    files["Chart.yaml"] = (
        NOTE + "apiVersion: v2\nname: fairlead\nversion: 0.1.0\nappVersion: 0.1.0\ntype: application\n"
        "description: A node's network plugin for Kubernetes, with several networks for each pod\n"
    )
    return files


def main():
    wanted = {CHART / name: text for name, text in chart().items()} | repeated()
    there = {path: path.read_text() for path in CHART.rglob("*") if path.is_file()} if CHART.is_dir() else {}
    there |= {path: path.read_text() for path in repeated() if path.is_file()}
    if sys.argv[1:] == ["--check"]:
        wrong = sorted(str(path) for path in wanted.keys() | there.keys() if wanted.get(path) != there.get(path))
        for path in wrong:
            print(f"{path} is not what deploy/base gives: run `make deploy-render`")
        sys.exit(bool(wrong))
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path in there.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
