//! One attempt to get an address of every range set, under the network's lock.
//!
//! Every decision is the reference plugin's, in its order; what it does not do is to leave something behind, or to
//! remove what this attempt has not taken.

use std::io;
use std::net::IpAddr;

use fairlead_cni::config::HostLocal as Config;
use fairlead_cni::config::host_local::{Range, RangeSet};
use fairlead_cni::result::IpConfig;

use super::file_format;
use super::open_dir::LockedDir;
use super::round_robin;
use crate::{IpamError, LeaseRequest};

/// One attempt to get an address of every range set.
pub(super) struct Attempt<'a, 'l, 'r> {
    locked: &'a mut LockedDir<'l>,
    request: &'a LeaseRequest<'r>,
    /// What the file of an address of this attachment contains.
    content: String,
    taken: Vec<IpAddr>,
    /// What this attachment had in the network before.
    had: Vec<IpAddr>,
}

impl<'a, 'l, 'r> Attempt<'a, 'l, 'r> {
    /// An attempt that has taken nothing yet.
    pub(super) fn new(locked: &'a mut LockedDir<'l>, request: &'a LeaseRequest<'r>) -> Attempt<'a, 'l, 'r> {
        let content = file_format::content_of(request.container_id, request.ifname);
        Attempt { locked, request, content, taken: Vec::new(), had: Vec::new() }
    }

    /// One address of every range set, and every address that is asked for; or nothing.
    pub(super) fn all_or_none(mut self, config: &Config) -> Result<Vec<IpConfig>, IpamError> {
        self.all(config).map_err(|error| match self.give_back() {
            Ok(()) => error,
            Err(why) => self.store(io::Error::other(format!("{error}; beside this, {why}"))),
        })
    }

    fn all(&mut self, config: &Config) -> Result<Vec<IpConfig>, IpamError> {
        let mut requested: Vec<IpAddr> = Vec::new();
        for ip in config.requested.iter().map(IpAddr::to_canonical) {
            if !requested.contains(&ip) {
                requested.push(ip);
            }
        }
        self.had = self.has();
        let mut ips = Vec::with_capacity(config.ranges.len());
        for (at, set) in config.ranges.iter().enumerate() {
            let wanted = requested.iter().position(|ip| set.range_of(*ip).is_some());
            ips.push(match wanted {
                Some(position) => self.requested(at, set, requested.remove(position))?,
                None => self.any(at, set)?,
            });
        }
        if requested.is_empty() {
            return Ok(ips);
        }
        Err(IpamError::RequestedOutside { network: self.network(), ips: requested })
    }

    fn requested(&mut self, at: usize, set: &RangeSet, ip: IpAddr) -> Result<IpConfig, IpamError> {
        let outside = || IpamError::RequestedOutside {
            network: self.request.directory.network.to_owned(),
            ips: vec![ip],
        };
        let range = set.range_of(ip).ok_or_else(outside)?;
        if ip == range.gateway {
            return Err(IpamError::RequestedGateway { network: self.network(), set: at, ip });
        }
        if !self.take(at, ip)? {
            let holder = self.locked.index().get(ip).map(|entry| entry.content.replace("\r\n", " "));
            let ranges = set.to_string();
            return Err(IpamError::RequestedTaken { network: self.network(), set: at, ip, ranges, holder });
        }
        Ok(ip_config(range, ip))
    }

    fn any(&mut self, at: usize, set: &RangeSet) -> Result<IpConfig, IpamError> {
        self.refuse_a_second(at, set)?;
        for reread in [false, true] {
            if reread {
                // Others may have given an address back within the same tick of the kernel's clock.
                self.locked.reread().map_err(|e| self.store(e))?;
            }
            let last = self.locked.cursor(at).map_err(|e| self.store(e))?;
            for (range, ip) in round_robin::candidates(set, last) {
                let is_free = !self.locked.index().has(ip) && !self.request.reserved.contains(&ip);
                if is_free && self.take(at, ip)? {
                    return Ok(ip_config(range, ip));
                }
            }
        }
        Err(IpamError::Exhausted {
            network: self.network(),
            set: at,
            ranges: set.to_string(),
            in_use: self.in_use(set),
            size: round_robin::size(set),
        })
    }

    /// How many addresses of a set are had, by the directory or by somebody outside it.
    fn in_use(&self, set: &RangeSet) -> usize {
        let index = self.locked.index();
        let reserved = self.request.reserved.iter().copied().filter(|ip| !index.has(*ip));
        let in_set = |ip: &IpAddr| set.range_of(*ip).is_some_and(|range| range.gateway != *ip);
        index.iter().map(|(ip, _)| ip).chain(reserved).filter(in_set).count()
    }

    /// What the directory says that this attachment has.
    fn has(&self) -> Vec<IpAddr> {
        let contents = [self.content.as_str(), self.request.container_id.trim()];
        contents.iter().flat_map(|content| self.locked.index().held_by(content)).collect()
    }

    /// The specification forbids a second allocation for the same container and interface. What this attempt itself has taken
    /// lies in other sets: no two of them overlap.
    fn refuse_a_second(&mut self, at: usize, set: &RangeSet) -> Result<(), IpamError> {
        let in_set = |had: &[IpAddr]| had.iter().copied().find(|ip| set.range_of(*ip).is_some());
        if in_set(&self.had).is_none() {
            return Ok(());
        }
        // An ADD is refused only by what is there now: another process may have released the address.
        self.locked.reread().map_err(|e| self.store(e))?;
        self.had = self.has();
        match in_set(&self.had) {
            None => Ok(()),
            Some(ip) => Err(IpamError::Duplicate {
                network: self.network(),
                set: at,
                ip,
                container_id: self.request.container_id.to_owned(),
            }),
        }
    }

    fn take(&mut self, at: usize, ip: IpAddr) -> Result<bool, IpamError> {
        if !self.locked.take(ip, &self.content).map_err(|e| self.store(e))? {
            return Ok(false);
        }
        self.taken.push(ip);
        if let Err(error) = self.locked.set_cursor(at, ip) {
            // The address is ours all the same; the next search begins at an older address.
            tracing::warn!(network = self.request.directory.network, %ip, %error, "the address given out last cannot be written down");
        }
        Ok(true)
    }

    /// Undoes what this attempt has taken, and nothing else. The error says what stays taken.
    fn give_back(&mut self) -> Result<(), String> {
        let mut stays = Ok(());
        for ip in std::mem::take(&mut self.taken) {
            if let Err(error) = self.locked.remove(ip, &self.content) {
                stays = Err(format!("address {ip} stays taken: {error}"));
            }
        }
        stays
    }

    fn network(&self) -> String {
        self.request.directory.network.to_owned()
    }

    fn store(&self, source: io::Error) -> IpamError {
        IpamError::Store { network: self.network(), path: self.locked.path().to_owned(), source }
    }
}

fn ip_config(range: &Range, ip: IpAddr) -> IpConfig {
    // An address of the range is of its family, so the prefix length fits.
    let address = range.with_prefix(ip).unwrap_or_else(|| ip.into());
    IpConfig { address, gateway: Some(range.gateway), interface: None }
}
