//! The threads of removals, where a removal panics.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_host::NetnsId;
use fairlead_host::double::FakeKernel;

use super::*;
use crate::engine::CallSettings;
use crate::engine::tests::{engine_inputs, paths};
use crate::settings::Settings;
use crate::store::{Attachment, Key, LinkRecord, Namespace, Phase};

/// An engine on a kernel in memory, without threads.
fn opened(dir: &Path) -> Arc<Engine> {
    for sub in ["run", "state/spool", "root/etc/cni/net.d", "sys/bus/pci/devices"] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    let (inputs, _) = engine_inputs(&Arc::new(FakeKernel::new()), dir, Settings::default());
    Engine::open(&paths(dir, &dir.join("root")), CallSettings::default(), inputs).unwrap().0
}

/// Panics with the first attempt at each removal.
fn panics_once(core: &Core, attachment: &Attachment, _: &str) -> Result<(), CniError> {
    assert!(core.removals.failure(attachment.id).is_some(), "as asked");
    Ok(())
}

/// An attachment that is to be removed, and is due.
fn removing(core: &Core, container: &str, built_in: bool) -> u64 {
    let key = Key {
        container: container.to_owned(),
        network: "net".to_owned(),
        ifname: "net1".to_owned(),
        plugin: "fairlead".to_owned(),
    };
    let id = NetnsId { dev: 4, ino: 77, cookie: Some(77) };
    let netns = Namespace { path: "/run/netns/gone".to_owned(), id, nsid: None };
    let link = LinkRecord::Conflist { conflist: Arc::from("{}"), namespace: None, built_in };
    let attachment = Attachment::new(core.store.next_id(), key, netns, link, Arc::from("{}"));
    let removing = core.store.begin(Attachment { phase: Phase::Removing, ..attachment }).unwrap();
    core.start.begin(StartStep::Removal(removing.id));
    core.removals.expect(removing.id, Instant::now());
    removing.id
}

#[test]
fn a_removal_that_panics_is_tried_again_and_ends_neither_its_thread_nor_what_waits_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = opened(dir.path());
    Arc::get_mut(&mut engine).unwrap().core.remove_conflist = panics_once;
    let core = &engine.core;
    // More than one owner has threads for, and one that the queue's own thread removes.
    let mut ids: Vec<u64> = (0..6).map(|n| removing(core, &format!("executed{n}"), false)).collect();
    ids.push(removing(core, "built-in", true));
    removal_thread(&Arc::downgrade(&engine), "0", Rank::Regular).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while !core.store.all().is_empty() && Instant::now() < limit {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(core.store.all().len(), 0);
    let left = core.start.wait(Instant::now());
    assert!(ids.iter().all(|id| !left.contains(&StartStep::Removal(*id))), "{left:?}");
    engine.stop();
}
