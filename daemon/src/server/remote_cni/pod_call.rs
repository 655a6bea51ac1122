//! A call for a pod, as the engine takes it: the ADD or DEL of a `clusterNetwork`, with what the runtime knows of the pod.

use std::net::IpAddr;

use fairlead_cni::config::ConfList;
use fairlead_cni::wire::{Command, Request, WIRE};
use fairlead_cni::{CniError, CniVersion, Code, names};
use fairlead_proto::v1;
use serde_json::{Value, json};

use crate::engine::OWN_TYPE;
use crate::store::Key;

/// The name by which the records of the remote CNI are known. It is not that of the runtime's own configuration: a GC for that network
/// does not know these pods.
const NETWORK: &str = "fairlead-remote";

/// The interface of a pod's default network, as every runtime of Kubernetes calls it.
const IFNAME: &str = "eth0";

/// Where plugins that are shell scripts find their programs. A caller of gRPC has no environment that could be passed on.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The longest name, namespace or uid of a pod, in bytes (RFC 1123; Kubernetes allows no more).
const LONGEST_NAME: usize = 253;

/// By what the attachment of a pod's default network is known.
pub(super) fn first_key(container: &str) -> Key {
    Key {
        container: container.to_owned(),
        network: NETWORK.to_owned(),
        ifname: IFNAME.to_owned(),
        plugin: OWN_TYPE.to_owned(),
    }
}

/// The ADD of a pod's networks.
///
/// # Errors
/// Code 4, with the part of the request that is wrong.
pub(super) fn add(
    asked: &v1::SetUpPodRequest,
    first: &ConfList,
    plugin_path: &str,
) -> Result<Request, CniError> {
    let mut runtime = serde_json::Map::new();
    if !asked.port_mappings.is_empty() {
        let ports: Result<Vec<Value>, CniError> = asked.port_mappings.iter().map(port_mapping).collect();
        runtime.insert("portMappings".to_owned(), Value::Array(ports?));
    }
    if let Some(annotations) = &asked.annotations {
        runtime.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(annotations.values));
    }
    let mut config = config(Some(first));
    if !runtime.is_empty() {
        config["runtimeConfig"] = Value::Object(runtime);
    }
    let request = request(Command::Add, &config, plugin_path);
    of_pod(request, asked.pod.as_ref(), &asked.container_id, &asked.netns)
}

/// The DEL of a pod's networks. It names none: what is on record is removed, and nothing is executed for a pod that was never set up.
///
/// # Errors
/// Code 4, with the part of the request that is wrong.
pub(super) fn del(asked: &v1::TearDownPodRequest, plugin_path: &str) -> Result<Request, CniError> {
    let request = request(Command::Del, &config(None), plugin_path);
    of_pod(request, asked.pod.as_ref(), &asked.container_id, &asked.netns)
}

/// The STATUS of the network that pods get first.
pub(super) fn status(first: &ConfList, plugin_path: &str) -> Request {
    request(Command::Status, &config(Some(first)), plugin_path)
}

fn config(first: Option<&ConfList>) -> Value {
    let mut config = json!({ "cniVersion": CniVersion::LATEST.as_str(), "name": NETWORK, "type": OWN_TYPE });
    if let Some(first) = first {
        config["clusterNetwork"] = first.name.as_str().into();
    }
    config
}

fn request(command: Command, config: &Value, plugin_path: &str) -> Request {
    Request {
        wire: WIRE,
        command,
        container_id: String::new(),
        netns: String::new(),
        // Nobody has looked: the caller names a path of the host.
        netns_inode: None,
        own_netns: None,
        own_netns_cookie: None,
        ifname: IFNAME.to_owned(),
        args: String::new(),
        path: plugin_path.to_owned(),
        env: vec![("PATH".to_owned(), PATH.to_owned())],
        config: config.to_string(),
        deadline_ms: 0,
        issued_ns: None,
        spooled: None,
    }
}

fn of_pod(
    request: Request,
    pod: Option<&v1::PodRef>,
    container: &str,
    netns: &str,
) -> Result<Request, CniError> {
    let pod = pod.ok_or_else(|| wrong("pod is absent"))?;
    names::container_id(container)?;
    for (field, value) in [("namespace", &pod.namespace), ("name", &pod.name), ("uid", &pod.uid)] {
        must_be_a_name(field, value)?;
    }
    let v1::PodRef { namespace, name, uid } = pod;
    Ok(Request {
        args: format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
        ),
        container_id: container.to_owned(),
        netns: netns.to_owned(),
        ..request
    })
}

/// What stands in `CNI_ARGS` must not end its own field there.
fn must_be_a_name(field: &str, value: &str) -> Result<(), CniError> {
    let is_name =
        |value: &str| value.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_'));
    match value {
        "" => Err(wrong(&format!("pod.{field} is empty"))),
        long if long.len() > LONGEST_NAME => Err(wrong(&format!("pod.{field} has {} bytes", long.len()))),
        odd if !is_name(odd) => {
            Err(wrong(&format!("pod.{field} {} is no name of Kubernetes", names::shown(odd))))
        }
        _ => Ok(()),
    }
}

fn port_mapping(asked: &v1::PortMapping) -> Result<Value, CniError> {
    let port = |field: &str, port: u32| match port {
        1..=65535 => Ok(port),
        _ => Err(wrong(&format!("{field} {port} is no port"))),
    };
    let protocol = match &*asked.protocol.to_ascii_lowercase() {
        "" | "tcp" => "tcp",
        "udp" => "udp",
        "sctp" => "sctp",
        _ => {
            return Err(wrong(&format!(
                "protocol {} is none of tcp, udp, sctp",
                names::shown(&asked.protocol)
            )));
        }
    };
    let mut mapping = json!({
        "hostPort": port("host_port", asked.host_port)?,
        "containerPort": port("container_port", asked.container_port)?,
        "protocol": protocol,
    });
    if !asked.host_ip.is_empty() {
        let ip: IpAddr = asked
            .host_ip
            .parse()
            .map_err(|_| wrong(&format!("host_ip {} is no address", names::shown(&asked.host_ip))))?;
        mapping["hostIP"] = ip.to_string().into();
    }
    Ok(mapping)
}

fn wrong(what: &str) -> CniError {
    CniError::new(Code::BadEnvironment, format!("the request's {what}"))
        .with("fairlead/v1/remote_cni.proto says what each field holds")
}
