//! STATUS really looks, and answers in time.

use std::fs;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::double::{FakeKernel, KernelRequest};

use super::Rig;
use crate::delegate::script;

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

#[test]
fn x04_status_of_a_delegate_that_sleeps_is_50_in_time_with_its_name() {
    let rig = Rig::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    script::write(&plugins.path().join("sleepy"), "sleep 60");
    let mut request = rig.request(Command::Status, "", &config("macvlan", r#"{"type":"sleepy"}"#));
    request.path = plugins.path().display().to_string();
    let arrived = Instant::now();
    let error = rig.serve(request, arrived, Duration::from_millis(90)).outcome.unwrap_err();
    assert!(arrived.elapsed() < Duration::from_secs(30), "{:?}", arrived.elapsed());
    assert_eq!(error.code, Code::NotAvailable);
    assert!(
        error.msg.starts_with("network \"net\": plugin \"sleepy\", STATUS: killed after its time limit"),
        "{}",
        error.msg
    );
}
