//! STATUS really looks, and answers in time.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::config::NetConf;
use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, Code};
use fairlead_host::double::{FakeKernel, KernelRequest};

use super::Rig;
use crate::boot_time::BootTime;
use crate::call::{CallerGone, Waiting};
use crate::delegate::script;
use crate::engine::attachment_request::{AttachmentRequest, NetworkRequest};

fn config(kind: &str, ipam: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.1.0","name":"net","type":"{kind}","master":"eth0","vlanId":7,"ipam":{ipam}}}"#
    )
}

const HOST_LOCAL: &str = r#"{"type":"host-local","subnet":"10.1.0.0/24"}"#;

impl Rig {
    fn status(&self, config: &str) -> Result<String, CniError> {
        self.call(self.request(Command::Status, "", config))
    }

    fn asked_for(&self, kind: &str) -> usize {
        self.kernel
            .calls()
            .iter()
            .filter(|call| call.request == KernelRequest::Knows(kind.to_owned()))
            .count()
    }
}

#[test]
fn x04_status_of_a_type_that_the_kernel_lacks_is_50_and_names_the_module() {
    let rig = Rig::on(FakeKernel::new().without_kind("ipvlan").without_kind("vlan"));
    for (kind, module) in [("ipvlan", "modprobe ipvlan"), ("vlan", "modprobe 8021q")] {
        let error = rig.status(&config(kind, HOST_LOCAL)).unwrap_err();
        assert_eq!(error.code, Code::NotAvailable);
        assert_eq!(error.msg, format!("network \"net\": the kernel has no {kind}"));
        assert!(error.details.starts_with(module), "{}", error.details);
        rig.status(&config(kind, HOST_LOCAL)).unwrap_err();
        assert_eq!(rig.asked_for(kind), 2, "a module may have come meanwhile");
    }
    for _ in 0..2 {
        rig.status(&config("macvlan", HOST_LOCAL)).unwrap();
    }
    assert_eq!(rig.asked_for("macvlan"), 1, "what the kernel has it keeps");
}

#[test]
fn x04_status_is_50_where_host_locals_files_can_not_be_made() {
    let rig = Rig::new();
    fs::create_dir_all(rig.dir.path().join("root/var/lib")).unwrap();
    fs::write(rig.dir.path().join("root/var/lib/cni"), "no directory").unwrap();
    let error = rig.status(&config("macvlan", HOST_LOCAL)).unwrap_err();
    assert_eq!(error.code, Code::NotAvailable);
    assert!(
        error.msg.contains("network \"net\": host-local's directory /var/lib/cni/networks/net"),
        "{}",
        error.msg
    );
    assert!(error.details.contains("dataDir"), "{}", error.details);
}

#[test]
fn x04_a_missing_master_does_not_take_the_node_out_of_service() {
    let rig = Rig::new();
    rig.status(&config("macvlan", HOST_LOCAL).replace("eth0", "unplugged0")).unwrap();
}

#[test]
fn x04_a_kernel_that_does_not_answer_is_50() {
    let rig = Rig::new();
    rig.kernel.fail_from(0, nix::errno::Errno::EPERM);
    let error = rig.status(&config("macvlan", HOST_LOCAL)).unwrap_err();
    assert_eq!(error.code, Code::NotAvailable);
    assert!(error.details.contains("CAP_NET_ADMIN"), "{}", error.details);
}

