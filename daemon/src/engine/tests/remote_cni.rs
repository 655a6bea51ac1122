//! The remote CNI: a client of gRPC on a real socket, in front of the engine.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use fairlead_cni::wire::MAX_CONFIG;
use fairlead_kube::PodRef;
use fairlead_proto::v1;
use fairlead_proto::v1::remote_cni_client::RemoteCniClient;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::pod_networks::{Cluster, NETWORKS, web};
use super::*;
use crate::admission::{Admission, Limits};
use crate::default_network::DefaultNetwork;
use crate::health::{Health, Readiness};
use crate::server::{ServerState, runtime, serve};
use crate::settings::LiveSettings;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A daemon's socket in front of a node of a cluster, and a client's thread.
struct Remote {
    cluster: Cluster,
    socket: PathBuf,
    server: ServerState,
    closing: Arc<Notify>,
    serving: Option<std::thread::JoinHandle<()>>,
    client: Runtime,
}

impl Remote {
    /// The engine is not started yet.
    fn starting() -> Remote {
        let cluster = Cluster::new();
        let rig = &cluster.rig;
        let socket = rig.dir.path().join("fairlead.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let exposition = Arc::new(Exposition::default());
        let health = Arc::new(Health::default());
        let calls = Calls::new(&exposition, &BUILT_IN);
        let admission = Admission::new(Limits { fast: 1, slow: 4, queued: 100 }, calls, health.clone());
        let settings = Arc::new(LiveSettings::new(&rig.dir.path().join("config.yaml"), Node::default()));
        let networks = Arc::clone(&rig.engine().networks);
        let first = DefaultNetwork::new(networks, settings, None);
        let readiness = Arc::new(Readiness::new(&["engine"]));
        let server = ServerState::new(admission, readiness, health, exposition, first);
        let closing = Arc::new(Notify::new());
        let (served, closed) = (server.clone(), closing.clone());
        let serving = std::thread::spawn(move || {
            runtime().unwrap().block_on(serve(listener, served, closed)).unwrap();
        });
        // A thread of its own: a connection reacts although no call is at work.
        let client =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Remote { cluster, socket, server, closing, serving: Some(serving), client }
    }

    fn open(&self) {
        let service: Arc<dyn Service> = self.cluster.rig.engine.clone().unwrap();
        let _ = self.server.service.set(service.clone());
        self.server.readiness.met("engine");
        self.server.admission.open(service).unwrap();
    }

    fn new() -> Remote {
        let remote = Remote::starting();
        remote.open();
        remote
    }

    async fn try_channel(&self) -> Result<Channel, tonic::transport::Error> {
        let socket = self.socket.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await
    }

    async fn channel(&self) -> Channel {
        self.try_channel().await.unwrap()
    }

    fn set_up(&self, request: v1::SetUpPodRequest) -> Result<Vec<v1::NetworkResult>, Status> {
        self.client.block_on(async {
            let answer = RemoteCniClient::new(self.channel().await).set_up_pod(request).await;
            answer.map(|answer| answer.into_inner().networks)
        })
    }

    fn tear_down(&self) -> Result<(), Status> {
        let request =
            v1::TearDownPodRequest { pod: Some(pod()), container_id: "c1".to_owned(), netns: POD.to_owned() };
        self.client.block_on(async {
            RemoteCniClient::new(self.channel().await).tear_down_pod(request).await.map(drop)
        })
    }

    fn status(&self) -> Result<v1::StatusResponse, Status> {
        self.client.block_on(async {
            let answer = RemoteCniClient::new(self.channel().await).status(v1::StatusRequest {}).await;
            answer.map(tonic::Response::into_inner)
        })
    }

    fn health(&self, service: &str) -> Result<ServingStatus, Status> {
        self.client.block_on(async {
            let asked = HealthCheckRequest { service: service.to_owned() };
            let answer = HealthClient::new(self.channel().await).check(asked).await?;
            Ok(answer.into_inner().status())
        })
    }

    /// The head of an answer of HTTP/1.1.
    fn http(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: f\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    fn conf_dir(&self) -> PathBuf {
        self.cluster.rig.dir.path().join("root/etc/cni/net.d")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.closing.notify_one();
        if let Some(serving) = self.serving.take() {
            let served = serving.join();
            assert!(std::thread::panicking() || served.is_ok(), "the server ended: {served:?}");
        }
    }
}

fn pod() -> v1::PodRef {
    let PodRef { namespace, name, uid } = web();
    v1::PodRef { namespace, name, uid: uid.unwrap() }
}

/// The pod asks for nothing that the call does not say.
fn request(annotations: &[(&str, &str)]) -> v1::SetUpPodRequest {
    let values = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    v1::SetUpPodRequest {
        pod: Some(pod()),
        container_id: "c1".to_owned(),
        netns: POD.to_owned(),
        port_mappings: Vec::new(),
        annotations: Some(v1::Annotations { values }),
    }
}

fn port(host_port: u32) -> v1::PortMapping {
    v1::PortMapping { host_port, container_port: 80, ..v1::PortMapping::default() }
}

/// The error object in the details of a status.
fn cni_error(status: &Status) -> v1::CniError {
    let details = tonic_types::pb::Status::decode(status.details()).unwrap();
    v1::CniError::decode(&*details.details[0].value).unwrap()
}

#[test]
fn r01_a_pod_gets_its_default_network_and_those_of_its_annotations_and_is_told_of_each() {
    let remote = Remote::new();
    let before = remote.cluster.rig.state();
    let asked = request(&[(NETWORKS, "radio, oam@mgmt")]);
    let networks = remote.set_up(asked.clone()).unwrap();
    let told: Vec<_> = networks
        .iter()
        .map(|n| (&*n.network, &*n.namespace, &*n.interface, n.is_default, &*n.addresses[0].address))
        .collect();
    let expected = [
        ("net", "", "eth0", true, "10.1.0.2/24"),
        ("radio", "shop", "net1", false, "10.9.0.2/24"),
        ("oam", "shop", "mgmt", false, "10.8.0.2/24"),
    ];
    assert_eq!(told, expected);
    assert_eq!((&*networks[1].interfaces[0].name, &*networks[1].interfaces[0].netns), ("net1", POD));
    assert_eq!(networks[0].addresses[0].gateway, "10.1.0.1");
    assert_eq!(networks[0].routes[0].destination, "0.0.0.0/0");
    assert_eq!(remote.cluster.pod().0, ["eth0", "mgmt", "net1"]);
    assert_eq!(remote.set_up(asked.clone()).unwrap(), networks, "the same request is answered the same");
    let other = v1::SetUpPodRequest { port_mappings: vec![port(8080)], ..asked };
    let refused = remote.set_up(other).unwrap_err();
    assert_eq!((refused.code(), cni_error(&refused).code), (Code::AlreadyExists, 100), "{refused}");
    remote.tear_down().unwrap();
    remote.cluster.rig.reap();
    assert_eq!(remote.cluster.rig.state(), before);
    remote.tear_down().unwrap();
}

#[test]
fn r01_what_a_pod_asks_for_comes_from_the_cluster_where_the_call_does_not_say_it() {
    let remote = Remote::new();
    remote.cluster.api.put_pod(&PodRef { uid: Some("u-0".into()), ..web() }, &[]);
    remote.cluster.api.put_pod(&web(), &[(NETWORKS, "radio")]);
    let asked = v1::SetUpPodRequest { annotations: None, ..request(&[]) };
    assert_eq!(remote.set_up(asked.clone()).unwrap().len(), 2);
    remote.tear_down().unwrap();
    let nothing = v1::SetUpPodRequest { annotations: Some(v1::Annotations::default()), ..asked.clone() };
    assert_eq!(remote.set_up(nothing).unwrap().len(), 1, "a call that says that there are none is believed");
    remote.tear_down().unwrap();
    // K12
    let older = v1::PodRef { uid: "u-0".to_owned(), ..pod() };
    let refused = remote.set_up(v1::SetUpPodRequest { pod: Some(older), ..asked }).unwrap_err();
    assert_eq!((refused.code(), cni_error(&refused).code), (Code::NotFound, 3), "{refused}");
}

#[test]
fn m08_a_pod_whose_one_network_fails_is_set_up_with_none_and_the_status_names_it() {
    let remote = Remote::new();
    let before = remote.cluster.rig.state();
    let refused = remote.set_up(request(&[(NETWORKS, "radio,nowhere")])).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let error = cni_error(&refused);
    assert!(error.code == 7 && error.msg.contains("shop/nowhere") && !error.details.is_empty(), "{error:?}");
    remote.cluster.rig.reap();
    assert_eq!(remote.cluster.rig.state(), before);
}

#[test]
fn r03_teardown_with_a_namespace_that_is_gone_succeeds_and_gives_everything_back() {
    let remote = Remote::new();
    let before = remote.cluster.rig.state();
    remote.set_up(request(&[(NETWORKS, "radio")])).unwrap();
    remote.cluster.rig.kernel.kill_namespace(POD);
    remote.tear_down().unwrap();
    remote.cluster.rig.reap();
    let after = remote.cluster.rig.state();
    assert_eq!((&after.allocations, after.records), (&before.allocations, 0));
}

#[test]
fn r04_r07_r08_status_reads_the_configuration_again_and_says_what_is_refused() {
    let remote = Remote::new();
    let file = remote.conf_dir().join("10-net.conflist");
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let none = remote.status().unwrap_err();
    assert_eq!((none.code(), cni_error(&none).code), (Code::Unavailable, 50), "{none}");
    assert!(none.message().contains("net.d"), "{none}");
    // As kubelet mounts a ConfigMap.
    let dir = remote.conf_dir();
    for (version, name) in [("..1", "first"), ("..2", "second")] {
        fs::create_dir(dir.join(version)).unwrap();
        fs::write(
            dir.join(version).join("n.conflist"),
            text.replace(r#""name":"net""#, &format!(r#""name":"{name}""#)),
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("..1", dir.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/n.conflist", dir.join("10-n.conflist")).unwrap();
    assert_eq!(remote.status().unwrap().default_network, "first");
    std::os::unix::fs::symlink("..2", dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    assert_eq!(remote.status().unwrap().default_network, "second");
    assert_eq!(remote.set_up(request(&[])).unwrap()[0].network, "second");
    fs::write(dir.join("20-broken.conflist"), "{").unwrap();
    let status = remote.status().unwrap();
    assert_eq!((&*status.default_network, &*status.networks), ("second", &["second".to_owned()][..]));
    assert!(status.refused.len() == 1 && status.refused[0].contains("20-broken.conflist"), "{status:?}");
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    remote.tear_down().unwrap();
}

#[test]
fn r06_before_it_is_ready_every_call_is_unavailable_and_health_follows() {
    let remote = Remote::starting();
    let service = "fairlead.v1.RemoteCni";
    for (what, refused) in [
        ("SetUpPod", remote.set_up(request(&[])).unwrap_err()),
        ("TearDownPod", remote.tear_down().unwrap_err()),
        ("Status", remote.status().unwrap_err()),
    ] {
        assert_eq!((refused.code(), cni_error(&refused).code), (Code::Unavailable, 50), "{what}: {refused}");
        assert!(refused.message().contains("engine (not yet done)"), "{what}: {refused}");
    }
    assert_eq!(remote.health("").unwrap(), ServingStatus::NotServing);
    assert_eq!(remote.health("fairlead.v1.Nothing").unwrap_err().code(), Code::NotFound);
    remote.client.block_on(async {
        let asked = HealthCheckRequest { service: service.to_owned() };
        let answers = HealthClient::new(remote.channel().await).watch(asked).await.unwrap();
        let mut answers = answers.into_inner();
        assert_eq!(answers.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        remote.open();
        assert_eq!(answers.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    });
    assert_eq!(remote.health(service).unwrap(), ServingStatus::Serving);
    remote.set_up(request(&[])).unwrap();
    remote.server.admission.stop();
    let stopping = remote.set_up(request(&[])).unwrap_err();
    assert!(stopping.code() == Code::Unavailable && stopping.message().contains("stopping"), "{stopping}");
}

#[test]
fn reflection_tells_every_service_and_what_an_error_holds() {
    let remote = Remote::new();
    let ask = |question: MessageRequest| {
        let asked = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        remote.client.block_on(async {
            let mut client = ServerReflectionClient::new(remote.channel().await);
            let asked = futures_util::stream::iter([asked]);
            let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().message_response.unwrap()
        })
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())) else {
        panic!("no list of services");
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        ["fairlead.v1.RemoteCni", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]
    );
    for symbol in ["fairlead.v1.CniError", "google.rpc.Status"] {
        let described = ask(MessageRequest::FileContainingSymbol(symbol.to_owned()));
        assert!(matches!(described, MessageResponse::FileDescriptorResponse(_)), "{symbol}: {described:?}");
    }
}

#[test]
fn a_request_that_says_something_impossible_is_refused_by_the_fields_name() {
    let remote = Remote::new();
    let before = remote.cluster.rig.state();
    let good = request(&[]);
    let with_pod = |pod: Option<v1::PodRef>| v1::SetUpPodRequest { pod, ..good.clone() };
    let with_port = |port: v1::PortMapping| v1::SetUpPodRequest { port_mappings: vec![port], ..good.clone() };
    let table = [
        ("pod is absent", with_pod(None)),
        ("pod.uid is empty", with_pod(Some(v1::PodRef { uid: String::new(), ..pod() }))),
        ("pod.name", with_pod(Some(v1::PodRef { name: "a;K8S_POD_UID=u".to_owned(), ..pod() }))),
        ("pod.namespace", with_pod(Some(v1::PodRef { namespace: "n".repeat(254), ..pod() }))),
        ("CNI_CONTAINERID", v1::SetUpPodRequest { container_id: "../c1".to_owned(), ..good.clone() }),
        ("CNI_NETNS", v1::SetUpPodRequest { netns: "ns/pod".to_owned(), ..good.clone() }),
        ("host_port 0", with_port(port(0))),
        ("host_port 65536", with_port(port(65536))),
        ("protocol", with_port(v1::PortMapping { protocol: "icmp".to_owned(), ..port(1) })),
        ("host_ip", with_port(v1::PortMapping { host_ip: "localhost".to_owned(), ..port(1) })),
    ];
    for (part, asked) in table {
        let refused = remote.set_up(asked).unwrap_err();
        assert_eq!((refused.code(), cni_error(&refused).code), (Code::InvalidArgument, 4), "{refused}");
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    assert_eq!(remote.cluster.rig.state(), before);
}

#[test]
fn x12_a_request_without_end_is_refused_and_the_next_one_is_served() {
    let remote = Remote::new();
    let endless = "x".repeat(MAX_CONFIG);
    let refused = remote.set_up(request(&[("k", &endless)])).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let refused = remote.client.block_on(async {
        let mut asked = tonic::Request::new(v1::StatusRequest {});
        asked.metadata_mut().insert("x", "y".repeat(64 << 10).parse().unwrap());
        RemoteCniClient::new(remote.channel().await).status(asked).await.unwrap_err()
    });
    assert_ne!(refused.code(), Code::Ok, "{refused}");
    remote.set_up(request(&[])).unwrap();
}

#[test]
fn both_protocols_are_served_beside_each_other_and_a_slow_preface_holds_up_nobody() {
    let remote = Remote::new();
    // As many as there are threads that accept, and more: each says the beginning of a preface, or all of it and nothing then.
    let slow: Vec<UnixStream> = (1..=PREFACE.len())
        .map(|length| {
            let mut stream = UnixStream::connect(&remote.socket).unwrap();
            stream.write_all(&PREFACE[..length]).unwrap();
            stream
        })
        .collect();
    remote.client.block_on(async {
        let mut client = RemoteCniClient::new(remote.channel().await);
        for _ in 0..3 {
            client.status(v1::StatusRequest {}).await.unwrap();
            assert_eq!(remote.http("/healthz"), "HTTP/1.1 200 OK");
        }
    });
    remote.set_up(request(&[])).unwrap();
    assert_eq!(remote.http("/v1/attachments"), "HTTP/1.1 200 OK");
    drop(slow);
}

#[test]
fn x12_more_callers_than_there_are_places_are_cut_off_and_the_places_come_back() {
    let remote = Remote::new();
    let idle: Vec<UnixStream> = (0..80)
        .map(|_| {
            let mut stream = UnixStream::connect(&remote.socket).unwrap();
            stream.write_all(PREFACE).unwrap();
            stream
        })
        .collect();
    let cut_off = idle.iter().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut first = [0; 1];
        // The server's own settings come first, or nothing.
        (&mut &**stream).read(&mut first).unwrap_or(0) == 0
    });
    assert_eq!(cut_off.count(), 16);
    assert_eq!(remote.http("/healthz"), "HTTP/1.1 200 OK");
    drop(idle);
    let limit = Instant::now() + Duration::from_secs(60);
    while remote.client.block_on(async { try_status(&remote).await }).is_err() {
        assert!(Instant::now() < limit, "no place came back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn try_status(remote: &Remote) -> Result<(), Box<dyn std::error::Error>> {
    RemoteCniClient::new(remote.try_channel().await?).status(v1::StatusRequest {}).await?;
    Ok(())
}

#[test]
fn x13_a_caller_that_waits_no_longer_is_told_so_and_its_pod_has_nothing() {
    let remote = Remote::new();
    let before = remote.cluster.rig.state();
    let refused = remote.client.block_on(async {
        let mut asked = tonic::Request::new(v1::SetUpPodRequest { annotations: None, ..request(&[]) });
        // The cluster does not know the pod, which is waited for.
        asked.set_timeout(Duration::from_millis(100));
        RemoteCniClient::new(remote.channel().await).set_up_pod(asked).await.unwrap_err()
    });
    assert!(
        matches!(refused.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable),
        "{refused}"
    );
    remote.cluster.rig.reap();
    assert_eq!(remote.cluster.rig.state(), before);
}

#[test]
fn k18_a_caller_that_keeps_its_connection_does_not_hold_up_the_end() {
    let mut remote = Remote::new();
    let channel = remote.client.block_on(async {
        let channel = remote.channel().await;
        RemoteCniClient::new(channel.clone()).status(v1::StatusRequest {}).await.unwrap();
        channel
    });
    remote.server.admission.stop();
    remote.closing.notify_one();
    remote.serving.take().unwrap().join().unwrap();
    let gone =
        remote.client.block_on(async { RemoteCniClient::new(channel).status(v1::StatusRequest {}).await });
    assert_eq!(gone.unwrap_err().code(), Code::Unavailable);
}
