//! IPAM `host-local`: which addresses may be allocated, read and canonicalised as the reference plugin's allocator does it
//! (`backend/allocator/config.go`, `range.go`, `range_set.go`).
//!
//! Invariant of what [`HostLocal::parse`] returns: every set has at least one range, all ranges of a set are of one
//! family, no two ranges overlap, and `start ≤ end` lie in the subnet. One address is allocated from each set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::NetConf;
use crate::addr;
use crate::args::Args;
use crate::error::{CniError, Code};
use crate::go_json::{Fields, Item};
use crate::names::shown;
use crate::result::RouteConfig;
use crate::version::CniVersion;

/// The directory of the allocations when `dataDir` is absent.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The remedy for requested addresses that no ADD gets.
const ASK_INSIDE: &str =
    "ask for addresses inside the network's ranges, at most one of each range set, and not the gateway";

/// The configuration of IPAM `host-local`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLocal {
    /// The range sets in the order of their `last_reserved_ip.<index>`: those of the runtime, the old single range, and those of
    /// the key `ranges`.
    pub ranges: Vec<RangeSet>,
    /// The routes of the key `routes`.
    pub routes: Vec<RouteConfig>,
    /// The key `dataDir`; [`DEFAULT_DATA_DIR`] when it is absent.
    pub data_dir: String,
    /// The key `resolvConf`: the path of a file with name resolution.
    pub resolv_conf: Option<String>,
    /// The addresses that the caller requests by `IP` in `CNI_ARGS`, `args.cni.ips` and `runtimeConfig.ips`. The call fails
    /// unless it gets each of them.
    pub requested: Vec<IpAddr>,
}

/// Ranges out of which one address is allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(pub Vec<Range>);

/// A range of addresses in a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The key `subnet`, without host bits.
    pub subnet: IpNet,
    /// The key `rangeStart`: the first address of the range.
    pub start: IpAddr,
    /// The key `rangeEnd`: the last address of the range.
    pub end: IpAddr,
    /// The key `gateway`: an address that is never allocated.
    pub gateway: IpAddr,
}

impl HostLocal {
    /// Reads `ipam`, and what the runtime and `CNI_ARGS` add.
    ///
    /// # Errors
    /// Code 6 for a wrong type, 7 for a wrong value, 4 for wrong arguments.
    pub fn parse(conf: &NetConf, args: &Args) -> Result<HostLocal, CniError> {
        let fields = conf.fields()?;
        let ipam = fields
            .object("ipam")?
            .ok_or_else(|| fields.missing("ipam", "host-local needs its configuration"))?;
        let ranges = range_sets(&fields, &ipam)?;
        check_families(&ranges, conf.version)?;
        check_overlaps(&ranges)?;
        Ok(HostLocal {
            ranges,
            routes: ipam.each("routes", |item| RouteConfig::read_configured(&item))?,
            data_dir: ipam.text("dataDir")?.unwrap_or_else(|| DEFAULT_DATA_DIR.to_owned()),
            resolv_conf: ipam.text("resolvConf")?,
            requested: requested(conf, args)?,
        })
    }

    /// Refuses a configuration by which every ADD fails: a range set whose only address is the gateway, and requested addresses that are
    /// the gateway, in no range, or two in one set. The reference plugin reads it, and refuses each ADD in these words.
    ///
    /// # Errors
    /// Code 7, with the range set or the addresses, and what to ask for instead.
    pub fn must_be_possible(&self) -> Result<(), CniError> {
        let mut requested: Vec<IpAddr> = Vec::new();
        for ip in &self.requested {
            if !requested.contains(ip) {
                requested.push(*ip);
            }
        }
        for (at, set) in self.ranges.iter().enumerate() {
            let refused = |why: String, remedy: &str| {
                let msg = format!("failed to allocate for range {at}: {why}");
                Err(CniError::new(Code::InvalidConfig, msg).with(remedy))
            };
            let wanted =
                requested.iter().position(|ip| set.contains(*ip)).map(|found| requested.remove(found));
            match wanted {
                Some(ip) if set.range_of(ip).is_some_and(|range| range.gateway == ip) => {
                    return refused(format!("requested ip {ip} is subnet's gateway"), ASK_INSIDE);
                }
                None if set.0.iter().all(Range::is_gateway_alone) => {
                    let why =
                        format!("no IP addresses available in range set: {set}, which is the gateway alone");
                    return refused(why, "widen the range, or give \"gateway\" another address");
                }
                Some(_) | None => {}
            }
        }
        if requested.is_empty() {
            return Ok(());
        }
        let left: Vec<String> = requested.iter().map(ToString::to_string).collect();
        let msg = format!("failed to allocate all requested IPs: {}", left.join(" "));
        Err(CniError::new(Code::InvalidConfig, msg).with(ASK_INSIDE))
    }
}

