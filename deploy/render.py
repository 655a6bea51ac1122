#!/usr/bin/env python3
"""Makes the Helm chart (deploy/helm/fairlead) of the same manifests that kustomize takes, so that neither lacks what the
other has; and a manifest that repeats another file: the rules as an object.

    render.py            writes them
    render.py --check    says what of them is not as it would be written; exit status 1 then
"""

import json
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE / "base"
CHART = HERE / "helm" / "fairlead"
NOTE = "# Made by deploy/render.py of deploy/base: change that, and run `make deploy-render`.\n"
# What components mount, and the chart's values that stand for each.
COMPONENTS = [
    ("sriov/sriov.yaml", "or .Values.sriov .Values.vfio"),
    ("vfio/vfio.yaml", ".Values.vfio"),
    ("pods-volumes/pods-volumes.yaml", "or .Values.vhostUser .Values.ovsDpdk"),
    ("ovs-dpdk/ovs.yaml", ".Values.ovsDpdk"),
    ("device-plugins/device-plugins.yaml", "or .Values.sriov .Values.vfio .Values.vhostUser .Values.ovsDpdk"),
]
# Which nodes have a pod of the DaemonSets: both say it in the same words.
AFFINITY = re.search(r"      affinity:\n(?: {8}.*\n)+", (BASE / "daemonset.yaml").read_text())[0]
STRATEGY = "  updateStrategy:\n    type: RollingUpdate\n    rollingUpdate: {maxUnavailable: 1}\n"
# Behind the options that the command itself has.
SWITCH_OPTIONS = "{{- with .Values.vswitch.args }}\n          args: {{ toJson . }}\n{{- end }}\n"
PULL_SECRETS = "{{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{ toJson . }}\n{{- end }}\n"

# What helm prints after it has installed.
LEAVING = """Each node's pods get their networks from Fairlead once its daemon there is ready.

Before you uninstall, give the nodes their old network back, since pods could not start otherwise, and their VFs:
  helm upgrade {{ .Release.Name }} CHART -n {{ .Release.Namespace }} --reset-then-reuse-values --set config.install.cni=absent
{{- if .Values.config.pools }} --set-json 'config.pools=[]'{{ end }}
{{- if .Values.config.devicePluginConfig }} --set config.devicePluginConfig=null{{ end }}
  fairleadd status               # on each node: wait until it says "node network: not Fairlead",
  fairleadd attachments          # until this lists none,
  fairleadd pools                # and until this lists no VF; then
  helm uninstall {{ .Release.Name }} -n {{ .Release.Namespace }}
"""

# What a chart's user sets of both DaemonSets: their text, and what stands there in the chart.
SETTABLE_OF_BOTH = [
    ("ghcr.io/fairlead/fairlead:0.1.0", "{{ .Values.image }}"),
    ("imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.imagePullPolicy }}"),
    ("priorityClassName: system-node-critical", "priorityClassName: {{ toJson .Values.priorityClassName }}"),
    ("{kubernetes.io/os: linux}", "{{ toJson .Values.nodeSelector }}"),
    (AFFINITY, "      affinity: {{ toJson .Values.affinity }}\n"),
    ("tolerations: [{operator: Exists}]", "tolerations: {{ toJson .Values.tolerations }}"),
]
# What of the manifests a chart's user sets: the file, its text, which must be in it, and what stands there in the chart.
SETTABLE = [(file, *texts) for file in ("daemonset.yaml", "vswitch.yaml") for texts in SETTABLE_OF_BOTH] + [
    ("critical-pods.yaml", "[system-node-critical]", "[{{ toJson .Values.priorityClassName }}]"),
    ("daemonset.yaml", "      serviceAccountName:", PULL_SECRETS + "      serviceAccountName:"),
    ("daemonset.yaml", "privileged: false", "privileged: {{ .Values.vfio }}"),
    ("vswitch.yaml", "      serviceAccountName:", PULL_SECRETS + "      serviceAccountName:"),
    ("vswitch.yaml", STRATEGY, "  updateStrategy: {{ toJson .Values.vswitch.updateStrategy }}\n"),
    ("vswitch.yaml", "          resources:\n", SWITCH_OPTIONS + "          resources:\n"),
    ("vswitch.yaml", "{cpu: 100m, memory: 64Mi}", "{{ toJson .Values.vswitch.resources.requests }}"),
    ("vswitch.yaml", "{memory: 512Mi}", "{{ toJson .Values.vswitch.resources.limits }}"),
    ("daemonset.yaml", "{cpu: 50m, memory: 64Mi}", "{{ toJson .Values.resources.requests }}"),
    ("daemonset.yaml", "{memory: 2Gi}", "{{ toJson .Values.resources.limits }}"),
    ("daemonset.yaml", STRATEGY, "  updateStrategy: {{ toJson .Values.updateStrategy }}\n"),
    ("own-pods-only.yaml", "serviceaccount:fairlead:fairlead", "serviceaccount:{{ .Release.Namespace }}:fairlead"),
]
# Directories of the host that are elsewhere on some distributions: in the DaemonSet wherever they stand.
DIRECTORIES = [
    ("/etc/cni/net.d", "{{ .Values.directories.networks }}"),
    ("/opt/cni/bin", "{{ .Values.directories.plugins }}"),
    ("/var/lib/kubelet", '{{ (.Values.config.kubelet).dir | default "/var/lib/kubelet" }}'),
]


