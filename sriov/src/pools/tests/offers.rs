//! Pools that kubelet allocates from: which VFs it is offered, and what a pod gets of that.

use fairlead_host::double::KernelRequest;

use super::*;

const RADIO: &str = "pools: [{name: radio, selectors: {vendors: ['8086']}, resourceName: intel.com/radio}]";

impl Rig {
    fn offer(&self, resource: &str) -> Arc<Offer> {
        let offers = self.pools().offers();
        offers.into_iter().find(|offer| offer.resource() == resource).unwrap()
    }

    /// The list of a resource: each VF by the last digit of its address, with `!` where it is not healthy.
    fn offered(&self, resource: &str) -> Option<String> {
        let short = |vf: &OfferedVf| {
            let address = vf.address.to_string();
            let sick = if vf.healthy { "" } else { "!" };
            format!("{}{sick}", address.rsplit('.').next().unwrap())
        };
        let list = self.offer(resource).list();
        let list = list.borrow();
        list.as_ref().map(|list| list.iter().map(short).collect::<Vec<_>>().join(" "))
    }

    /// What kubelet is answered, while the threads work.
    fn allocate(&self, vf: &str) -> Result<VfAccess, String> {
        let offer = self.offer("intel.com/radio");
        std::thread::scope(|scope| {
            let answered = scope.spawn(|| offer.allocate(pci(vf)));
            while !answered.is_finished() {
                self.pools().work_here();
                std::thread::sleep(Duration::from_millis(1));
            }
            answered.join().unwrap()
        })
    }
}

#[test]
fn x17_x23_a_list_is_complete_when_it_comes_and_names_only_what_was_verified() {
    let mut rig = with(RADIO);
    rig.restart();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some(""), "nothing is verified");
    rig.pools().work_here();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.order(Verb::Quarantine, VF);
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0! 2"));
    rig.order(Verb::Release, VF);
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.kernel.set_dead(SECOND, true);
    rig.check_pools();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2!"));
}

#[test]
fn a_lend_and_a_return_show_nobody_a_new_list() {
    let two = "pools: [{name: a, selectors: {pfNames: ['pf0#0']}, resourceName: intel.com/a}, \
               {name: b, selectors: {pfNames: ['pf0#1']}, resourceName: intel.com/b}]";
    let rig = kept(two);
    assert_eq!(rig.offered("intel.com/a").as_deref(), Some("0"));
    let [mut a, mut b] = ["intel.com/a", "intel.com/b"].map(|resource| rig.offer(resource).list());
    a.mark_unchanged();
    b.mark_unchanged();
    rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.pools().work_here();
    assert!(!a.has_changed().unwrap(), "it was healthy all the while");
    rig.order(Verb::Quarantine, VF);
    assert!(a.has_changed().unwrap() && !b.has_changed().unwrap());
}

#[test]
fn a_resource_that_stays_declared_stays_the_same_offer() {
    let mut rig = kept(RADIO);
    let before = rig.offer("intel.com/radio");
    rig.configure(&RADIO.replace("name: radio", "name: other"));
    assert!(Arc::ptr_eq(&before, &rig.offer("intel.com/radio")));
    rig.keep(); // The other pool has them when the first one has given them back.
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.configure("pools: []");
    assert!(rig.pools().offers().is_empty());
}

#[test]
fn x07_a_vf_that_was_allocated_without_an_add_is_cleaned_before_it_is_allocated_again() {
    let mut rig = kept(RADIO);
    let resets = |rig: &Rig| rig.asked(|asked| *asked == KernelRequest::Reset(VF.to_owned()));
    rig.kernel.forget_calls();
    rig.allocate(VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 0));
    rig.restart();
    rig.check_pools();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 0));
    rig.allocate(VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 1));
    let mark = rig.dir.path().join("run/pools").join(SECOND);
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    let refused = rig.allocate(SECOND).unwrap_err();
    assert!(refused.contains("make room in the run directory"), "{refused}");
    assert_eq!(rig.states(), ["given", "ready"]);
}