/// The requested addresses. An empty text in `CNI_ARGS` requests nothing; in a list it is an error, as in the reference plugin.
fn requested(conf: &NetConf, args: &Args) -> Result<Vec<IpAddr>, CniError> {
    args.only(&["IP"])?;
    let mut requested = Vec::new();
    if let Some(text) = args.get("IP").filter(|text| !text.is_empty()) {
        requested.push(address(text, "CNI_ARGS IP", Code::BadEnvironment)?);
    }
    for (key, texts) in [("args.cni.ips", &conf.args_cni_ips), ("runtimeConfig.ips", &conf.runtime.ips)] {
        for text in texts {
            requested.push(address(text, key, Code::InvalidConfig)?);
        }
    }
    Ok(requested)
}

fn address(text: &str, key: &str, code: Code) -> Result<IpAddr, CniError> {
    addr::ip_or_cidr(text).ok_or_else(|| {
        CniError::new(
            code,
            format!("\"{key}\" is {}, expected an IP address, with or without prefix length", shown(text)),
        )
    })
}

fn range_sets(fields: &Fields<'_>, ipam: &Fields<'_>) -> Result<Vec<RangeSet>, CniError> {
    let mut sets = match fields.object("runtimeConfig")? {
        Some(runtime) => runtime.each("ipRanges", |item| RangeSet::read(&item))?,
        None => Vec::new(),
    };
    if ipam.item("subnet").is_some() {
        sets.push(RangeSet(vec![Range::read(ipam)?]));
    }
    sets.extend(ipam.each("ranges", |item| RangeSet::read(&item))?);
    if sets.is_empty() {
        return Err(ipam.missing(
            "ranges",
            "no IP ranges specified: give \"ranges\": [[{\"subnet\": \"10.1.0.0/16\"}]]",
        ));
    }
    Ok(sets)
}

fn check_families(sets: &[RangeSet], version: CniVersion) -> Result<(), CniError> {
    let v4 = sets.iter().filter(|set| set.is_ipv4()).count();
    if version < CniVersion::V0_3_0 && (v4 > 1 || sets.len() - v4 > 1) {
        return Err(more_than_one(version));
    }
    Ok(())
}

/// Results below 0.3.0 have room for one address of each family.
pub(super) fn more_than_one(version: CniVersion) -> CniError {
    CniError::new(
        Code::InvalidConfig,
        format!("CNI version {version} does not support more than 1 address per family"),
    )
    .with("raise \"cniVersion\" to 0.3.0 or later")
}

fn check_overlaps(sets: &[RangeSet]) -> Result<(), CniError> {
    let all = sets.iter().enumerate().flat_map(|(i, set)| set.0.iter().map(move |range| (i, range)));
    match first_overlap(all) {
        None => Ok(()),
        Some(((one, _), (other, _))) => {
            let (i, j) = (one.min(other), one.max(other));
            let msg = format!("\"ipam.ranges\": range set {i} overlaps with {j}");
            Err(CniError::new(Code::InvalidConfig, msg).with(
                "every address may belong to one range only; ranges of runtimeConfig.ipRanges count first",
            ))
        }
    }
}

/// A range with its position.
type Placed<'a> = (usize, &'a Range);

/// Two ranges that have an address in common, those of the least positions that touch one another. In O(n log n): a configuration
/// may have tens of thousands.
fn first_overlap<'a>(ranges: impl Iterator<Item = Placed<'a>>) -> Option<(Placed<'a>, Placed<'a>)> {
    // By their start, a range overlaps one before it just if it begins before the farthest end so far. IPv4 sorts before IPv6.
    let mut sorted: Vec<Placed<'_>> = ranges.collect();
    sorted.sort_by_key(|(_, range)| range.start);
    let mut farthest: Option<Placed<'_>> = None;
    let mut found: Option<(Placed<'_>, Placed<'_>)> = None;
    for next in sorted {
        if let Some(before) = farthest
            && next.1.start <= before.1.end
        {
            let pair = if before.0 <= next.0 { (before, next) } else { (next, before) };
            let places = |(one, other): &(Placed<'_>, Placed<'_>)| (one.0, other.0);
            found = Some(found.filter(|least| places(least) <= places(&pair)).unwrap_or(pair));
        }
        farthest = Some(farthest.filter(|before| before.1.end >= next.1.end).unwrap_or(next));
    }
    found
}