# What the chart's user may add, as values.yaml has it.
OF_USERS = """
# The switch of vhostUser. args: options of docs/vswitch.md, each in one word: [--cpus=4-5, --polling=always]. Its memory limit is at least 128 MiB
# more than --guest-memory, which is 256 MiB. An upgrade interrupts frames for seconds: with updateStrategy: {type: OnDelete}
# it waits until you delete the pod.
vswitch:
  args: []
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {memory: 512Mi}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}
# More volumes of the daemon's pod, and where its container has them: files that the configuration names (metrics.tls, vhostUser.ovs, kubeconfig)
# where it names them, and directories of the host that networks name (dataDir) below /host. examples/chart/values.yaml has one of each.
extraVolumes: []
extraVolumeMounts: []
# More capabilities of its container, for plugins that it executes: [SYS_MODULE, CHOWN].
extraCapabilities: []
""".lstrip()


# The keys of the daemon's configuration: daemon/tests/deployment.rs holds them against its reader.
CONFIGURATION = """
callThreads dad del delegateCgroup delegateTimeout devicePluginConfig devicePluginResourcePrefix functionWait install kubeconfig kubelet logFormat logLevel
maxCalls metrics nodeName podWait policy pools reapAfter slowThreads vhostUser
""".split()
PATH = {"type": "string", "pattern": "^/"}
TEXT = {"type": "string", "minLength": 1}
DOMAIN = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
FLAG = {"type": "boolean"}
# What a volume can be; what is in it, the API server judges.
VOLUMES = "configMap csi downwardAPI emptyDir ephemeral hostPath image nfs persistentVolumeClaim projected secret".split()
# Options of the switch that are not the manifest's own.
SWITCH_OPTION = (
    "^--(cpus=[0-9,-]+|polling=(adaptive|always)|(port|guest)-memory=[0-9]+|storm-frames=[1-9][0-9]*"
    "|log-level=(error|warn|info|debug|trace))$"
)


def strict(properties, **more):
    return {"type": "object", "additionalProperties": False, "properties": properties} | more


RESOURCES = strict({"requests": {"type": "object"}, "limits": {"type": "object"}})
ROLLING = strict({"maxUnavailable": {"type": ["integer", "string"]}})
STRATEGIES = strict({"type": {"enum": ["RollingUpdate", "OnDelete"]}, "rollingUpdate": ROLLING})


def or_none(schema):
    """The same for what may be missing: null takes away what stands in values.yaml."""
    return schema | {"type": [schema["type"], "null"]}


