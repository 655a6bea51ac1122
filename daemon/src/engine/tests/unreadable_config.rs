//! A configuration that cannot be read at the start, on a kernel in memory: what a pod may have while nobody knows the pools.

use std::fs;

use fairlead_cni::Code;
use fairlead_sriov::pools::Verb;

use super::pools::{POOL, SECOND, config, kept};
use super::*;

impl Rig {
    /// What the run directory says of a VF; nothing where it says that it is not clean.
    fn mark(&self, address: &str, word: &str) {
        let file = self.dir.path().join("run/pools").join(address);
        let _ = fs::remove_file(&file);
        if !word.is_empty() {
            fs::write(file, word).unwrap();
        }
    }
}

#[test]
fn a_configuration_that_is_refused_at_the_start_gives_out_nothing_that_is_not_clean_and_no_other_path() {
    let mut rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.del(&config(VF, "")).unwrap();
    rig.order(Verb::Quarantine, SECOND);
    rig.settings = Settings { unread: true, ..Settings::default() };
    for (device, says) in [(VF, "not known to be clean"), (SECOND, "quarantined: by order")] {
        rig.mark(VF, "");
        rig.restart();
        let paths =
            fallback::config(&[fallback::SRIOV, fallback::MACVLAN], fallback::GIVEN).replace(VF, device);
        for config in [config(device, ""), paths] {
            let refused = rig.add(&config).unwrap_err();
            assert_eq!(refused.code, Code::TryAgain, "{refused}");
            assert!(refused.msg.contains(says) && refused.msg.contains("doctor"), "{refused}");
        }
    }
    let drawn = fallback::config(&[r#"{"type":"sriov","pool":"radio"}"#, fallback::MACVLAN], "");
    let refused = rig.add(&drawn).unwrap_err();
    assert!(refused.code == Code::TryAgain && refused.details.contains("doctor"), "{refused:?}");
    // What was left clean is as good as it was, for one pod.
    rig.mark(VF, "clean");
    rig.add(&config(VF, "")).unwrap();
    rig.del(&config(VF, "")).unwrap();
    assert_eq!(rig.add(&config(VF, "")).unwrap_err().code, Code::TryAgain);
    rig.configure(POOL);
    assert_eq!(rig.states(), ["ready", "quarantined"]);
    rig.add(&config(VF, "")).unwrap();
}
