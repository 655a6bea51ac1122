//! Pods that a client of gRPC sets up, on the real kernel, with a daemon that is killed between its calls.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fairlead_proto::v1;
use fairlead_proto::v1::remote_cni_client::RemoteCniClient;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

use super::rig::{Pod, Rig};

/// A runtime that speaks gRPC with the daemon of a node. Each call has a connection of its own, since the daemon is killed.
struct Client<'a> {
    rig: &'a Rig,
    runtime: Runtime,
}

impl Client<'_> {
    fn of(rig: &Rig) -> Client<'_> {
        Client { rig, runtime: Builder::new_current_thread().enable_all().build().unwrap() }
    }

    async fn connected(&self) -> RemoteCniClient<Channel> {
        let socket = self.rig.socket();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        RemoteCniClient::new(endpoint.connect_with_connector(connector).await.unwrap())
    }

    fn set_up(&self, request: v1::SetUpPodRequest) -> Result<Vec<v1::NetworkResult>, Status> {
        self.runtime.block_on(async {
            self.connected().await.set_up_pod(request).await.map(|answer| answer.into_inner().networks)
        })
    }

    fn tear_down(&self, pod: &Pod) {
        let netns = pod.path().to_str().unwrap().to_owned();
        let request = v1::TearDownPodRequest { pod: Some(web()), container_id: "c1".to_owned(), netns };
        self.runtime.block_on(async { self.connected().await.tear_down_pod(request).await.unwrap() });
    }
}

fn web() -> v1::PodRef {
    v1::PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "u-1".to_owned() }
}

fn request(pod: &Pod) -> v1::SetUpPodRequest {
    v1::SetUpPodRequest {
        pod: Some(web()),
        container_id: "c1".to_owned(),
        netns: pod.path().to_str().unwrap().to_owned(),
        port_mappings: vec![v1::PortMapping { host_port: 8080, container_port: 80, ..Default::default() }],
        annotations: Some(v1::Annotations::default()),
    }
}

/// A network of the conf dir: a script that declares the ports of the host, one that does not, and a macvlan. The scripts note what
/// they are given.
fn default_network(rig: &Rig) {
    for name in ["ports", "plain"] {
        let text = format!(
            "#!/bin/sh\ncat >{}.$CNI_COMMAND\n[ $CNI_COMMAND != ADD ] || echo '{{\"cniVersion\":\"1.0.0\"}}'\n",
            rig.path(name).display()
        );
        // A file that is being written cannot be executed: so it is renamed into its place.
        let beside = rig.path(&format!("{name}.new"));
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(beside, rig.path("bin").join(name)).unwrap();
    }
    let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [
        { "type": "ports", "capabilities": { "portMappings": true } },
        { "type": "plain" },
        rig.macvlan("pods"),
    ] });
    fs::write(rig.path("net.d/10-pods.conflist"), list.to_string()).unwrap();
}

/// The runtime's part of the configuration that a script was given.
fn given(rig: &Rig, name: &str) -> Value {
    let text = fs::read_to_string(rig.path(name)).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["runtimeConfig"].clone()
}

/// The answer as the result of an ADD is compared with what `ip` shows.
fn as_result(network: &v1::NetworkResult) -> Value {
    let ips: Vec<Value> = network.addresses.iter().map(|ip| json!({ "address": ip.address })).collect();
    json!({ "interfaces": [{ "mac": network.interfaces[0].mac }], "ips": ips })
}

#[test]
fn r01_r09_r10_a_pod_of_a_grpc_client_outlives_kills_of_the_daemon_and_leaves_nothing() {
    let rig = Rig::new();
    default_network(&rig);
    let (pod, client) = (rig.pod("pod"), Client::of(&rig));
    let before = {
        let _daemon = rig.start();
        rig.leftovers(&[&pod])
    };
    let dying = rig.start_dying_at("add.committed");
    client.set_up(request(&pod)).unwrap_err();
    dying.dies();
    let daemon = rig.start();
    let networks = client.set_up(request(&pod)).unwrap();
    assert_eq!((networks.len(), &*networks[0].network, &*networks[0].interface), (1, "pods", "eth0"));
    pod.has_what_was_answered("eth0", &as_result(&networks[0]));
    let ports = json!([{ "containerPort": 80, "hostPort": 8080, "protocol": "tcp" }]);
    assert_eq!(given(&rig, "ports.ADD"), json!({ "portMappings": ports }));
    assert_eq!(given(&rig, "plain.ADD"), Value::Null, "it does not declare them");
    daemon.kill();
    let daemon = rig.start();
    assert_eq!(client.set_up(request(&pod)).unwrap(), networks, "a restart changes no answer");
    pod.has_what_was_answered("eth0", &as_result(&networks[0]));
    daemon.kill();
    let _daemon = rig.start();
    client.tear_down(&pod);
    rig.is_as(&before, &[&pod], "TearDownPod");
    assert_eq!(given(&rig, "ports.DEL"), json!({ "portMappings": ports }));
    client.tear_down(&pod);
}

#[test]
fn r03_a_pod_whose_namespace_went_before_its_teardown_gives_its_addresses_back() {
    let rig = Rig::new();
    default_network(&rig);
    let client = Client::of(&rig);
    let _daemon = rig.start();
    let before = rig.leftovers(&[]);
    let pod = rig.pod("pod");
    client.set_up(request(&pod)).unwrap();
    let path = pod.path().to_owned();
    drop(pod);
    let request = v1::TearDownPodRequest {
        pod: Some(web()),
        container_id: "c1".to_owned(),
        netns: path.to_str().unwrap().to_owned(),
    };
    client.runtime.block_on(async { client.connected().await.tear_down_pod(request).await.unwrap() });
    rig.is_as(&before, &[], "TearDownPod");
}