def configured():
    """What stands under the keys of the configuration by which a node has its network and its metrics, and under those that an empty text would
    seem to take out. The rest the daemon judges."""
    install = {
        "cni": {"enum": ["present", "absent"]},
        "clusterNetwork": or_none(TEXT),
        "multusDaemonConfig": or_none(PATH),
    }
    certificate = {"certFile": PATH, "keyFile": PATH}
    metrics = {
        "listen": {"type": "string", "pattern": "^(\\[[0-9a-fA-F:.]+\\]|[0-9.]+):[0-9]+$"},
        "tls": or_none(strict(certificate, required=list(certificate))),
        "tokenReview": FLAG,
    }
    told = "the address and port to listen at (listen), and who may read (tokenReview, tls): one of both but for a loopback address"
    # What other machines reach, the daemon refuses without one of both.
    protected = [
        {"properties": {"listen": {"pattern": "^(127\\.|\\[[0:]*:0*1\\]:)"}}},
        {"properties": {"tls": {"type": "object"}}, "required": ["tls"]},
        {"properties": {"tokenReview": {"const": True}}, "required": ["tokenReview"]},
    ]
    return {
        "delegateCgroup": or_none(TEXT),
        "devicePluginConfig": or_none(PATH),
        "devicePluginResourcePrefix": {"type": "string", "pattern": DOMAIN},
        "install": or_none(strict(install, required=["cni"])),
        "kubeconfig": or_none(PATH),
        "kubelet": strict({"dir": PATH}),
        "logFormat": {"enum": ["text", "json"]},
        "logLevel": {"enum": ["error", "warn", "info", "debug", "trace"]},
        "nodeName": or_none(TEXT),
        "metrics": or_none(strict(metrics, description=told, required=["listen"], anyOf=protected)),
    }


def extras():
    """What the chart's user may add to the daemon's pod."""
    propagation = {"enum": ["None", "HostToContainer", "Bidirectional"]}
    mount = {"name": TEXT, "mountPath": PATH, "mountPropagation": propagation, "readOnly": FLAG, "recursiveReadOnly": TEXT}
    mount |= {"subPath": TEXT, "subPathExpr": TEXT}
    volume = strict(
        {"name": TEXT} | {kind: {"type": "object"} for kind in VOLUMES},
        required=["name"], minProperties=2, maxProperties=2,
    )
    # Kubernetes has them without what the kernel puts in front.
    capability = {"type": "string", "pattern": "^[A-Z][A-Z_]+$", "not": {"pattern": "^CAP_"}}
    return {
        "extraVolumes": {"type": "array", "items": volume},
        "extraVolumeMounts": {"type": "array", "items": strict(mount, required=["name", "mountPath"])},
        "extraCapabilities": {"type": "array", "items": capability, "uniqueItems": True},
    }


def switch():
    """What the chart's user may say of the switch."""
    return strict(
        {
            "args": {"type": "array", "items": {"type": "string", "pattern": SWITCH_OPTION}},
            "resources": RESOURCES,
            "updateStrategy": STRATEGIES,
        }
    )