#[test]
fn x04_status_is_50_where_the_record_of_an_executed_ipam_could_not_be_written() {
    let rig = Rig::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    script::write(&plugins.path().join("leases"), "cat > /dev/null");
    let status = || {
        let mut request = rig.request(Command::Status, "", &config("macvlan", r#"{"type":"leases"}"#));
        request.path = plugins.path().display().to_string();
        // This machine may be slow: the call arrives later.
        let arrived = Instant::now() + Duration::from_secs(120);
        rig.serve(request, arrived, Duration::from_secs(60)).outcome
    };
    status().unwrap();
    let state = rig.dir.path().join("state");
    fs::rename(state.join("attachments"), state.join("away")).unwrap();
    let error = status().unwrap_err();
    assert_eq!(error.code, Code::NotAvailable);
    let records = state.join("attachments").display().to_string();
    assert!(error.msg.contains(&records), "{}", error.msg);
    assert!(error.details.contains("make space"), "{}", error.details);
    // What is executed for nobody needs no such record.
    rig.status(&config("macvlan", "{}")).unwrap();
}

/// An IPAM that is executed, and the STATUS of a network that has it, from a caller that waits as long as the executable does.
struct ExecutedIpam {
    rig: Rig,
    plugins: tempfile::TempDir,
}

impl ExecutedIpam {
    /// `limit`: the time limit of one executed plugin.
    fn new(limit: Duration, body: &str) -> ExecutedIpam {
        let mut rig = Rig::on_this_host();
        rig.call_settings.delegate_timeout = limit;
        rig.restart();
        let ipam = ExecutedIpam { rig, plugins: tempfile::tempdir().unwrap() };
        ipam.does(body);
        ipam
    }

    fn does(&self, body: &str) {
        script::write(&self.plugins.path().join("lease"), body);
    }

    fn status(&self) -> Result<String, CniError> {
        let of = self.rig.request(Command::Status, "", &config("macvlan", r#"{"type":"lease"}"#));
        let request = Request { path: self.plugins.path().display().to_string(), ..of };
        let arrived = Instant::now();
        let outcome = self.rig.serve(request, arrived, Duration::from_millis(90)).outcome;
        // A plugin that sleeps is not waited for, however slow this machine is.
        assert!(arrived.elapsed() < Duration::from_secs(30), "{:?}", arrived.elapsed());
        outcome
    }

    fn until(&self, what: &str, is: impl Fn(&Result<String, CniError>) -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !is(&self.status()) {
            assert!(Instant::now() < limit, "STATUS is never {what}");
        }
    }

    /// Those of the pids that the plugin has written down whose processes are there.
    fn alive(&self) -> usize {
        let pids = fs::read_to_string(self.plugins.path().join("lease.pids")).unwrap_or_default();
        pids.lines().filter(|pid| Path::new("/proc").join(pid).exists()).count()
    }
}

#[test]
fn x04_status_of_a_delegate_that_takes_longer_than_a_status_is_what_it_said_last() {
    let ipam = ExecutedIpam::new(Duration::from_secs(60), "sleep 0.2");
    for _ in 0..2 {
        ipam.status().unwrap();
    }
    ipam.does(r#"cat >/dev/null; sleep 0.2; echo '{"code":51,"msg":"no lease server"}'; exit 1"#);
    let says_so = |told: &Result<String, CniError>| {
        let told = told.as_ref().err().filter(|told| told.msg.contains("no lease server"));
        told.inspect(|told| assert_eq!(told.code, Code::NotAvailable, "{told}")).is_some()
    };
    ipam.until("what it says", says_so);
    assert!(says_so(&ipam.status()), "it stays so while the plugin is asked anew");
    ipam.does("sleep 0.2");
    ipam.until("success again", Result::is_ok);
    ipam.status().unwrap();
}

#[test]
fn x04_status_of_a_delegate_that_hangs_is_50_with_its_name_from_when_it_had_its_time_and_one_process_hangs() {
    let ipam = ExecutedIpam::new(Duration::from_secs(1), r#"echo $$ >>"$0.pids"; exec sleep 60"#);
    ipam.status().unwrap();
    let mut most = 0;
    let limit = Instant::now() + Duration::from_secs(60);
    let told = loop {
        most = most.max(ipam.alive());
        match ipam.status() {
            Err(told) => break told,
            Ok(_) => assert!(Instant::now() < limit, "a plugin that hangs is never told"),
        }
    };
    assert_eq!(told.code, Code::NotAvailable);
    let words = "network \"net\": plugin \"lease\", STATUS: killed after its time limit of 1s";
    assert!(told.msg.starts_with(words), "{told}");
    ipam.status().unwrap_err();
    assert_eq!(most.max(ipam.alive()), 1);
    ipam.does("cat >/dev/null");
    ipam.until("success when it answers", Result::is_ok);
    ipam.does(r#"echo $$ >>"$0.pids"; exec sleep 60"#);
    ipam.until("asked of one that hangs", |_| ipam.alive() == 1);
    ipam.rig.engine().core.ipam.delegates.end_statuses();
    assert_eq!(ipam.alive(), 0, "nothing outlives the daemon");
}

#[test]
fn x04_what_a_status_executes_is_waited_for_from_when_the_executable_was_started() {
    let rig = Rig::new();
    let issued_ns = BootTime::now().map(|now| now.0 - 60_000_000);
    let request =
        Request { issued_ns, ..rig.request(Command::Status, "", &config("macvlan", r#"{"type":"lease"}"#)) };
    let conf = Arc::new(NetConf::parse(&request.config).unwrap());
    let wanted = NetworkRequest::new(conf, None, "", "", "");
    let arrived = Instant::now();
    let until = |request: &Request| {
        let waiting =
            Waiting { arrived, deadline: arrived + Duration::from_secs(1), gone: CallerGone::default() };
        AttachmentRequest::of_call(request, &wanted, waiting).unwrap().waiting.deadline
    };
    assert!(until(&request) < arrived + Duration::from_millis(50), "75 ms, less 60 ms on its way");
    let of_another = Request { issued_ns: None, ..request };
    assert_eq!(until(&of_another), arrived + Duration::from_millis(75));
}