impl RangeSet {
    fn read(item: &Item<'_>) -> Result<RangeSet, CniError> {
        let set = RangeSet(item.each(|range| Range::read(&range.object()?))?);
        let Some(first) = set.0.first() else { return Err(bad("empty range set")) };
        if set.0.iter().any(|range| range.start.is_ipv4() != first.start.is_ipv4()) {
            return Err(bad(&format!("mixed address families in one range set ({set})")));
        }
        if let Some(((_, one), (_, other))) = first_overlap(set.0.iter().enumerate()) {
            return Err(bad(&format!("subnets {one} and {other} overlap")));
        }
        Ok(set)
    }

    /// Whether this is a set of IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.start.is_ipv4())
    }

    /// Whether a range of the set contains the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// The range of the set that contains the address.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }
}

impl std::fmt::Display for RangeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

impl Range {
    fn read(fields: &Fields<'_>) -> Result<Range, CniError> {
        let subnet = subnet(fields)?;
        let gateway = fields.ip("gateway")?;
        let (start, end) = (fields.ip("rangeStart")?, fields.ip("rangeEnd")?);
        let inside = |key: &str, ip: IpAddr| {
            if subnet.contains(&ip) {
                Ok(())
            } else {
                Err(bad(&format!("{key} {ip} not in network {subnet}")))
            }
        };
        if let Some(start) = start {
            inside("rangeStart", start)?;
        }
        if let Some(end) = end {
            inside("rangeEnd", end)?;
        }
        let first = next(subnet.addr());
        let range = Range {
            subnet,
            start: start.unwrap_or(first),
            end: end.unwrap_or_else(|| last(subnet)),
            gateway: gateway.unwrap_or(first),
        };
        if range.start > range.end {
            return Err(bad(&format!("rangeStart {} comes after rangeEnd {}", range.start, range.end)));
        }
        Ok(range)
    }

    /// Whether the gateway, which is never allocated, is all that is in it.
    fn is_gateway_alone(&self) -> bool {
        self.start == self.gateway && self.end == self.gateway
    }

    /// Whether the address lies between start and end, both included.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.start.is_ipv4() && self.start <= ip && ip <= self.end
    }

    /// The gateway's address with the subnet's prefix length, or any other address so.
    pub fn with_prefix(&self, ip: IpAddr) -> Option<IpNet> {
        (ip.is_ipv4() == self.start.is_ipv4())
            .then(|| IpNet::new(ip, self.subnet.prefix_len()).ok())
            .flatten()
    }
}

fn subnet(fields: &Fields<'_>) -> Result<IpNet, CniError> {
    let item =
        fields.item("subnet").ok_or_else(|| fields.missing("subnet", "a subnet such as 10.1.0.0/16"))?;
    let subnet = item.read("a subnet, as in 10.1.0.0/16", addr::cidr)?;
    if addr::is_mapped_cidr(item.text()?) {
        return Err(bad(&format!(
            "subnet {} mixes IPv4 and IPv6: write it as {subnet}",
            shown(item.text()?)
        )));
    }
    if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
        return Err(bad(&format!("network {subnet} is too small to allocate from")));
    }
    if subnet.addr() != subnet.network() {
        let (network, bits) = (subnet.network(), subnet.prefix_len());
        return Err(bad(&format!(
            "network {subnet} has host bits set: with a prefix length of {bits} it is {network}/{bits}"
        )));
    }
    Ok(subnet)
}

fn bad(why: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("host-local's configuration is invalid: {why}"))
}

/// The first address that can be allocated. A subnet has at least four addresses, so this never wraps.
fn next(network: IpAddr) -> IpAddr {
    match network {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
    }
}

/// The last address that can be allocated. IPv4's broadcast address can't be.
fn last(subnet: IpNet) -> IpAddr {
    match subnet.broadcast() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_sub(1)).into(),
        ip @ IpAddr::V6(_) => ip,
    }
}