def schema():
    """What the chart's values may be: a mistyped one is refused instead of having no effect."""
    values = {
        "image": {"type": "string", "minLength": 1},
        "imagePullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "imagePullSecrets": {"type": "array", "items": strict({"name": {"type": "string"}}, required=["name"])},
        "priorityClassName": {"type": "string", "pattern": DOMAIN},
        "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
        "affinity": strict({kind: {"type": "object"} for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")}),
        "tolerations": {"type": "array", "items": strict(dict.fromkeys(("key", "operator", "value", "effect"), {"type": "string"}))},
        "updateStrategy": STRATEGIES,
        "resources": RESOURCES,
        "directories": strict({"networks": PATH, "plugins": PATH}),
        "openshift": {"type": "boolean"},
        "sriov": {"type": "boolean"},
        "vfio": {"type": "boolean"},
        "vhostUser": {"type": "boolean"},
        "ovsDpdk": {"type": "boolean"},
        "vswitch": switch(),
        "multusDaemonConfig": {"type": "string"},
        "config": strict({key: {} for key in CONFIGURATION} | configured()),
        # A parent chart's, which Helm hands to every chart below.
        "global": {"type": "object"},
    } | extras()
    # With `--reuse-values` a release of an older chart has none of these: the daemon would leave every node with a taint.
    required = ["priorityClassName", "tolerations"]
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | strict(values, required=required) | settings_of_multus()


def settings_of_multus():
    """Multus' settings have an effect only where the daemon's configuration names their file."""

    def has(key, schema):
        return {"properties": {key: schema}, "required": [key]}

    named = has("config", has("install", {"type": "object"} | has("multusDaemonConfig", PATH)))
    return {"if": has("multusDaemonConfig", {"minLength": 1}), "then": named}


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
        return f"{{{{- if {value} }}}}\n" + lines.rstrip("\n") + "\n{{- end }}\n"

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
    listened = port[0].replace("9808", '{{ regexFind "[0-9]+$" .Values.config.metrics.listen }}')
    wanted = "{{- if .Values.config.metrics }}\n" + listened.rstrip("\n") + "\n{{- end }}\n"
    return daemonset.replace(before, wanted + before)


def with_uplinks(daemonset):
    """The DaemonSet with the capabilities that the overlay vhost-user appends, where the chart's user wants that."""
    patch = (HERE / "components" / "vhost-user" / "uplinks.yaml").read_text()
    appended = re.findall(r"  (# .*)\n  value: (\w+)\n", patch)
    before = "          volumeMounts:\n"
    if not appended or not re.search(r"              add:\n( {16}.*\n)+" + before, daemonset):
        sys.exit("render.py: the overlay vhost-user appends no capability, or those of the DaemonSet are not last")
    lines = "".join(f"{' ' * 16}{why}\n{' ' * 16}- {capability}\n" for why, capability in appended)
    return daemonset.replace(before, "{{- if .Values.vhostUser }}\n" + lines + "{{- end }}\n" + before)


def with_extras(daemonset):
    """The DaemonSet with the capabilities, mounts and volumes that the chart's user adds, each behind those of the manifests."""

    def added(value, indent):
        return f"{{{{- with .Values.{value} }}}}\n{{{{ toYaml . | indent {indent} }}}}\n{{{{- end }}}}\n"

    for value, indent, before in [
        ("extraCapabilities", 16, "          volumeMounts:\n"),
        ("extraVolumeMounts", 12, "      volumes:\n"),
    ]:
        if daemonset.count(before) != 1:
            sys.exit(f"render.py: the DaemonSet has {before!r} {daemonset.count(before)} times, not once")
        daemonset = daemonset.replace(before, added(value, indent) + before)
    return daemonset.rstrip("\n") + "\n" + added("extraVolumes", 8)


def with_directories(daemonset):
    """The DaemonSet with the directories that the chart's user names."""
    for there, instead in DIRECTORIES:
        if there not in daemonset:
            sys.exit(f"render.py: the DaemonSet mounts no {there}")
        daemonset = daemonset.replace(there, instead)
    return daemonset


def with_component(component, names, value):
    """A component's own objects, where the chart's user wants that."""
    texts = (settable(name, (HERE / "components" / component / name).read_text()) for name in names)
    return NOTE.replace("base", f"components/{component}") + f"{{{{- if {value} }}}}\n" + "---\n".join(texts) + "{{- end }}\n"


def repeated():
    """The manifest that repeats what another file says."""
    rules = (HERE / "monitoring" / "fairlead.rules.yaml").read_text()
    groups = "".join(line for line in rules.splitlines(keepends=True) if not line.startswith("#"))
    return {
        HERE / "monitoring" / "prometheusrule.yaml": NOTE.replace("deploy/base", "fairlead.rules.yaml")
        + "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: fairlead\n  namespace: fairlead\n"
        + "spec:\n"
        + "".join("  " + line for line in groups.splitlines(keepends=True)),
    }


def chart():
    """Every file of the chart with its content."""
    files = {"crds/nad-crd.yaml": NOTE.replace("deploy/base", "deploy/crds") + (HERE / "crds" / "nad-crd.yaml").read_text()}
    for name in ("rbac.yaml", "own-pods-only.yaml", "critical-pods.yaml", "daemonset.yaml"):
        text = settable(name, (BASE / name).read_text())
        if name == "daemonset.yaml":
            for patch, value in COMPONENTS:
                text = with_mounts(text, patch, value)
            text = with_extras(with_directories(with_uplinks(with_metrics(text))))
        files["templates/" + name] = NOTE + text
    files["templates/vswitch.yaml"] = with_component("vhost-user", ["account.yaml", "vswitch.yaml"], ".Values.vhostUser")
    files["templates/token-review.yaml"] = with_component("metrics", ["rbac.yaml"], "(.Values.config.metrics).tokenReview")
    files["templates/openshift.yaml"] = with_component("openshift", ["rbac.yaml"], ".Values.openshift")
    before, inside = configuration((BASE / "config.yaml").read_text())
    before = settable("config.yaml", before)
    files["templates/config.yaml"] = (
        NOTE
        + before
        + "  config.yaml: |\n{{ toYaml .Values.config | indent 4 }}\n"
        + "{{- with .Values.multusDaemonConfig }}\n  daemon-config.json: |\n{{ . | indent 4 }}\n{{- end }}\n"
    )
    files["templates/NOTES.txt"] = LEAVING
    values = "".join("  " + line if line.strip() else line for line in inside.splitlines(keepends=True))
    files["values.yaml"] = (
        NOTE
        + "image: ghcr.io/fairlead/fairlead:0.1.0\nimagePullPolicy: IfNotPresent\n"
        + "# Secrets with the accounts of the image's registry: [{name: registry}].\nimagePullSecrets: []\n"
        + "# A node that it matches no more keeps Fairlead's configuration without a daemon, and no pod starts there: see Leaving in\n"
        + "# docs/deployment.md before you narrow it.\n"
        + "nodeSelector: {kubernetes.io/os: linux}\n"
        + "# The same holds for these. A list is replaced as a whole: repeat what shall stay.\n"
        + textwrap.dedent(AFFINITY)
        + "tolerations: [{operator: Exists}]\n"
        + "# Of both DaemonSets. A quota of the namespace names it, without which GKE takes no pod of a system's class.\n"
        + "priorityClassName: system-node-critical\n"
        + "# Of the daemon; the switch has its own below.\n"
        + "updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}\n"
        + "resources:\n  requests: {cpu: 50m, memory: 64Mi}\n  limits: {memory: 2Gi}\n"
        + "# Where the runtime of the nodes has its networks and plugins; kubelet's directory is config.kubelet.dir.\n"
        + "directories: {networks: /etc/cni/net.d, plugins: /opt/cni/bin}\n"
        + "# What the overlay openshift of the manifests adds: the right to use its security context constraints `privileged`.\nopenshift: false\n"
        + "# What the overlay sriov of the manifests adds: sysfs writable, kubelet's sockets.\nsriov: false\n"
        + "# What the overlay sriov-dpdk adds: sriov, and a privileged container that sees the node's /dev, for VFs under vfio-pci.\nvfio: false\n"
        + "# What the overlay vhost-user adds: the switch, the pods' volumes for their sockets, kubelet's sockets, IPC_LOCK and SYS_NICE.\nvhostUser: false\n"
        + "# What the overlay ovs-dpdk adds: the directory of OVS's database, the pods' volumes, kubelet's sockets.\novsDpdk: false\n"
        + OF_USERS
        + "# The daemon-config.json of Multus' thick plugin, unchanged; config.install.multusDaemonConfig: /etc/fairlead/daemon-config.json.\n"
        + 'multusDaemonConfig: ""\n'
        + "# The daemon's configuration (docs/configuration.md).\nconfig:\n"
        + values
    )
    files["values.schema.json"] = json.dumps(schema(), indent=2) + "\n"
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
